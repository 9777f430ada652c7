-- Each client in a lane of its own.
SELECT count(*) FROM pulse.enqueue_many(
    'bench', array_fill(
        '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb,
        ARRAY[100]
    ),
    lane => 'lane' || (:client_id)::text
);
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch('bench', 'lane' || (:client_id)::text, 100) \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
