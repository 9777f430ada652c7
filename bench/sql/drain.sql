-- Two transactions: 100 jobs are claimed, 100 are completed.
SELECT coalesce(array_agg(lease), '{}') AS leases
FROM pulse.claim_batch('bench', max_jobs => 100) \gset
SELECT count(*) FROM pulse.complete_batch((:leases)::bigint []);
