-- The same with one job at a time.
SELECT pulse.enqueue(
    'bench',
    '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'
);
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch('bench') \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
