-- What the views show, to whom, and what reading them costs.
BEGIN;

SELECT plan(49);

CREATE ROLE tap_alice;
CREATE ROLE tap_bob;
CREATE ROLE tap_viewer;
CREATE ROLE tap_approver;
SELECT pulse.grant_access('tap_alice', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_bob', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_viewer', 'viewer') \g /dev/null
SELECT pulse.grant_access('tap_approver', 'approver') \g /dev/null

-- One job in every state

SET LOCAL ROLE tap_alice;
SELECT pulse.enqueue('k', '{"n": 1}', requires_approval => true) AS awaiting_id \gset
SELECT pulse.enqueue('k', '{"n": 2}', delay => '1 hour', priority => 5, unique_key => 'u', group_key => 'g', tags => '{t}') AS scheduled_id \gset
RESET ROLE;
SELECT pulse.enqueue('k', '{"n": 3}', lane => 'retry') AS retrying_id \gset
SELECT pulse.enqueue('k', '{"n": 4}', lane => 'end') AS completed_id \gset
SELECT pulse.enqueue('k', '{"n": 5}', lane => 'end', max_attempts => 1) AS dead_id \gset
SELECT pulse.enqueue('k', '{"n": 6}', lane => 'end') AS cancelled_id \gset
SELECT pulse.enqueue('k', '{"n": 7}', lane => 'run') AS running_id \gset

SELECT lease AS l1 FROM pulse.claim_batch('w1', 'retry') \gset
SELECT pulse.fail(:l1, 'first trouble', '1 hour') \g /dev/null
SELECT lease AS l2 FROM pulse.claim_batch('w1', 'end') \gset
SELECT pulse.complete(:l2, '{"sum": 3}') \g /dev/null
SELECT lease AS l3 FROM pulse.claim_batch('w1', 'end') \gset
SELECT pulse.fail(:l3, 'last trouble') \g /dev/null
SELECT pulse.cancel(:cancelled_id, 'not needed') \g /dev/null
SELECT lease AS l4 FROM pulse.claim_batch('w2', 'run') \gset
SELECT pulse.progress(:l4, 0.25, 'a quarter') \g /dev/null
SET LOCAL ROLE tap_bob;
SELECT pulse.enqueue('k', '{"n": 8}') AS ready_id \gset
RESET ROLE;

SELECT is(
    (SELECT string_agg(j.state, ' ' ORDER BY j.payload ->> 'n') FROM pulse.jobs AS j),
    'awaiting_approval scheduled retrying completed dead cancelled running ready',
    'jobs shows every job with its state'
);
SELECT is(
    (SELECT count(*) FROM pulse.jobs AS j WHERE j.state = s.state), 1::bigint,
    format('jobs can be asked for %s', s.state)
)
FROM unnest(
    '{awaiting_approval,scheduled,ready,running,retrying,completed,dead,cancelled}'::text []
) AS s (state);
SELECT is(
    (
        SELECT row(j.lane, j.kind, j.priority, j.unique_key, j.group_key, j.tags, j.enqueued_by, j.attempts)::text
        FROM pulse.jobs AS j
        WHERE j.job_id = :scheduled_id
    ),
    '(default,k,5,u,g,{t},tap_alice,0)',
    'jobs shows what was asked'
);
SELECT ok(
    (SELECT j.run_at > clock_timestamp() AND j.waiting_for IS NULL FROM pulse.jobs AS j WHERE j.job_id = :scheduled_id),
    'a job that is not due waits for nothing but the clock'
);
SELECT ok(
    (SELECT j.waiting_for >= '0' AND j.ready_at IS NOT NULL FROM pulse.jobs AS j WHERE j.job_id = :ready_id),
    'a ready job shows how long it has waited'
);
SELECT ok(
    (SELECT j.approval_until > clock_timestamp() + interval '23 hours' FROM pulse.jobs AS j WHERE j.job_id = :awaiting_id),
    'a job that awaits approval shows until when'
);
SELECT is(
    (SELECT row(j.worker, j.attempts, j.progress, j.progress_note)::text FROM pulse.jobs AS j WHERE j.job_id = :running_id),
    '(w2,1,0.25,"a quarter")',
    'a running job shows its worker and progress'
);
SELECT ok(
    (SELECT j.lease_until > j.started_at FROM pulse.jobs AS j WHERE j.job_id = :running_id),
    'and until when its lease holds'
);
SELECT is(
    (SELECT row(j.failures, j.attempts, j.last_error)::text FROM pulse.jobs AS j WHERE j.job_id = :retrying_id),
    '(1,1,"first trouble")',
    'a retrying job shows its last error'
);
SELECT is(
    (SELECT j.errors #>> '{0,error}' FROM pulse.jobs AS j WHERE j.job_id = :retrying_id),
    'first trouble',
    'and all its errors'
);
SELECT is(
    (SELECT j.result FROM pulse.jobs AS j WHERE j.job_id = :completed_id),
    '{"sum": 3}'::jsonb,
    'a completed job shows its result'
);
SELECT ok(
    (SELECT j.last_error LIKE '%not needed%' FROM pulse.jobs AS j WHERE j.job_id = :cancelled_id),
    'a cancelled job shows why'
);

-- The other views

SELECT is(
    (SELECT row(r.job_id, r.worker, r.attempt, r.progress)::text FROM pulse.running AS r),
    format('(%s,w2,1,0.25)', :running_id),
    'running shows who runs what'
);
SELECT is(
    (SELECT row(d.job_id, d.last_error, jsonb_array_length(d.errors))::text FROM pulse.dead AS d),
    format('(%s,"last trouble",1)', :dead_id),
    'dead shows what failed for good and every error'
);
SELECT is(
    (SELECT row(w.worker, w.lanes, w.kinds, w.running)::text FROM pulse.workers AS w WHERE w.worker = 'w2'),
    '(w2,{run},,1)',
    'workers shows one that only claims, by what it runs'
);
SELECT pulse.hello('w3', '{default,other}', '{k}') \g /dev/null
SELECT is(
    (SELECT row(w.worker, w.lanes, w.kinds, w.running)::text FROM pulse.workers AS w WHERE w.worker = 'w3'),
    '(w3,"{default,other}",{k},0)',
    'workers shows one that said hello'
);
SELECT is(
    (SELECT array_agg(w.worker ORDER BY w.worker) FROM pulse.workers AS w WHERE w.live),
    '{w2,w3}',
    'workers are live that said hello or run a job'
);
UPDATE pulse_internal.worker SET seen_at = clock_timestamp() - interval '2 minutes 1 second';
SELECT is(
    (SELECT array_agg(w.worker ORDER BY w.worker) FROM pulse.workers AS w WHERE NOT w.live),
    '{w3}',
    'a worker that was not seen for two minutes is not live'
);
UPDATE pulse_internal.worker SET seen_at = clock_timestamp() - interval '1 minute 50 seconds';
SELECT ok(
    (SELECT w.live FROM pulse.workers AS w WHERE w.worker = 'w3'),
    'a worker that was seen less than two minutes ago is live'
);
UPDATE pulse_internal.lease
SET claimed_at = clock_timestamp() - interval '10 minutes', lease_for = '1 hour',
    lease_until = clock_timestamp() + interval '50 minutes';
SELECT ok(
    (SELECT w.live FROM pulse.workers AS w WHERE w.worker = 'w2'),
    'a worker whose lease has time left is live though it was not seen'
);

SELECT pulse.set_lane('set', max_slots => 4, enabled => false) \g /dev/null
SELECT pulse.drain_lane('held', 'for repairs', new => true) \g /dev/null
SELECT pulse.set_kind('other', lane => 'of a kind') \g /dev/null
SELECT is(
    (SELECT array_agg(l.name ORDER BY l.name) FROM pulse.lanes AS l)::text [],
    ARRAY['default', 'end', 'held', 'of a kind', 'retry', 'run', 'set'],
    'lanes knows lanes by jobs, settings, kinds and holds'
);
SELECT is(
    (SELECT row(l.used, l.depth, l.delayed, l.enabled, l.drained)::text FROM pulse.lanes AS l WHERE l.name = 'default'),
    '(0,1,1,t,f)',
    'lanes counts what is ready and delayed'
);
SELECT ok(
    (SELECT l.oldest_ready_age BETWEEN '0' AND '1 minute' FROM pulse.lanes AS l WHERE l.name = 'default'),
    'lanes shows how long the oldest ready job waits'
);
SELECT is(
    (SELECT l.used FROM pulse.lanes AS l WHERE l.name = 'run'), 1::bigint,
    'lanes counts the slots in use'
);
SELECT is(
    (SELECT row(l.max_slots, l.enabled, l.settings ->> 'max_slots')::text FROM pulse.lanes AS l WHERE l.name = 'set'),
    '(4,f,4)',
    'lanes shows the settings'
);
SELECT is(
    (SELECT row(l.drained, l.paused_by)::text FROM pulse.lanes AS l WHERE l.name = 'held'),
    '(t,"{""drain (for repairs)""}")',
    'lanes shows who holds a lane and why'
);
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pulse_internal.tick_sample() > 0, true, 'lanes are sampled');
SELECT ok(
    (SELECT l.throughput > 0 FROM pulse.lanes AS l WHERE l.name = 'end'),
    'lanes shows the throughput of the samples'
);
SELECT is(
    (SELECT row(s.completed, s.dead, s.cancelled, s.ready, s.running)::text FROM pulse.samples AS s WHERE s.lane = 'end'),
    '(1,1,1,0,0)',
    'samples shows them'
);
INSERT INTO pulse_internal.audit_entry (at, who, verb)
SELECT clock_timestamp() - interval '91 days', 1, 'old' FROM generate_series(1, 3);
SELECT is(
    ARRAY[pulse_internal.prune_rows('pulse_internal.audit_entry', 'at', '90 days', 2), pulse_internal.prune_rows('pulse_internal.audit_entry', 'at', '90 days', 2), pulse_internal.prune_rows('pulse_internal.audit_entry', 'at', '90 days', 2)],
    '{2,1,0}',
    'audit entries are kept for 90 days and removed in batches'
);
SELECT is(
    (SELECT row(a.verb, a.job_id, a.reason)::text FROM pulse.audit AS a WHERE a.verb = 'cancel'),
    format('(cancel,%s,"not needed")', :cancelled_id),
    'audit shows what was done'
);

-- Who sees what

CREATE FUNCTION pg_temp.sees(role text, view text)
RETURNS bigint []
LANGUAGE plpgsql
AS $$
DECLARE
    v_jobs bigint [];
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', role);
    EXECUTE format('SELECT array_agg(v.job_id ORDER BY v.job_id) FROM pulse.%I AS v', view)
    INTO v_jobs;
    RESET ROLE;
    RETURN v_jobs;
END;
$$;

-- proves: R24
SELECT is(pg_temp.sees('tap_alice', 'jobs'), ARRAY[:awaiting_id, :scheduled_id]::bigint [], 'a producer sees its own jobs');
SELECT is(pg_temp.sees('tap_bob', 'jobs'), ARRAY[:ready_id]::bigint [], 'another producer sees others');
SELECT is(cardinality(pg_temp.sees('tap_viewer', 'jobs')), 8, 'a viewer sees all jobs');
SELECT is(pg_temp.sees('tap_approver', 'jobs'), ARRAY[:awaiting_id]::bigint [], 'an approver sees what awaits approval');
SELECT is(pg_temp.sees('tap_alice', 'running'), NULL, 'a producer does not see others'' jobs run');
SELECT is(pg_temp.sees('tap_alice', 'dead'), NULL, 'nor die');

-- A function that the planner thinks cheaper than the filter sees no row first.
CREATE TEMPORARY TABLE leaked (payload jsonb);
CREATE FUNCTION pg_temp.leak(payload jsonb)
RETURNS boolean
LANGUAGE plpgsql
COST 0.0001
AS $$
BEGIN
    INSERT INTO leaked VALUES (leak.payload);
    RETURN true;
END;
$$;
GRANT ALL ON leaked TO tap_alice;
SET LOCAL ROLE tap_alice;
SELECT count(*) FROM pulse.jobs AS j WHERE pg_temp.leak(j.payload) \g /dev/null
RESET ROLE;
SELECT is(
    (SELECT array_agg(l.payload ->> 'n' ORDER BY l.payload ->> 'n') FROM leaked AS l), '{1,2}',
    'a reader''s own function cannot look behind the barrier'
);

-- What reading costs: a page reads a page

INSERT INTO pulse_internal.body (kind, payload, max_attempts, owner)
SELECT 'many', '{}', 3, (SELECT pulse_internal.role_number(current_user)) FROM generate_series(1, 9000);
INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
SELECT 'many', 0, b.kind, b.job, 0, 0, false FROM pulse_internal.body AS b WHERE b.kind = 'many' AND (b.job >> 10) % 3 = 0;
INSERT INTO pulse_internal.waiting (lane, run_at, rank, kind, job, attempts, failures, keyed, retrying)
SELECT 'many', clock_timestamp() + interval '1 hour', 0, b.kind, b.job, 0, 0, false, false FROM pulse_internal.body AS b WHERE b.kind = 'many' AND (b.job >> 10) % 3 = 1;
INSERT INTO pulse_internal.finished (job, lane, kind, rank, state, ended_by, attempts, failures, keyed)
SELECT b.job, 'many', b.kind, 0, 'completed', 'complete', 1, 0, false FROM pulse_internal.body AS b WHERE b.kind = 'many' AND (b.job >> 10) % 3 = 2;
ANALYZE pulse_internal.body, pulse_internal.ready, pulse_internal.waiting, pulse_internal.finished;

CREATE FUNCTION pg_temp.cost_of(query text, OUT rows_read bigint, OUT buffers bigint, OUT plan text)
LANGUAGE plpgsql
AS $$
DECLARE
    v_plan jsonb;
BEGIN
    -- The first time also reads the catalog.
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || query INTO v_plan;
    EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || query INTO v_plan;
    buffers := (v_plan #>> '{0,Plan,Shared Hit Blocks}')::bigint
        + (v_plan #>> '{0,Plan,Shared Read Blocks}')::bigint;
    SELECT max((n ->> 'Actual Rows')::numeric * (n ->> 'Actual Loops')::numeric) INTO rows_read
    FROM jsonb_path_query(v_plan, 'strict $.**') AS n
    WHERE jsonb_typeof(n) = 'object' AND n ? 'Actual Rows';
    plan := v_plan::text;
END;
$$;

SELECT (b.job - 1) AS middle FROM pulse_internal.body AS b WHERE b.kind = 'many' ORDER BY b.job OFFSET 4500 LIMIT 1 \gset

SELECT is(
    (
        SELECT row(c.rows_read <= 20, c.buffers <= 400, c.plan ~ '"Merge Append"')::text
        FROM pg_temp.cost_of(
            format('SELECT * FROM pulse.jobs WHERE job_id > %s ORDER BY job_id LIMIT 20', :middle)
        ) AS c
    ),
    '(t,t,t)',
    'a page of jobs by id merges the places and reads only what it shows'
);
SELECT cmp_ok(
    (
        SELECT c.buffers
        FROM pg_temp.cost_of(format('SELECT * FROM pulse.jobs WHERE job_id = %s + 1', :middle)) AS c
    ),
    '<=', 40::bigint,
    'one job by its id touches few buffers'
);
SELECT unalike(
    (SELECT c.plan FROM pg_temp.cost_of('SELECT job_id FROM pulse.jobs WHERE state = ''ready'' LIMIT 5') AS c),
    '%finished%',
    'jobs of one state are not looked for in the tables of others'
);
SELECT unalike(
    (SELECT c.plan FROM pg_temp.cost_of('SELECT job_id, state FROM pulse.jobs LIMIT 5') AS c),
    '%failure%',
    'errors are read only when they are selected'
);

SELECT * FROM finish();

ROLLBACK;
