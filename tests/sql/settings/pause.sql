-- Holds: pauses by holder, drained lanes, and who may go on meanwhile.
BEGIN;

SELECT plan(65);

CREATE FUNCTION pg_temp.claims(lane text DEFAULT 'default')
RETURNS bigint
LANGUAGE sql
AS $$ SELECT count(*) FROM pulse.claim_batch('w', claims.lane) $$;

SELECT pg_temp.fill(20, 'default');
SELECT pg_temp.fill(20, 'other');

-- Everything

SELECT is(pulse.pause('deploy', 'release 7'), true, 'a pause is new');
SELECT is(pulse.pause('deploy', 'again'), false, 'the same holder again is not');
-- proves: R16
SELECT is(pg_temp.claims(), 0::bigint, 'rule 16: while it is held nothing is claimed');
SELECT is(pg_temp.claims('other'), 0::bigint, 'in no lane');
SELECT is(pg_temp.claims('never-seen'), 0::bigint, 'not even in one that is new');
SELECT is_empty(
    $$SELECT * FROM pulse.exchange('w', '{"default": 1, "other": 1}')$$, 'nor by an exchange'
);
SELECT results_eq(
    'SELECT s.lane, s.holder, s.reason, s.held_by FROM pulse.pause_status() AS s',
    $$VALUES (NULL, 'deploy', 'release 7', session_user)$$,
    'pause_status says who, why, by whom; no lane is all of them'
);
SELECT ok(
    (SELECT clock_timestamp() - s.held_at < '1 minute' FROM pulse.pause_status() AS s),
    'and since when'
);
SELECT is(pulse.resume('another'), false, 'another holder cannot resume it');
SELECT is(pulse.resume('deploy', 'default'), false, 'nor the same holder with another scope');
SELECT is(pg_temp.claims(), 0::bigint, 'it is still held');
SELECT is(pulse.resume('deploy'), true, 'its holder can');
SELECT is(pulse.resume('deploy'), false, 'once');
SELECT is(pg_temp.claims(), 1::bigint, 'and jobs are claimed again');

-- Nesting

SELECT pulse.pause('alice') AS p1, pulse.pause('bob') AS p2 \gset
SELECT is(pulse.resume('alice'), true, 'two holders: the first resumes');
SELECT is(pg_temp.claims(), 0::bigint, 'and the second still holds');
SELECT is(pulse.resume('bob'), true, 'the second resumes');
SELECT is(pg_temp.claims(), 1::bigint, 'two holders, two resumes');

-- One lane

SELECT is(pulse.pause('alice', 'disk', 'other'), true, 'a pause may be for one lane');
SELECT is(pg_temp.claims('other'), 0::bigint, 'which then gives nothing');
SELECT is(pg_temp.claims(), 1::bigint, 'while the others do');
SELECT is(pulse.pause('alice', 'net'), true, 'the same holder may hold everything as well');
SELECT is(pulse.resume('alice', 'other'), true, 'and take back one scope');
SELECT is(pg_temp.claims('other'), 0::bigint, 'without the other');
SELECT is(pulse.resume('alice'), true, 'until that is taken back too');
SELECT is(pg_temp.claims('other'), 1::bigint, 'then it goes on');
SELECT is(pulse.resume('alice', 'default'), false, 'a hold that is not there is not');

-- Typos: a lane that nothing names

SELECT throws_ok('SELECT pulse.' || b.call, 'PU013', NULL, b.call || ' is refused')
FROM (
    VALUES
    ('drain_lane(''otehr'')'), ('pause_lane(''otehr'')'), ('resume_lane(''otehr'')'),
    ('pause(''alice'', lane => ''otehr'')'), ('resume(''alice'', ''otehr'')')
) AS b (call);
SELECT is(pulse.drain_lane('otehr', new => true), true, 'unless it is to be drained before it is used');
SELECT is(pulse.resume_lane('otehr'), true, 'a hold names it');
SELECT pulse.hello('w', '{served}') \g /dev/null
SELECT is(pulse.drain_lane('served'), true, 'a worker names it');
SELECT is(pulse.resume_lane('served'), true, 'which is enough to resume it');
SELECT pulse.set_kind('filed', lane => 'filed') \g /dev/null
SELECT is(pulse.resume_lane('filed'), false, 'and so does a kind');

-- Drained lanes

SELECT is(pulse.drain_lane('other', 'move house'), true, 'a lane is drained');
SELECT is(pulse.drain_lane('other'), false, 'once');
SELECT is(pulse.pause_lane('other'), false, 'pause_lane is the same verb');
SELECT is(pg_temp.claims('other'), 0::bigint, 'nothing more is claimed from it');
SELECT is(pg_temp.claims(), 1::bigint, 'but from others');
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lane = 'other'), 1::bigint,
    'what runs in it goes on'
);
SELECT results_eq(
    'SELECT s.lane, s.holder, s.reason FROM pulse.pause_status() AS s',
    $$VALUES ('other', 'drain', 'move house')$$,
    'a drained lane is a hold of its own'
);
SELECT pulse.pause('alice', lane => 'other') AS p \gset
SELECT is(pulse.resume_lane('other', 'done'), true, 'resume_lane ends it');
SELECT is(pulse.resume_lane('other'), false, 'once');
SELECT is(pg_temp.claims('other'), 0::bigint, 'while pauses of others stay');
SELECT pulse.resume('alice', 'other') AS r \gset
SELECT is(pg_temp.claims('other'), 1::bigint, 'until they are resumed');
SELECT is(pulse.pause_lane('other'), true, 'pause_lane drains');
SELECT throws_ok(
    $$SELECT pulse.resume('drain', 'other')$$, 'PU002', NULL,
    'resume cannot end a drain: that is resume_lane'
);
SELECT throws_ok(
    $$SELECT pulse.pause('drain')$$, 'PU002', NULL, 'nor can pause be a drain'
);
SELECT is(pulse.resume_lane('other'), true, 'and resume_lane can');

-- What goes on

SELECT pulse.enqueue('k', lane => 'busy', max_attempts => 1) AS job \gset
SELECT pulse.enqueue('k', lane => 'busy') AS job2 \gset
SELECT c.lease FROM pulse.claim_batch('w', 'busy') AS c \gset
SELECT c.lease AS lease2 FROM pulse.claim_batch('w', 'busy') AS c \gset
SELECT pulse.pause('deploy') AS p \gset
SELECT lives_ok($$SELECT pulse.enqueue('k')$$, 'a pause lets enqueue go on');
SELECT is(
    (SELECT h.verdict FROM pulse.heartbeat(ARRAY[:lease]) AS h), 'ok', 'and heartbeats'
);
SELECT lives_ok(format('SELECT pulse.complete(%s)', :lease), 'and reports');
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 s' WHERE lease = :lease2;
SELECT is(pulse.reap(), 1::bigint, 'and reaping');
UPDATE pulse_internal.waiting SET run_at = run_at - interval '1 hour';
DELETE FROM pulse_internal.due_mark;
DELETE FROM pulse_internal.upkeep_run;
SELECT is(
    (SELECT t.did FROM pulse.tick() AS t WHERE t.step = 'promote'), 1::bigint,
    'and promotion'
);
SELECT is(pulse.resume('deploy'), true, 'until it is resumed');

-- Audit and arguments

SELECT results_eq(
    $$
    SELECT a.verb, a.lane COLLATE "default", a.reason
    FROM pulse_internal.audit_entry AS a
    WHERE a.reason IN ('release 7', 'again', 'disk', 'move house', 'done')
    ORDER BY a.entry
    $$,
    $$
    VALUES ('pause', NULL, 'release 7'), ('pause', 'other', 'disk'),
        ('drain_lane', 'other', 'move house'), ('resume_lane', 'other', 'done')
    $$,
    'the audit has each that changed something, and none that did not'
);
SELECT throws_ok(
    'SELECT pulse.' || b.call, 'PU002', NULL, left(b.call, 40) || ' is refused'
)
FROM (
    VALUES
    ('pause(NULL)'), ('pause('''')'), ('pause(''a'', lane => '''')'),
    ('resume(NULL)'), ('drain_lane(NULL)'), ('resume_lane('''')')
) AS b (call);

SELECT * FROM finish();

ROLLBACK;
