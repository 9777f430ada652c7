-- Three transactions: 100 jobs go in, 100 are claimed, 100 are completed.
SELECT count(*) FROM pulse.enqueue_many(
    'bench', array_fill(
        '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb,
        ARRAY[100]
    )
);
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch('bench', max_jobs => 100) \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
