-- The fsck finds what is broken by hand, and nothing in a healthy queue.
BEGIN;

SELECT plan(23);

SELECT pulse.set_lane('one', max_slots => 1) \g /dev/null
SELECT pulse.enqueue('k', '{}', unique_key => 'a') AS keyed_id \gset
SELECT pulse.enqueue('k', '{}', delay => '1 hour') AS waiting_id \gset
SELECT pulse.enqueue('k', '{}', requires_approval => true) AS approval_id \gset
SELECT pulse.enqueue('k', '{}', lane => 'one') AS running_id \gset
SELECT pulse.enqueue('k', '{}', lane => 'done', unique_key => 'b', unique_for => '1 hour') AS done_id \gset
SELECT count(*) FROM pulse.claim_batch('w', 'one') \g /dev/null
SELECT lease AS done_lease FROM pulse.claim_batch('w', 'done') \gset
SELECT pulse.complete(:done_lease) \g /dev/null

SELECT is_empty('SELECT * FROM pulse.check()', 'a healthy queue has no problem');

CREATE FUNCTION pg_temp.finds(damage text, problem text, job_id bigint, description text)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_found boolean;
BEGIN
    BEGIN
        EXECUTE damage;
        v_found := EXISTS (
            SELECT FROM pulse.check() AS c
            WHERE c.problem = finds.problem
                AND c.job_id IS NOT DISTINCT FROM finds.job_id
                AND c.detail <> ''
        );
        RAISE EXCEPTION USING ERRCODE = 'ZZ000';
    EXCEPTION
        WHEN SQLSTATE 'ZZ000' THEN
            RETURN ok(v_found, description);
    END;
END;
$$;

SELECT pg_temp.finds(
    'DELETE FROM pulse_internal.ready', 'job stands nowhere', :keyed_id,
    'a body in no table'
);
SELECT pg_temp.finds(
    'DELETE FROM pulse_internal.body', 'job has no body', :waiting_id,
    'a place without a body'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
    SELECT lane, rank, kind, job, 0, 0, false FROM pulse_internal.waiting',
    'job stands in several places', :waiting_id,
    'a job in two tables'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.waiting SET kind = ''other''', 'job has two kinds', :waiting_id,
    'a kind that differs'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.waiting SET failures = 3, attempts = 3', 'job should be dead', :waiting_id,
    'a job that failed too often'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.waiting SET failures = 2, attempts = 1',
    'job has more failures than attempts', :waiting_id,
    'more failures than attempts'
);
SELECT pg_temp.finds(
    'DELETE FROM pulse_internal.job_key', 'unique key is not held', :keyed_id,
    'a keyed job without its key'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.job_key SET lane = ''other'' WHERE expires_at IS NULL',
    'unique key is not held', :keyed_id,
    'a key in another lane'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.ready SET keyed = false', 'unique key is held by a job without one', :keyed_id,
    'a key of a job that has none'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.job_key SET expires_at = NULL',
    'unique key of a finished job never expires', :done_id,
    'a key that outlives its job for ever'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.job_key (lane, unique_key, job) VALUES (''x'', ''x'', 99)',
    'unique key has no job', 99,
    'a key without a job'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.job_progress VALUES (99, 5, 0, NULL, clock_timestamp())',
    'progress has no job', 99,
    'progress without a job'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.job_checkpoint VALUES (99, ''{}'', clock_timestamp())',
    'checkpoint has no job', 99,
    'a checkpoint without a job'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.failure (job, attempt, lease, worker, claimed_at, error)
    VALUES (99, 1, 1, ''w'', clock_timestamp(), ''e'')',
    'failure has no job', 99,
    'a failure without a job'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.lease (lease, job, lane, kind, rank, attempt, failures, keyed, worker, claimed_at, lease_for, lease_until)
    SELECT lease + 1, job + 1, lane, kind, rank, attempt, failures, keyed, worker, clock_timestamp(), lease_for, lease_until FROM pulse_internal.lease',
    'lane runs more than its slots', NULL,
    'a lane with more running jobs than slots'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.roster (lane, leases) VALUES (''one'', ''{}'')',
    'lease is missing from the roster', :running_id,
    'a running job that the slots do not count'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at)
    VALUES (''default'', '''', ''{0}'', ''{1000000}'', clock_timestamp())',
    'ready job is below its mark', :keyed_id,
    'a ready job below the mark of its lane'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at)
    VALUES (''default'', ''k'', ''{0}'', ''{1000000}'', clock_timestamp())',
    'ready job is below its mark', :keyed_id,
    'a ready job below the mark of its kind'
);
SELECT pg_temp.finds(
    'INSERT INTO pulse_internal.due_mark (lane, run_at, marked_at)
    VALUES (''default'', ''infinity'', clock_timestamp())',
    'waiting job is below its mark', :waiting_id,
    'a waiting job below the mark of its lane'
);
SELECT pg_temp.finds(
    'ALTER SEQUENCE pulse_internal.job_id RESTART', 'sequence is behind', :done_id,
    'ids that would be given out again'
);
SELECT pg_temp.finds(
    'UPDATE pulse_internal.ready SET seq = 1000000', 'sequence is behind', NULL,
    'places in line that would be given out again'
);

SELECT pulse.enqueue('k', '{}', lane => 'free') FROM generate_series(1, 3) \g /dev/null
SELECT count(*) FROM pulse.claim_batch('w', 'free', 3) \g /dev/null
SELECT pulse.set_lane('free', max_slots => 1) \g /dev/null
SELECT is_empty(
    'SELECT * FROM pulse.check()', 'slots lowered under what runs are no problem'
);

SELECT * FROM finish();

ROLLBACK;
