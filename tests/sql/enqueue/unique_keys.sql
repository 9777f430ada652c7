-- Unique keys: at most one waiting or running job per key and lane.
BEGIN;

SELECT plan(81);

CREATE FUNCTION pg_temp.same(unique_key text, expected bigint, because text)
RETURNS text
LANGUAGE sql
AS $$ SELECT is(pulse.enqueue('k', unique_key => same.unique_key), same.expected, because) $$;

-- skip

SELECT pulse.enqueue('k', '{"n": 1}', unique_key => 'a') AS job \gset
SELECT is(
    pulse.enqueue('k', '{"n": 2}', unique_key => 'a'), :job::bigint,
    'skip, the default, returns the job that has the key'
);
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :job), '{"n": 1}'::jsonb,
    'and leaves it as it is'
);
SELECT is(
    pulse.enqueue('other-kind', unique_key => 'a'), :job::bigint,
    'a key is the lane''s, whatever the kind'
);
SELECT isnt(
    pulse.enqueue('k', lane => 'elsewhere', unique_key => 'a'), :job::bigint,
    'and each lane has its own'
);
SELECT results_eq(
    $$SELECT o.job_id, o.created FROM pulse.enqueue_one('k', unique_key => 'a') AS o$$,
    format('VALUES (%s::bigint, false)', :job), 'enqueue_one says that it found one'
);
SELECT is(
    pulse.enqueue('k', unique_key => 'a', on_conflict => NULL), :job::bigint,
    'no on_conflict is skip'
);
SELECT isnt(pulse.enqueue('k'), pulse.enqueue('k'), 'jobs without a key are never the same');
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', unique_key => 'a', on_conflict => 'error')$$, 'PU102', NULL,
    'error raises'
);

-- Every state that is not over keeps the key

SELECT pulse.enqueue('k', unique_key => 'approval', requires_approval => true) AS job \gset
SELECT pg_temp.same('approval', :job, 'a job that awaits approval has its key');
SELECT pulse.enqueue('k', unique_key => 'scheduled', delay => '1 h') AS job \gset
SELECT pg_temp.same('scheduled', :job, 'so has a scheduled one');
SELECT pulse.enqueue('k', unique_key => 'life', lane => 'life') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'life') AS c \gset
SELECT is(
    pulse.enqueue('k', unique_key => 'life', lane => 'life'), :job::bigint, 'a running one'
);
SELECT pulse.fail(:lease, 'oops', retry_in => '1 h');
SELECT is(
    pulse.enqueue('k', unique_key => 'life', lane => 'life'), :job::bigint, 'a retrying one'
);
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s' WHERE job = :job;
DELETE FROM pulse_internal.due_mark;
SELECT c.lease FROM pulse.claim_batch('w', 'life') AS c \gset
SELECT pulse.snooze(:lease, '1 h');
SELECT is(
    pulse.enqueue('k', unique_key => 'life', lane => 'life'), :job::bigint, 'a snoozed one'
);
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s' WHERE job = :job;
SELECT c.lease FROM pulse.claim_batch('w', 'life') AS c \gset
SELECT r.verdict FROM pulse.release(ARRAY[:lease]) AS r \gset
SELECT is(
    pulse.enqueue('k', unique_key => 'life', lane => 'life'), :job::bigint,
    'and a released one'
);
SELECT c.lease FROM pulse.claim_batch('w', 'life') AS c \gset
SELECT pulse.complete(:lease);
SELECT isnt(
    pulse.enqueue('k', unique_key => 'life', lane => 'life'), :job::bigint,
    'a completed job gives it back'
);

-- However it ended

SELECT pulse.enqueue('k', unique_key => 'end', lane => 'end', max_attempts => 1) AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'end') AS c \gset
SELECT pulse.fail(:lease);
SELECT is(pg_temp.state(:job), 'dead', 'a job dies');
SELECT is_empty('SELECT * FROM pulse_internal.job_key WHERE lane = ''end''', 'and gives the key back');
SELECT pulse.enqueue('k', unique_key => 'end', lane => 'end', max_attempts => 1) AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'end') AS c \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 s' WHERE job = :job;
SELECT pulse.reap() AS n \gset
SELECT is(pg_temp.state(:job), 'dead', 'a job is reaped');
SELECT is_empty('SELECT * FROM pulse_internal.job_key WHERE lane = ''end''', 'and gives the key back');
SELECT pulse.enqueue('k', unique_key => 'end', lane => 'end') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'end') AS c \gset
SELECT pulse.cancel(:job) AS c \gset
SELECT r.verdict FROM pulse.release(ARRAY[:lease]) AS r \gset
SELECT is(pg_temp.state(:job), 'cancelled', 'a job is released after a cancel request');
SELECT is_empty('SELECT * FROM pulse_internal.job_key WHERE lane = ''end''', 'and gives the key back');
SELECT pulse.enqueue('k', unique_key => 'end', lane => 'end') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'end') AS c \gset
SELECT pulse.cancel(:job) AS c \gset
SELECT pulse.ack_cancel(:lease);
SELECT is_empty(
    'SELECT * FROM pulse_internal.job_key WHERE lane = ''end''', 'so does an acknowledged cancel'
);

-- replace

SELECT pulse.enqueue('k', '{"n": 1}', unique_key => 'r', priority => 1) AS job \gset
SELECT is(
    pulse.enqueue('k', '{"n": 2}', unique_key => 'r', priority => 5, on_conflict => 'replace'),
    :job::bigint, 'replace returns the same job'
);
SELECT row_eq(
    format(
        'SELECT b.payload, r.rank, r.keyed FROM pulse_internal.body AS b JOIN pulse_internal.ready AS r USING (job) WHERE b.job = %s',
        :job
    ),
    ROW ('{"n": 2}'::jsonb, -5, true),
    'with the new payload and priority'
);
SELECT pulse.enqueue('k', unique_key => 'r', on_conflict => 'replace', delay => '1 h') AS same \gset
SELECT is(pg_temp.state(:job), 'scheduled', 'a run_at to come takes a ready job out of line');
SELECT pulse.enqueue('k', '{"n": 3}', unique_key => 'r', on_conflict => 'replace') AS same \gset
SELECT is(pg_temp.state(:job), 'ready', 'and none puts a scheduled one into it');
SELECT row_eq(
    format(
        'SELECT b.payload, r.rank FROM pulse_internal.body AS b JOIN pulse_internal.ready AS r USING (job) WHERE b.job = %s',
        :job
    ),
    ROW ('{"n": 3}'::jsonb, 0), 'with payload and priority again'
);
SELECT results_eq(
    $$SELECT o.job_id, o.created FROM pulse.enqueue_one('k', unique_key => 'r', on_conflict => 'replace') AS o$$,
    format('VALUES (%s::bigint, false)', :job), 'a replaced job was not created'
);
SELECT pulse.enqueue('k', unique_key => 'ra', requires_approval => true) AS job \gset
SELECT a.expires_at, a.asked_at FROM pulse_internal.approval AS a WHERE a.job = :job \gset
SELECT pulse.enqueue(
    'k', '{"n": 9}', unique_key => 'ra', priority => 4, on_conflict => 'replace'
) AS same \gset
SELECT is(pg_temp.state(:same), 'awaiting_approval', 'replace needs no less approval');
SELECT row_eq(
    format(
        'SELECT b.payload, a.rank, a.expires_at, a.asked_at FROM pulse_internal.body AS b JOIN pulse_internal.approval AS a USING (job) WHERE b.job = %s',
        :same
    ),
    ROW ('{"n": 9}'::jsonb, -4, :'expires_at'::timestamptz, :'asked_at'::timestamptz),
    'and does not extend the time for it'
);
SELECT pulse.enqueue('k', '{"n": 1}', unique_key => 'rr', lane => 'rr') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'rr') AS c \gset
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', '{"n": 2}', unique_key => 'rr', lane => 'rr', on_conflict => 'replace')$$,
    'PU103', NULL, 'a running job cannot be replaced'
);
SELECT is(
    (SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :job), '{"n": 1}'::jsonb,
    'and keeps its payload'
);
SELECT pulse.fail(:lease, 'oops', retry_in => '1 h');
SELECT pulse.enqueue(
    'k', unique_key => 'rr', lane => 'rr', on_conflict => 'replace', delay => '2 h'
) AS same \gset
SELECT row_eq(
    format(
        'SELECT w.attempts, w.failures, w.retrying, w.last_lease FROM pulse_internal.waiting AS w WHERE w.job = %s',
        :job
    ),
    ROW (1, 1, true, :lease::bigint),
    'a retrying job that is replaced keeps its attempts and failures'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', to_jsonb(repeat('x', 9000000)), unique_key => 'r', on_conflict => 'replace')$$,
    'PU003', NULL, 'replace obeys the size of payloads'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', run_at => 'infinity', unique_key => 'r', on_conflict => 'replace')$$,
    'PU002', NULL, 'and every other bound'
);

-- unique_for

SELECT pulse.enqueue('k', unique_key => 'f', unique_for => '1 h', lane => 'f') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'f') AS c \gset
SELECT is(
    (SELECT k.expires_at FROM pulse_internal.job_key AS k WHERE k.job = :job), NULL,
    'unique_for does not run while the job does'
);
SELECT pulse.complete(:lease);
SELECT ok(
    (
        SELECT k.expires_at - clock_timestamp() BETWEEN interval '59 min' AND interval '60 min'
        FROM pulse_internal.job_key AS k WHERE k.job = :job
    ),
    'it begins when the job has finished'
);
-- proves: G16
SELECT is(
    pulse.enqueue('k', unique_key => 'f', lane => 'f'), :job::bigint,
    'guarantee 16: an enqueue repeated with its key finds the first job, even finished'
);
SELECT is(
    pulse.enqueue('k', unique_key => 'f', lane => 'f', on_conflict => 'replace'), :job::bigint,
    'replace finds it as well, and can change nothing'
);
SELECT is(pg_temp.state(:job), 'completed', 'for it has finished');
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', unique_key => 'f', lane => 'f', on_conflict => 'error')$$,
    'PU102', NULL, 'error raises'
);
SELECT is(
    pulse.enqueue('k', unique_key => 'f', lane => 'f', unique_for => '1 year'), :job::bigint,
    'the unique_for of a repeated enqueue'
);
SELECT ok(
    (SELECT k.expires_at < clock_timestamp() + interval '1 h' FROM pulse_internal.job_key AS k WHERE k.job = :job),
    'extends nothing'
);
UPDATE pulse_internal.job_key SET expires_at = clock_timestamp() - interval '1 s' WHERE job = :job;
SELECT pulse.enqueue('k', unique_key => 'f', lane => 'f') AS later \gset
SELECT isnt(:later::bigint, :job::bigint, 'when it is over, the key is free');
SELECT is(
    (SELECT k.job FROM pulse_internal.job_key AS k WHERE k.lane = 'f'), :later::bigint,
    'and belongs to the next'
);
SELECT pulse.enqueue('k', unique_key => 'zero', unique_for => '0', lane => 'zero') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'zero') AS c \gset
SELECT pulse.complete(:lease);
SELECT isnt(
    pulse.enqueue('k', unique_key => 'zero', lane => 'zero'), :job::bigint,
    'a unique_for of nothing is over at once'
);
SELECT pulse.enqueue('k', unique_key => 'fd', unique_for => '1 h', lane => 'fd', max_attempts => 1) AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'fd') AS c \gset
SELECT pulse.fail(:lease);
SELECT is(
    pulse.enqueue('k', unique_key => 'fd', lane => 'fd'), :job::bigint,
    'unique_for counts for dead jobs'
);
SELECT pulse.enqueue('k', unique_key => 'fc', unique_for => '1 h', lane => 'fc') AS job \gset
SELECT pulse.cancel(:job) AS c \gset
SELECT is(
    pulse.enqueue('k', unique_key => 'fc', lane => 'fc'), :job::bigint, 'and cancelled ones'
);

-- retry and move

SELECT pulse.enqueue('k', unique_key => 'again', lane => 'again', max_attempts => 1) AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'again') AS c \gset
SELECT pulse.fail(:lease);
SELECT pulse.enqueue('k', unique_key => 'again', lane => 'again') AS second \gset
-- proves: R21
SELECT throws_ok(
    format('SELECT pulse.retry(%s)', :job), 'PU102', NULL,
    'rule 21: a dead job is not retried onto a key that is taken'
);
SELECT is(pg_temp.state(:job), 'dead', 'and stays dead');
SELECT pulse.cancel(:second) AS c \gset
SELECT lives_ok(format('SELECT pulse.retry(%s)', :job), 'once it is free it is');
SELECT is(
    pulse.enqueue('k', unique_key => 'again', lane => 'again'), :job::bigint,
    'and the retried job has it'
);
SELECT pulse.enqueue('k', unique_key => 'again', lane => 'away') AS other \gset
SELECT throws_ok(
    format('SELECT pulse.move(%s, %L)', :job, 'away'), 'PU102', NULL,
    'rule 21: nor is a job moved to a lane where its key is taken'
);
SELECT is(
    (SELECT r.lane FROM pulse_internal.ready AS r WHERE r.job = :job) COLLATE "default", 'again',
    'it stays'
);
SELECT lives_ok(
    format('SELECT pulse.move(%s, %L)', :job, 'third'), 'it may go where it is free'
);
SELECT is(
    (SELECT k.lane FROM pulse_internal.job_key AS k WHERE k.job = :job) COLLATE "default", 'third',
    'and takes the key along'
);

-- A replaced job keeps its place

SELECT pulse.enqueue('k', '1', lane => 'line', unique_key => 'first') AS job \gset
SELECT pulse.enqueue('k', '0', lane => 'line') AS behind \gset
SELECT pulse.enqueue(
    'k', '2', lane => 'line', unique_key => 'first', on_conflict => 'replace', run_at => now()
) AS same
FROM generate_series(1, 3) \g /dev/null
SELECT results_eq(
    $$SELECT c.job_id, c.payload FROM pulse.claim_batch('w', 'line') AS c$$,
    format('VALUES (%s::bigint, ''2''::jsonb)', :job),
    'a job that is replaced again and again is still first'
);
SELECT pulse.enqueue('k', '1', lane => 'line', unique_key => 'last') AS job \gset
SELECT pulse.enqueue(
    'k', '2', lane => 'line', unique_key => 'last', on_conflict => 'replace', priority => -1
) AS same \g /dev/null
SELECT pulse.enqueue('k', '0', lane => 'line') AS later \gset
SELECT is(
    array(SELECT c.job_id FROM pulse.claim_batch('w', 'line', 9) AS c),
    ARRAY[:behind, :later, :job]::bigint [],
    'another priority gives it another place'
);

-- Whose job a replace may change

SELECT pulse.enqueue('k', '1', unique_key => 'mine', requires_approval => true) AS job \gset
SELECT o.job_id AS again, o.created
FROM pulse.enqueue_one('k', '2', unique_key => 'mine', on_conflict => 'replace', requires_approval => true) AS o \gset
SELECT ok(:again <> :job AND :'created', 'a job that awaits approval makes way for a new one');
SELECT throws_ok(
    format('SELECT pulse.approve(%s)', :job), 'PU105', NULL,
    'so that what was looked at before is not approved with another payload'
);
SELECT row_eq(
    format('SELECT j.state, j.ended_by COLLATE "default", j.last_error FROM pulse.jobs AS j WHERE j.job_id = %s', :job),
    ROW ('cancelled'::text, 'replace'::text, format('replaced by job %s', :again)), 'it says why'
);
SELECT row_eq(
    format('SELECT a.who, a.verb, a.after ->> %L FROM pulse.audit AS a WHERE a.job_id = %s', 'replaced_by', :job),
    ROW (current_user, 'replace'::text, :'again'::text), 'and so does the audit'
);
SELECT throws_ok(
    format('SELECT pulse.retry(%s)', :job), 'PU102', NULL, 'the new one has its key'
);
SELECT m AS listed FROM pulse.enqueue_many(
    '[{"kind": "k", "payload": 2, "unique_key": "mine", "on_conflict": "replace"}]'
) AS m \gset
SELECT row_eq(
    format('SELECT j.state, j.payload FROM pulse.jobs AS j WHERE j.job_id = %s AND j.job_id <> %s', :listed, :again),
    ROW ('awaiting_approval'::text, '2'::jsonb), 'a list makes a new one too'
);
\set again :listed
SELECT pulse.approve(:again) \g /dev/null

-- What was approved runs as it was approved, whatever a replace says

SELECT throws_ok(
    $$SELECT pulse.enqueue('k', '3', unique_key => 'mine', on_conflict => 'replace', requires_approval => true)$$,
    'PU105', NULL, 'one that was approved cannot: the new payload was not'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', '3', unique_key => 'mine', on_conflict => 'replace')$$,
    'PU105', NULL, 'nor by a call that needs no approval'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('harmless', '3', unique_key => 'mine', on_conflict => 'replace')$$,
    'PU102', NULL, 'nor by one of another kind'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('k', '{3}', unique_key => 'mine', on_conflict => 'replace')$$,
    'PU105', NULL, 'nor by enqueue_many with payloads'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('[{"kind": "k", "payload": 3, "unique_key": "mine", "on_conflict": "replace"}]')$$,
    'PU105', NULL, 'nor by enqueue_many with a list'
);
SELECT is((SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :again), '2', 'it is as it was approved');
SELECT c.lease FROM pulse.claim_batch('w', max_jobs => 100) AS c WHERE c.job_id = :again \gset
SELECT pulse.fail(:lease, 'oops', retry_in => '1 h');
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', '3', unique_key => 'mine', on_conflict => 'replace')$$,
    'PU105', NULL, 'also while it waits for its retry'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue_many('[{"kind": "a", "unique_key": "l"}, {"kind": "b", "unique_key": "l", "on_conflict": "replace"}]')$$,
    'PU102', NULL, 'inside one list a replace does not change the kind either'
);
SELECT is(
    (
        SELECT pg_temp.state(m.job_id)
        FROM pulse.enqueue_many(
            '[{"kind": "a", "unique_key": "l"}, {"kind": "a", "unique_key": "l", "on_conflict": "replace", "requires_approval": true}]'
        ) AS m (job_id)
        LIMIT 1
    ),
    'awaiting_approval', 'and brings its need for approval along'
);
CREATE ROLE pulse_test_other;
SELECT pulse.grant_access('pulse_test_other', 'producer') \g /dev/null
SELECT pulse.enqueue('k', '1', unique_key => 'theirs') AS job \gset
SET ROLE pulse_test_other;
SELECT pulse.enqueue('k', '2', unique_key => 'theirs') AS again \gset
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', '2', unique_key => 'theirs', on_conflict => 'replace')$$,
    'PU102', NULL, 'a producer cannot replace the job of another role'
);
RESET ROLE;
SELECT is(:again, :job, 'but its key finds it');
SELECT is((SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :job), '1', 'which is as it was');

-- Odd keys

SELECT isnt(
    pulse.enqueue('k', unique_key => 'A'), pulse.enqueue('k', unique_key => 'a'),
    'keys differ by case'
);
SELECT lives_ok(
    $$SELECT pulse.enqueue('k', unique_key => repeat('€', 333))$$, 'and may be long'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('k', unique_key => repeat('€', 334))$$, 'PU002', NULL,
    'up to 1000 bytes'
);
SELECT is(
    pulse.enqueue('k', unique_key => repeat('€', 333)),
    pulse.enqueue('k', unique_key => repeat('€', 333)), 'without being confused'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong with any of it');

SELECT * FROM finish();

ROLLBACK;
