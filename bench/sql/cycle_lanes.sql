-- Each cycle in one of :lanes lanes.
\set number random(1, :lanes)
SELECT count(*) FROM pulse.enqueue_many(
    'bench', array_fill(
        '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb,
        ARRAY[100]
    ),
    lane => 'lane' || (:number)::text
);
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch('bench', 'lane' || (:number)::text, 100) \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
