-- The guarantees of docs/contract.md, each as far as one session can prove it. Beside each
-- stands where the rest is proved: a race is an isolation spec, a crash is a Python test.
BEGIN;

SELECT plan(63);

CREATE FUNCTION pg_temp.lapse(lane text)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.lease AS l
    SET lease_until = now() - interval '1 s', reap_at = now() - interval '1 s'
    WHERE l.lane = lapse.lane
$$;

CREATE FUNCTION pg_temp.due(lane text)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.waiting AS w
    SET run_at = clock_timestamp() - interval '1 s'
    WHERE w.lane = due.lane;
    DELETE FROM pulse_internal.due_mark AS m
    WHERE m.lane = due.lane
$$;

-- 1

SELECT pg_temp.fill(3, 'g1');
SELECT count(*) FROM pulse.claim_batch('w', 'g1', 3) \g /dev/null
-- proves: G1
SELECT is(
    (SELECT count(*) FROM pulse.jobs AS j JOIN pulse_internal.lease AS l ON l.job = j.job_id WHERE j.lane = 'g1' AND j.state = 'running'),
    3::bigint, 'guarantee 1: running is having a lease, by the design of the tables'
);
SELECT is_empty(
    $$
    SELECT a.attname
    FROM pg_attribute AS a
    WHERE a.attrelid = 'pulse_internal.lease'::regclass
        AND a.attname IN ('lease', 'job', 'worker', 'lease_until', 'attempt')
        AND NOT a.attnotnull
    $$,
    'guarantee 1: a lease without job, owner, end or attempt cannot exist'
);
SELECT throws_ok(
    'INSERT INTO pulse_internal.lease SELECT l.* FROM pulse_internal.lease AS l LIMIT 1', '23505', NULL,
    'guarantee 1: nor can two leases of one job'
);

-- 2: races in exclusive-claim.spec and batch-never-exceeds.spec

SELECT pg_temp.fill(50, 'g2');
-- proves: G2
SELECT is(
    (
        SELECT count(DISTINCT c.job_id)
        FROM generate_series(1, 10) AS n, LATERAL pulse.claim_batch('w' || n, 'g2', 4) AS c
    ),
    40::bigint, 'guarantee 2: no two claims get the same job'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'g2', 7)), 7::bigint,
    'guarantee 2: a batch is never larger than asked'
);
SELECT pulse.enqueue('k', lane => 'g2o', priority => n % 3) AS job FROM generate_series(1, 9) AS n \g /dev/null
SELECT is(
    (SELECT array_agg(c.priority) FROM pulse.claim_batch('w', 'g2o', 9) AS c), '{2,2,2,1,1,1,0,0,0}',
    'guarantee 2: rows come back in claim order'
);

-- 3: against a reaper in lost-lease-cannot-complete.spec and reap-against-complete.spec

SELECT pg_temp.fill(1, 'g3');
SELECT c.lease AS stale, c.job_id FROM pulse.claim_batch('me', 'g3') AS c \gset
SELECT pg_temp.lapse('g3');
SELECT pulse.reap() AS n \gset
SELECT pg_temp.due('g3');
SELECT c.lease AS fresh FROM pulse.claim_batch('me', 'g3') AS c \gset
-- proves: G3
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:stale]) AS h), 'lost',
    'guarantee 3: heartbeat answers lost, though the same worker holds the job again'
);
SELECT throws_ok(
    'SELECT pulse.' || format(v.call, :stale), 'PU101', NULL,
    format('guarantee 3: %s is rejected', split_part(v.call, '(', 1))
)
FROM (
    VALUES ('complete(%s)'), ('fail(%s)'), ('snooze(%s, ''1 s'')'), ('progress(%s, 1)'),
    ('checkpoint(%s, ''{}'')'), ('ack_cancel(%s)')
) AS v (call);
SELECT is(
    (SELECT r.verdict FROM pulse.release(ARRAY[:stale]) AS r), 'lost', 'guarantee 3: release is rejected'
);
SELECT is(
    (SELECT c.verdict FROM pulse.complete_batch(ARRAY[:stale]) AS c), 'lost',
    'guarantee 3: in a batch too'
);
SELECT is(
    (SELECT l.lease FROM pulse_internal.lease AS l WHERE l.job = :job_id), :fresh::bigint,
    'guarantee 3: and the new lease stands'
);

-- 4: a killed worker and a crashed server are Python tests

SELECT pg_temp.fill(1, 'g4');
SELECT c.lease, c.job_id FROM pulse.claim_batch('never-starts', 'g4') AS c \gset
SELECT pg_temp.lapse('g4');
DELETE FROM pulse_internal.upkeep_run;
SELECT count(*) FROM pulse.tick() \g /dev/null
-- proves: G4
SELECT is(
    (SELECT format('%s: %s', pg_temp.state(:job_id), j.last_error) FROM pulse.jobs AS j WHERE j.job_id = :job_id),
    'retrying: worker lease expired',
    'guarantee 4: claimed and never started, recovered by tick through the normal retry'
);
SELECT pg_temp.due('g4');
SELECT count(*) FROM pulse.claim_batch('w', 'g4') \g /dev/null
SELECT pg_temp.lapse('g4');
DELETE FROM pulse_internal.upkeep_run;
SELECT count(*) FROM pulse.claim_batch('w', 'another-lane') \g /dev/null
SELECT is(
    pg_temp.state(:job_id), 'retrying',
    'guarantee 4: a claim recovers it too, so a missing watchdog costs latency only'
);
SELECT pg_temp.fill(300, 'g4-many');
SELECT pulse.set_lane('g4-many', max_batch => 1000);
SELECT count(*) FROM pulse.claim_batch('w', 'g4-many', 300) \g /dev/null
SELECT pg_temp.lapse('g4-many');
DELETE FROM pulse_internal.upkeep_run;
SELECT count(*) FROM pulse.claim_batch('w', 'another-lane') \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse_internal.waiting AS w WHERE w.lane = 'g4-many'), 100::bigint,
    'guarantee 4: bounded, a hundred at a time'
);

-- 5

SELECT pulse.set_lane('g5', max_runtime => '1 hour');
SELECT pg_temp.fill(1, 'g5');
SELECT c.lease, c.job_id FROM pulse.claim_batch('w', 'g5') AS c \gset
UPDATE pulse_internal.lease
SET claimed_at = now() - interval '1 h', deadline = now() - interval '1 s',
    lease_until = now() - interval '1 s', reap_at = now() - interval '1 s'
WHERE lease = :lease;
-- proves: G5
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'deadline',
    'guarantee 5: a wedged handler gets the deadline'
);
SELECT pulse.reap() AS n \gset
SELECT is(
    (SELECT j.last_error FROM pulse.jobs AS j WHERE j.job_id = :job_id), 'max_runtime exceeded',
    'guarantee 5: and its lease ended though heartbeats keep it alive'
);

-- 6

SELECT pulse.enqueue('k', lane => 'g6', max_attempts => 2) AS job \gset
DO $$
BEGIN
    FOR v_run IN 1..2 LOOP
        PERFORM pulse.claim_batch('w', 'g6');
        PERFORM pg_temp.lapse('g6');
        PERFORM pulse.reap();
        PERFORM pg_temp.due('g6');
    END LOOP;
END;
$$;
-- proves: G6
SELECT is(
    pg_temp.state(:job), 'dead', 'guarantee 6: a job that kills its workers ends dead'
);
SELECT pulse.enqueue('k', lane => 'g6b', max_attempts => 1) AS job \gset
DO $$
BEGIN
    FOR v_run IN 1..10 LOOP
        PERFORM pulse.release(array(SELECT c.lease FROM pulse.claim_batch('w', 'g6b') AS c));
        PERFORM pulse.snooze(c.lease, '1 h') FROM pulse.claim_batch('w', 'g6b') AS c;
        PERFORM pg_temp.due('g6b');
    END LOOP;
END;
$$;
SELECT results_eq(
    'SELECT c.failures, c.attempt FROM pulse.claim_batch(''w'', ''g6b'') AS c', 'VALUES (0, 21)',
    'guarantee 6: shutdown and snooze are not charged, and the attempt never repeats'
);

-- 7

SELECT pulse.enqueue('k', lane => 'g7', max_attempts => 1000) AS job \gset
DO $$
BEGIN
    FOR v_run IN 1..103 LOOP
        PERFORM pulse.fail(c.lease, 'error ' || v_run, retry_in => '0')
        FROM pulse.claim_batch('w', 'g7') AS c;
    END LOOP;
END;
$$;
-- proves: G7
SELECT results_eq(
    format('SELECT count(*), min(x.error), max(x.attempt) FROM pulse_internal.failure AS x WHERE x.job = %s', :job),
    $$VALUES (100::bigint, 'error 10', 103)$$,
    'guarantee 7: every attempt''s error is kept, the newest hundred'
);

-- 8: buffers in test_plans.py and test_old_snapshot.py; here, that no mark costs correctness: claim/claim.sql

SELECT pg_temp.fill(500, 'g8', 'crowd');
SELECT pg_temp.fill(2, 'g8', 'mine', -5);
-- proves: G8
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'g8', 5, kinds => '{mine}') AS c WHERE c.kind = 'mine'),
    2::bigint, 'guarantee 8: a claim finds its kinds behind a backlog of others'
);

-- 9: ten claimers in slots-with-ten-claimers.spec

SELECT pulse.set_lane('g9', max_slots => 3);
SELECT pg_temp.fill(20, 'g9');
-- proves: G9
SELECT is(
    (SELECT count(*) FROM generate_series(1, 10) AS n, LATERAL pulse.claim_batch('w' || n, 'g9', 2) AS c),
    3::bigint, 'guarantee 9: never one more running job than max_slots'
);
SELECT pg_temp.fill(1, 'g9-other');
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'g9-other')), 1::bigint,
    'guarantee 9: a full lane never delays another'
);
SELECT pulse.set_lane('g9-one', max_slots => 1);
SELECT pulse.enqueue('k', to_jsonb(n), lane => 'g9-one') AS job FROM generate_series(1, 5) AS n \g /dev/null
CREATE TEMPORARY TABLE ran (n bigserial, payload jsonb);
DO $$
DECLARE
    v_job record;
BEGIN
    FOR v_round IN 1..6 LOOP
        FOR v_job IN SELECT c.* FROM pulse.claim_batch('w', 'g9-one', 9) AS c LOOP
            INSERT INTO ran (payload) VALUES (v_job.payload);
            PERFORM pulse.complete(v_job.lease);
        END LOOP;
    END LOOP;
END;
$$;
SELECT is(
    (SELECT jsonb_agg(r.payload ORDER BY r.n) FROM ran AS r), '[1, 2, 3, 4, 5]',
    'guarantee 9: max_slots 1 runs a lane strictly in order, one at a time'
);

-- 10: against an open claim in pause-against-claim.spec

SELECT pg_temp.fill(5, 'g10');
SELECT c.lease FROM pulse.claim_batch('w', 'g10') AS c \gset
SELECT pulse.pause('alice', 'because') AS a, pulse.pause('bob') AS b \gset
-- proves: G10
SELECT is_empty($$SELECT * FROM pulse.claim_batch('w', 'g10')$$, 'guarantee 10: no claim while paused');
SELECT lives_ok($$SELECT pulse.enqueue('k', lane => 'g10')$$, 'guarantee 10: enqueue goes on');
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'ok', 'guarantee 10: heartbeat goes on'
);
SELECT lives_ok(format('SELECT pulse.complete(%s)', :lease), 'guarantee 10: complete goes on');
SELECT lives_ok('SELECT pulse.reap()', 'guarantee 10: reap goes on');
SELECT row_eq(
    $$SELECT s.held_by, s.reason, s.held_at <= clock_timestamp() FROM pulse.pause_status() AS s WHERE s.holder = 'alice'$$,
    ROW (session_user, 'because'::text, true), 'guarantee 10: it says who, why, since when'
);
SELECT is(
    (SELECT c.relpersistence FROM pg_class AS c WHERE c.oid = 'pulse_internal.hold'::regclass), 'p',
    'guarantee 10: it is a row of a logged table, so it survives restarts'
);
SELECT pulse.resume('alice') AS r \gset
SELECT is_empty($$SELECT * FROM pulse.claim_batch('w', 'g10')$$, 'guarantee 10: two holders');
SELECT pulse.resume('bob') AS r \gset
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'g10')), 1::bigint, 'guarantee 10: two resumes'
);

-- 11

SAVEPOINT here;
SELECT pulse.enqueue('k', lane => 'g11', unique_key => 'u') AS job \gset
ROLLBACK TO here;
-- proves: G11
SELECT is(
    pg_temp.state(:job), NULL, 'guarantee 11: an enqueue that is rolled back never happened'
);
SELECT ok(
    (SELECT o.created FROM pulse.enqueue_one('k', lane => 'g11', unique_key => 'u') AS o),
    'guarantee 11: its key neither'
);

-- 12

SELECT pg_sleep(0.02);
SELECT pulse.enqueue('k', lane => 'g12') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'g12') AS c \gset
-- proves: G12
SELECT ok(
    (
        SELECT l.claimed_at > now() + interval '20 ms' AND l.lease_until > now() + interval '30.02 s'
        FROM pulse_internal.lease AS l WHERE l.lease = :lease
    ),
    'guarantee 12: a claim in an old transaction gets a whole lease'
);
SELECT ok(
    (SELECT b.enqueued_at > now() + interval '20 ms' FROM pulse_internal.body AS b WHERE b.job = :job),
    'guarantee 12: a job is as old as it is'
);
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~* '\m(now\(\)|current_timestamp|transaction_timestamp|statement_timestamp)'
        -- redeem asks which statement this is, and not what time.
        AND p.proname NOT IN ('upkeep_budget', 'redeem')
    $$,
    'guarantee 12: no function asks the frozen clock'
);
SELECT is_empty(
    $$
    SELECT d.adrelid::regclass
    FROM pg_attrdef AS d
    JOIN pg_class AS c ON c.oid = d.adrelid
    WHERE c.relnamespace = 'pulse_internal'::regnamespace
        AND pg_get_expr(d.adbin, d.adrelid) ~* '\m(now\(\)|current_timestamp)'
    $$,
    'guarantee 12: nor does a default'
);

-- 13: test_dump_restore.py; hygiene.sql: every table and sequence is marked
-- 14: tests/upgrade/test_upgrade.py

-- 15

SELECT pg_temp.fill(3, 'g15', 'known');
SELECT pg_temp.fill(3, 'g15', 'unknown', 9);
-- proves: G15
SELECT results_eq(
    $$SELECT DISTINCT c.kind FROM pulse.claim_batch('w', 'g15', 9, kinds => '{known}') AS c$$,
    $$VALUES ('known')$$, 'guarantee 15: a worker claims only the kinds that it names'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'g15' AND r.attempts = 0), 3::bigint,
    'guarantee 15: and burns no others'
);

-- 16

SELECT pg_temp.fill(4, 'g16');
SELECT array_agg(c.lease) AS l FROM pulse.claim_batch('w', 'g16', 4) AS c \gset
SELECT pulse.cancel(x.job) AS c FROM pulse_internal.lease AS x WHERE x.lease = (:'l'::bigint [])[4] \gset
CREATE TEMPORARY TABLE reports AS
SELECT v.verb, format(v.call, (:'l'::bigint [])[v.n]) AS call
FROM (
    VALUES (1, 'complete', 'complete(%s)'), (2, 'fail', 'fail(%s)'),
    (3, 'snooze', 'snooze(%s, ''1 h'')'), (4, 'ack_cancel', 'ack_cancel(%s)')
) AS v (n, verb, call);
-- proves: G16
SELECT lives_ok('SELECT pulse.' || r.call, format('guarantee 16: %s succeeds', r.verb))
FROM reports AS r;
CREATE TEMPORARY TABLE before AS
SELECT j.* FROM pulse.jobs AS j WHERE j.lane = 'g16';
SELECT lives_ok('SELECT pulse.' || r.call, format('guarantee 16: a repeated %s succeeds again', r.verb))
FROM reports AS r;
SELECT is_empty(
    $$
    SELECT j.job_id, j.state, j.failures FROM pulse.jobs AS j WHERE j.lane = 'g16'
    EXCEPT
    SELECT b.job_id, b.state, b.failures FROM before AS b
    $$,
    'guarantee 16: and changes nothing'
);
SELECT pulse.enqueue('k', lane => 'g16k', unique_key => 'u', unique_for => '1 h') AS job \gset
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'g16k') AS c;
SELECT is(
    pulse.enqueue('k', lane => 'g16k', unique_key => 'u', unique_for => '1 h'), :job::bigint,
    'guarantee 16: a repeated enqueue finds the first job, even finished, within unique_for'
);

-- 17: settings/node.sql

SELECT pulse.set_node(1023);
-- proves: G17
SELECT is(
    pulse.node_of(pulse.enqueue('k', lane => 'g17')), 1023, 'guarantee 17: ids carry the node'
);
SELECT cmp_ok(
    (1023::numeric * 2::numeric ^ 43) + 8 * 10::numeric ^ 12, '<', 2::numeric ^ 53,
    'guarantee 17: and stay below 2^53 for 8 × 10¹² jobs of each node'
);
SELECT cmp_ok(
    (SELECT min(l.lease) FROM pulse_internal.lease AS l), '>=', 1::bigint << 10,
    'guarantee 17: a lease is a sequence value above ten random bits'
);

-- Rules that the catalog can answer for

-- proves: R17
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~ 'pg_(try_)?advisory_lock(_shared)?\('
        AND p.prosrc !~ '''pulse_internal\.(ready|job_progress)''::regclass'
    $$,
    'rule 17: session-level locks are for the bells alone'
);
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~ 'advisory_xact_lock'
        AND p.prosrc !~ 'advisory_xact_lock(_shared)?\(\s*(''pulse_internal\.[a-z_]+''::regclass::oid|lock_out_claims\.class|v_class)'
    $$,
    'rule 17: every lock has two keys, the first of them the oid of one of our tables'
);
-- proves: R18
SELECT set_eq(
    $$
    SELECT i.indrelid::regclass::text
    FROM pg_index AS i
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indisunique
        AND i.indnkeyatts = 1
        AND a.attname = 'job'
        AND i.indrelid::regclass::text IN (
            'pulse_internal.approval', 'pulse_internal.waiting', 'pulse_internal.ready', 'pulse_internal.lease', 'pulse_internal.finished'
        )
    $$,
    '{pulse_internal.approval,pulse_internal.waiting,pulse_internal.ready,pulse_internal.lease,pulse_internal.finished}'::text [],
    'rule 18: every state table has a unique index on the job'
);
SELECT is_empty(
    $$
    SELECT c.conname
    FROM pg_constraint AS c
    WHERE c.contype = 'f'
        AND c.connamespace = 'pulse_internal'::regnamespace
    $$,
    'rule 18: and there is no foreign key between them'
);

SELECT is_empty('SELECT * FROM pulse.check()', 'and check() finds every invariant kept');

SELECT * FROM finish();

ROLLBACK;
