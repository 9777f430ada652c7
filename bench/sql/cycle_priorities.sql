-- Each batch of one of twenty priorities.
\set level random(0, 19)
SELECT count(*) FROM pulse.enqueue_many(
    'bench', array_fill(
        '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb,
        ARRAY[100]
    ),
    priority => :level
);
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch('bench', max_jobs => 100) \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
