-- Jobs that wait for jobs: what docs/flows.md says of each case, by its name.
BEGIN;

SELECT plan(85);

\o /dev/null
-- A job of lane f runs and ends as asked.
CREATE FUNCTION pg_temp.work(job bigint, how text DEFAULT 'complete', result jsonb DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_lease bigint;
BEGIN
    UPDATE pulse_internal.ready AS r SET rank = -1000 WHERE r.job = work.job;
    SELECT c.lease INTO v_lease FROM pulse.claim_batch('w', 'f') AS c;
    IF NOT EXISTS (SELECT FROM pulse_internal.lease AS l WHERE l.lease = v_lease AND l.job = work.job) THEN
        RETURN 'did not run';
    END IF;
    CASE how
        WHEN 'complete' THEN PERFORM pulse.complete(v_lease, work.result);
        WHEN 'die' THEN PERFORM pulse.fail(v_lease, 'no', fatal => true);
        WHEN 'fail' THEN PERFORM pulse.fail(v_lease, 'no', retry_in => '1 hour');
        WHEN 'snooze' THEN PERFORM pulse.snooze(v_lease, '1 hour');
        WHEN 'release' THEN PERFORM pulse.release(ARRAY[v_lease]);
        WHEN 'run' THEN NULL;
    END CASE;
    RETURN pg_temp.state(work.job);
END $$;
CREATE FUNCTION pg_temp.add(after bigint[] DEFAULT NULL, after_failed text DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $$
    SELECT pulse.enqueue('k', lane => 'f', after => add.after, after_failed => add.after_failed)
$$;
-- As two transactions would: nothing of it is our own.
CREATE FUNCTION pg_temp.settle() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pulse_internal.doubt SET by = '1';
    RETURN pulse_internal.tick_flows();
END $$;
\o

-- upstream completes: counts
SELECT pg_temp.add() AS a, pg_temp.add() AS b \gset
SELECT pg_temp.add(ARRAY[:a, :b]) AS c \gset
SELECT is(pg_temp.state(:c), 'blocked', 'a job that is enqueued after others is blocked');
SELECT results_eq(
    format('SELECT after_job_id FROM pulse.dependencies WHERE job_id = %s ORDER BY 1', :c),
    format('VALUES (%s::bigint), (%s)', :a, :b), 'dependencies lists what it waits for'
);
SELECT is(pg_temp.work(:a), 'completed');
SELECT is(pg_temp.state(:c), 'blocked', 'upstream completes: counts, and the other is waited for');
SELECT is(pg_temp.work(:b), 'completed');
-- proves: G20
SELECT is(pg_temp.state(:c), 'ready', 'guarantee 20: upstream completes, with the last one it is ready');
SELECT is(pg_temp.work(:c), 'completed');
SELECT throws_ok(format('SELECT pulse.retry(%s)', :a), 'PU105', NULL, 'a completed job can never be retried, so what was counted stays');

-- upstream retrying, snoozed, released, waiting: not ended
SELECT pg_temp.add() AS a \gset
SELECT pg_temp.add(ARRAY[:a]) AS c, pg_temp.add(ARRAY[:a], 'run') AS r \gset
SELECT is(pg_temp.work(:a, 'release'), 'ready');
SELECT is(pg_temp.state(:c), 'blocked', 'upstream released: nothing happens');
SELECT is(pg_temp.work(:a, 'fail'), 'retrying');
SELECT is(pg_temp.state(:c) || pg_temp.state(:r), 'blockedblocked', 'upstream retrying: nothing happens');
UPDATE pulse_internal.waiting SET run_at = now() - interval '1 minute' WHERE job = :a;
DELETE FROM pulse_internal.due_mark;
\o /dev/null
SELECT pulse_internal.tick_promote();
\o
SELECT is(pg_temp.work(:a, 'snooze'), 'scheduled');
SELECT is(pg_temp.state(:c) || pg_temp.state(:r), 'blockedblocked', 'upstream snoozed: nothing happens');

-- upstream dead or cancelled, by policy
SELECT pg_temp.add(ARRAY[:c]) AS d, pg_temp.add(ARRAY[:c], 'run') AS e, pg_temp.add(ARRAY[:a], 'hold') AS h \gset
SELECT is(pulse.cancel(:a), 'cancelled');
SELECT is(pg_temp.state(:c), 'cancelled', 'upstream cancelled, cancel: cancelled at once');
SELECT is(
    (SELECT ended_by || ': ' || last_error FROM pulse.jobs WHERE job_id = :c),
    format('upstream: job %s, which it depends on, is cancelled', :a), 'and says why'
);
SELECT is(pg_temp.state(:d), 'cancelled', 'and so on down the graph, by each job''s own policy: cancel');
SELECT is(pg_temp.state(:e), 'ready', 'and so on down the graph, by each job''s own policy: run');
SELECT is(pg_temp.state(:r), 'ready', 'upstream cancelled, run: any end counts');
SELECT is(pg_temp.state(:h), 'blocked', 'upstream cancelled, hold: stays');

-- upstream retried
SELECT is(pulse.retry(:a), 'ready', 'upstream retried');
SELECT is(pg_temp.state(:c) || ' ' || pg_temp.state(:d), 'blocked blocked', 'upstream retried: what its end cancelled comes back as blocked, at every depth');
SELECT is(pg_temp.state(:r), 'ready', 'ended once is enough: a retry does not block it again');
SELECT is(pg_temp.work(:a), 'completed');
SELECT is(pg_temp.state(:c) || ' ' || pg_temp.state(:h), 'ready ready', 'and when it completes, they run, hold included');

-- what came back with an upstream has ended once, too
SELECT pg_temp.add() AS a, pg_temp.add() AS w \gset
SELECT pg_temp.add(ARRAY[:a]) AS c \gset
SELECT pg_temp.add(ARRAY[:c, :w], 'run') AS r, pg_temp.add(ARRAY[:w, :c], 'run') AS s \gset
SELECT is(pulse.cancel(:a), 'cancelled');
SELECT is(pulse.cancel(:s), 'cancelled');
SELECT is(pulse.retry(:a), 'ready');
SELECT is(pg_temp.state(:c), 'blocked', 'upstream retried: what its end cancelled is blocked');
SELECT is(pg_temp.work(:w), 'completed');
SELECT is(pg_temp.state(:r), 'ready', 'ended once is enough: nor does one that comes back with its upstream block it again');
SELECT is(pulse.retry(:s), 'ready', 'not even one that is retried itself');
SELECT is(pulse.cancel(:r) || pulse.cancel(:s) || pulse.cancel(:a), 'cancelledcancelledcancelled');

-- a running upstream cascades when it has really ended
SELECT pg_temp.add() AS a \gset
SELECT pg_temp.add(ARRAY[:a]) AS c \gset
SELECT is(pg_temp.work(:a, 'run'), 'running');
SELECT is(pulse.cancel(:a), 'running');
SELECT is(pg_temp.state(:c), 'blocked', 'a running upstream that was asked to stop has not ended');
SELECT is(pulse.cancel(:a, force => true), 'cancelled');
SELECT is(pg_temp.state(:c), 'cancelled', 'it cascades when it has really ended');

-- upstream dies: fail and reap
SELECT pg_temp.add() AS a \gset
SELECT pg_temp.add(ARRAY[:a]) AS c \gset
SELECT is(pg_temp.work(:a, 'die'), 'dead');
SELECT is(pg_temp.state(:c), 'cancelled', 'upstream dead, cancel: cancelled at once');

-- ended before the enqueue
SELECT pg_temp.add() AS done \gset
SELECT is(pg_temp.work(:done), 'completed');
SELECT pg_temp.add(ARRAY[:done]) AS c, pg_temp.add(ARRAY[:done, :a]) AS x, pg_temp.add(ARRAY[:done, :a], 'run') AS y, pg_temp.add(ARRAY[:a], 'hold') AS z \gset
SELECT is(pg_temp.state(:c), 'ready', 'upstream ended before the enqueue: counts at once');
SELECT is(pg_temp.state(:x), 'cancelled', 'upstream dead at the enqueue, cancel: written and cancelled in the same call');
SELECT is(pg_temp.state(:y), 'ready', 'upstream dead at the enqueue, run: counts');
SELECT is(pg_temp.state(:z), 'blocked', 'upstream dead at the enqueue, hold: waits for a retry');
SELECT is(pulse.retry(:x), 'blocked', 'retry of a job with upstreams: blocked unless all have ended well enough');
SELECT is((pg_temp.settle(), pg_temp.state(:x))::text, '(0,blocked)', 'and it stays, to wait for the retry of its upstream');
SELECT is(pulse.retry(:a), 'ready');
SELECT is(pg_temp.work(:a), 'completed');
SELECT is(pg_temp.state(:x) || ' ' || pg_temp.state(:z), 'ready ready', 'which releases it');

SELECT pg_temp.add() AS a \gset
SELECT pg_temp.add(ARRAY[:a], 'run') AS r \gset
SELECT is(pulse.cancel(:r), 'cancelled');
SELECT is(pulse.retry(:r), 'blocked', 'retry of a job with upstreams, run: any end counts, and there is none yet');

-- what cannot be
SELECT throws_ok('SELECT pulse.enqueue(''k'', after => ARRAY[987654321])', 'PU004', NULL, 'upstream unknown: PU004');
SELECT throws_ok((SELECT format('SELECT pulse.enqueue(''k'', after => ARRAY[%s])', last_value + 1) FROM pulse_internal.job_id), 'PU004', NULL, 'the job itself, by the id that it will get: PU004');
SELECT throws_ok((SELECT format('SELECT pulse.enqueue_many(''k'', ''{1,2,3}''::jsonb[], after => ARRAY[%s])', last_value + 2) FROM pulse_internal.job_id), 'PU004', NULL, 'one of the same call: PU004');
SELECT is(pg_temp.state(pulse.enqueue('k', lane => 'f', after => '{}')), 'ready', 'after => {}: no dependency');
SELECT throws_ok('SELECT pulse.enqueue(''k'', after => ARRAY[1, NULL])', 'PU002', NULL, 'NULL inside after: PU002');
SELECT throws_ok('SELECT pulse.enqueue(''k'', after => ARRAY[1], after_failed => ''explode'')', 'PU002', NULL, 'an unknown after_failed: PU002');
SELECT throws_ok('SELECT pulse.enqueue(''k'', name => ''12'')', 'PU002', NULL, 'a name that is a number: PU002');
SELECT throws_ok('SELECT pulse.enqueue_many(''k'', array_fill(''{}''::jsonb, ARRAY[1001]), after => (SELECT array_agg(n) FROM generate_series(1, 1000) AS n))', 'PU003', NULL, 'more than a million pairs: PU003');
SELECT pg_temp.add() AS a \gset
SELECT pg_temp.add(ARRAY[:a, :a, :a]) AS c \gset
SELECT is((SELECT count(*) FROM pulse.dependencies WHERE job_id = :c), 1::bigint, 'duplicates in after collapse');

-- a key that is taken
SELECT pulse.enqueue('k', lane => 'f', unique_key => 'one', after => ARRAY[:a]) AS k \gset
SELECT is(pulse.enqueue('k', lane => 'f', unique_key => 'one', after => ARRAY[:c]), :k::bigint, 'unique_key found an existing job');
SELECT is((SELECT array_agg(after_job_id) FROM pulse.dependencies WHERE job_id = :k), ARRAY[:a]::bigint[], 'and its dependencies stay as they are');

-- times and approvals
SELECT pulse.enqueue('k', lane => 'f', after => ARRAY[:a], delay => '1 hour') AS d, pulse.enqueue('k', lane => 'f', after => ARRAY[:a], run_at => now() + interval '2 hours') AS t, pulse.enqueue('k', lane => 'f', after => ARRAY[:a], requires_approval => true) AS p, pulse.enqueue('k', lane => 'f', after => ARRAY[:a], run_at => now() - interval '2 hours') AS past \gset
SELECT is(pg_temp.state(:p), 'blocked', 'requires_approval with after: nobody is asked yet');
SELECT throws_ok(format('SELECT pulse.approve(%s)', :p), 'PU105', NULL, 'and nobody can approve it');
SELECT is(pg_temp.work(:a), 'completed');
SELECT ok((SELECT state = 'scheduled' AND run_at > clock_timestamp() + interval '59 minutes' FROM pulse.jobs WHERE job_id = :d), 'delay with after: so long after the release');
SELECT ok((SELECT state = 'scheduled' AND run_at > clock_timestamp() + interval '119 minutes' FROM pulse.jobs WHERE job_id = :t), 'run_at with after: not before run_at');
SELECT is(pg_temp.state(:past), 'ready', 'run_at that has passed: ready');
SELECT ok((SELECT state = 'awaiting_approval' AND approval_until > clock_timestamp() + interval '23 hours' FROM pulse.jobs WHERE job_id = :p), 'approval is asked at the release, and its expiry starts then');
SELECT is(pulse.approve(:p), 'ready', 'and it is a gate');

-- a grouped lane
\o /dev/null
SELECT pulse.set_lane('g', fair => true);
\o
SELECT pg_temp.add() AS a \gset
SELECT pulse.enqueue('k', lane => 'g', group_key => 'tenant', after => ARRAY[:a], name => 'grouped') AS g, pulse.enqueue('k', lane => 'g', after => ARRAY[:a]) AS p \gset
SELECT is(pg_temp.work(:a), 'completed');
SELECT results_eq('SELECT job, group_key COLLATE "default" FROM pulse_internal.ready WHERE group_key IS NOT NULL ORDER BY 1', format('VALUES (%s::bigint, %L)', :g, 'tenant'), 'released into a grouped lane, it joins the line of its group');
SELECT bag_eq('SELECT c.job_id, c.name FROM pulse.claim_batch(''w'', ''g'', 5) AS c', format('VALUES (%s::bigint, %L), (%s, NULL)', :g, 'grouped', :p), 'and is claimed from there');

-- more dependents than a page
SELECT count(pg_temp.add()) AS upstreams FROM generate_series(1, 3) \gset
SELECT array_agg(lease) AS leases, array_agg(job_id) AS ups FROM (SELECT * FROM pulse.claim_batch('w', 'f', 3)) AS c \gset
SELECT count(*) AS dependents FROM unnest(:'ups'::bigint[]) AS u (job), pulse.enqueue_many('many', array_fill('1'::jsonb, ARRAY[600]), lane => 'f', after => ARRAY[u.job]) \gset
SELECT count(*) AS failed FROM pulse.fail_batch(:'leases', fatal => '{true,true,true}') \gset
SELECT ok((SELECT count(*) FROM pulse_internal.blocked WHERE kind = 'many') BETWEEN 1 AND 800, 'several upstreams die in one report: it cancels a thousand of their dependents');
SELECT is(pg_temp.settle(), 0::bigint);
SELECT is((SELECT count(*) FROM pulse_internal.blocked WHERE kind = 'many'), 0::bigint, 'and leaves a doubt about each upstream that has more');
SELECT is((SELECT count(*) FROM pulse_internal.finished WHERE kind = 'many' AND error LIKE 'job % is dead'), 1800::bigint, 'so that all are told');

-- approval that a replace asks for
SELECT pg_temp.add() AS a \gset
SELECT pulse.enqueue('q', '1', lane => 'f', unique_key => 'q', after => ARRAY[:a]) AS q \gset
SELECT pulse.enqueue('q', '2', lane => 'f', unique_key => 'q', on_conflict => 'replace', requires_approval => true) AS same \gset
SELECT is(pg_temp.work(:a), 'completed');
SELECT pulse.reject(:q) \g /dev/null
SELECT is(pulse.retry(:q), 'awaiting_approval', 'a blocked job that a replace wants approved is so when it is retried');
SELECT pulse.approve(:q) \g /dev/null
SELECT throws_ok($$SELECT pulse.enqueue('q', '3', lane => 'f', unique_key => 'q', on_conflict => 'replace')$$, 'PU105', NULL, 'and what was approved of it cannot be replaced');

-- what is left of it
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing');
SELECT is(pg_temp.settle(), 0::bigint, 'guarantee 20: no doubt releases anything that was not released');
SELECT is((SELECT count(*) FROM pulse_internal.doubt), 0::bigint, 'and all doubts are settled');

SELECT * FROM finish();
ROLLBACK;
