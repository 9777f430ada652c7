-- Five kinds, all of them named in the claim.
\set kind random(1, 5)
SELECT count(*) FROM pulse.enqueue_many(
    'k' || (:kind)::text, array_fill(
        '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb,
        ARRAY[100]
    )
);
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch(
    'bench', max_jobs => 100, kinds => ARRAY['k1', 'k2', 'k3', 'k4', 'k5']
) \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
