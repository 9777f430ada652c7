-- Claim 100, complete 100; a completed job is deleted.
WITH claimed AS (
    UPDATE one_table.job
    SET
        state = 'running',
        attempt = attempt + 1,
        worker = 'bench',
        claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + interval '30 seconds'
    WHERE ctid = ANY (array(
        SELECT j.ctid
        FROM one_table.job AS j
        WHERE j.lane = 'default'
            AND j.state = 'ready'
        ORDER BY j.priority DESC, j.id
        LIMIT 100
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, kind, payload, attempt, lease_until
)

SELECT coalesce(array_agg(id), '{}') AS ids
FROM claimed \gset
DELETE FROM one_table.job
WHERE id = ANY ((:ids)::bigint []);
