-- When a key is taken: follow, cancel, and max_delay.
BEGIN;

SELECT plan(79);

-- Each lane here has one key. One row a job: what it is and what it holds.
CREATE FUNCTION pg_temp.jobs(lane text)
RETURNS TABLE (job bigint, state text, payload jsonb, follows boolean)
LANGUAGE sql
AS $$
    SELECT j.job_id, j.state, b.payload, k.follows
    FROM pulse.jobs AS j
    JOIN pulse_internal.body AS b ON b.job = j.job_id
    LEFT JOIN pulse_internal.job_key AS k ON k.job = j.job_id
    WHERE j.lane = jobs.lane
    ORDER BY j.job_id
$$;

-- A job of the lane that runs: its id and lease.
CREATE FUNCTION pg_temp.run(lane text, payload jsonb DEFAULT '{}', unique_for interval DEFAULT NULL)
RETURNS TABLE (job bigint, lease bigint)
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pulse.enqueue('k', run.payload, run.lane, unique_key => 'a', unique_for => run.unique_for);
    RETURN QUERY SELECT c.job_id, c.lease FROM pulse.claim_batch('w', run.lane) AS c;
END
$$;

CREATE FUNCTION pg_temp.again(lane text, on_conflict text, payload jsonb DEFAULT '{}')
RETURNS bigint
LANGUAGE sql
AS $$ SELECT pulse.enqueue('k', again.payload, again.lane, unique_key => 'a', on_conflict => again.on_conflict) $$;

-- follow

SELECT pulse.enqueue('k', '1', 'f', unique_key => 'a') AS job \gset
SELECT is(pg_temp.again('f', 'follow', '2'), :job::bigint, 'follow of a job that waits is a replace');
SELECT is((SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :job), '2', 'with the new payload');
SELECT c.lease FROM pulse.claim_batch('w', 'f') AS c \gset
SELECT o.job_id AS next, o.created FROM pulse.enqueue_one('k', '3', 'f', unique_key => 'a', on_conflict => 'follow') AS o \gset
SELECT ok(:'created' AND :next <> :job, 'follow of a running job makes a new one');
-- proves: R21
SELECT results_eq(
    $$SELECT * FROM pg_temp.jobs('f')$$,
    format($$VALUES (%s::bigint, 'running', '2'::jsonb, false), (%s, 'blocked', '3', true)$$, :job, :next),
    'rule 21: which is blocked, while the running one has the key'
);
SELECT is(pg_temp.again('f', 'follow', '4'), :next::bigint, 'a second call replaces the follower');
SELECT is((SELECT b.payload FROM pulse_internal.body AS b WHERE b.job = :next), '4', 'with its payload');
SELECT is(pg_temp.again('f', 'skip'), :job::bigint, 'skip finds the one that runs');
SELECT throws_ok($$SELECT pg_temp.again('f', 'replace')$$, 'PU103', NULL, 'replace of it raises as ever');
SELECT throws_ok($$SELECT pg_temp.again('f', 'error')$$, 'PU102', NULL, 'and so does error');
SELECT matches(
    (SELECT string_agg(w.reason, ' ') FROM pulse.why(:next) AS w),
    format('waits for 1 of 1 job: %s \(which it follows: running at w\)', :job), 'why says whom it follows'
);
SELECT is_empty($$SELECT * FROM pulse.claim_batch('w', 'f')$$, 'the follower is not claimed before');
SELECT pulse.complete(:lease);
SELECT results_eq(
    $$SELECT * FROM pg_temp.jobs('f')$$,
    format($$VALUES (%s::bigint, 'completed', '2'::jsonb, NULL::boolean), (%s, 'ready', '4', false)$$, :job, :next),
    'its end hands the key on and puts the follower in line, at once'
);
SELECT c.lease FROM pulse.claim_batch('w', 'f') AS c \gset
SELECT pulse.complete(:lease);
SELECT is_empty($$SELECT * FROM pulse_internal.job_key WHERE lane = 'f'$$, 'the end of the follower gives the key back');

-- However the one before it ends

SELECT * FROM pg_temp.run('retried') \gset
SELECT pg_temp.again('retried', 'follow') AS next \gset
SELECT pulse.fail(:lease, 'oops', retry_in => '0');
SELECT is(pg_temp.state(:next), 'blocked', 'a job that is retried has not ended');
SELECT is(pg_temp.again('retried', 'skip'), :job::bigint, 'and has its key');
SELECT is(pg_temp.again('retried', 'follow', '5'), :next::bigint, 'follow replaces the follower then too, which is newer');
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 s' WHERE job = :job;
SELECT c.lease FROM pulse.claim_batch('w', 'retried') AS c \gset
SELECT pulse.fail(:lease, 'oops', fatal => true);
SELECT is(pg_temp.state(:next), 'ready', 'the follower runs when it is dead');
SELECT throws_ok(format('SELECT pulse.retry(%s)', :job), 'PU102', NULL, 'and has the key, so that is not retried');
SELECT * FROM pg_temp.run('reaped') \gset
SELECT pg_temp.again('reaped', 'follow') AS next \gset
UPDATE pulse_internal.body SET max_attempts = 1 WHERE job = :job;
UPDATE pulse_internal.lease SET lease_until = claimed_at - interval '1 s', reap_at = claimed_at - interval '1 s' WHERE job = :job;
SELECT pulse.reap() \g /dev/null
SELECT is(pg_temp.state(:next), 'ready', 'or reaped');
SELECT * FROM pg_temp.run('forced') \gset
SELECT pg_temp.again('forced', 'follow') AS next \gset
SELECT pulse.cancel(:job, force => true) \g /dev/null
SELECT is(pg_temp.state(:next), 'ready', 'or cancelled');
SELECT * FROM pg_temp.run('released') \gset
SELECT pg_temp.again('released', 'follow') AS next \gset
SELECT pulse.release(ARRAY[:lease]) \g /dev/null
SELECT is(pg_temp.state(:next), 'blocked', 'but not when it is given back');
SELECT * FROM pg_temp.run('spawns') \gset
SELECT pg_temp.again('spawns', 'follow') AS next \gset
SELECT pulse.spawn(:lease, 's', '[{"kind": "k", "lane": "spawned"}]') \g /dev/null
SELECT pulse.complete(:lease);
SELECT is(pg_temp.state(:next), 'ready', 'it waits for no job that the run spawned');

-- unique_for

SELECT * FROM pg_temp.run('window', unique_for => '1 h') \gset
SELECT pg_temp.again('window', 'follow') AS next \gset
SELECT pulse.complete(:lease);
SELECT results_eq(
    $$SELECT k.job, k.follows, k.expires_at FROM pulse_internal.job_key AS k WHERE k.lane = 'window'$$,
    format('VALUES (%s::bigint, false, NULL::timestamptz)', :next), 'a follower takes the key, whatever unique_for said'
);
SELECT * FROM pg_temp.run('over', unique_for => '1 h') \gset
SELECT pulse.complete(:lease);
SELECT is(
    array(SELECT pg_temp.again('over', c.on_conflict) FROM unnest('{follow,cancel}'::text []) AS c (on_conflict)),
    array_fill(:job::bigint, '{2}'), 'within unique_for of a finished job, both find it and change nothing'
);
SELECT is(pg_temp.state(:job), 'completed', 'for it has finished');
UPDATE pulse_internal.job_key SET expires_at = clock_timestamp() - interval '1 s' WHERE lane = 'over';
SELECT isnt(pg_temp.again('over', 'follow'), :job::bigint, 'after that, the key is free');
SELECT * FROM pg_temp.run('gone', unique_for => '1 h') \gset
SELECT pulse.enqueue('k', lane => 'gone', unique_key => 'a', unique_for => '1 h', on_conflict => 'follow') AS next \gset
SELECT pulse.cancel(:next) \g /dev/null
SELECT is_empty(format('SELECT * FROM pulse_internal.job_key WHERE job = %s', :next), 'a follower that is cancelled leaves no key behind');
SELECT isnt(pg_temp.again('gone', 'follow'), :next::bigint, 'and the next one follows anew');

-- Operators and followers

SELECT * FROM pg_temp.run('from') \gset
SELECT pg_temp.again('from', 'follow') AS next \gset
SELECT pulse.move(:next, 'to') \g /dev/null
SELECT results_eq(
    format('SELECT k.lane COLLATE "default", k.follows FROM pulse_internal.job_key AS k WHERE k.job = %s', :next),
    $$VALUES ('to', false)$$, 'a follower that is moved has the key of that lane'
);
SELECT is(pg_temp.state(:next), 'blocked', 'and waits on');
SELECT pulse.complete(:lease);
SELECT is(pg_temp.state(:next), 'ready', 'until that end');

SELECT pulse.enqueue('k', lane => 'to2', unique_key => 'a') AS job \gset
SELECT * FROM pg_temp.run('from2') \gset
SELECT pg_temp.again('from2', 'follow') AS next \gset
SELECT throws_ok(format('SELECT pulse.move(%s, %L)', :next, 'to2'), 'PU102', NULL, 'it is not moved onto a taken key');
SELECT ok((SELECT k.follows FROM pulse_internal.job_key AS k WHERE k.job = :next), 'and follows as before');

-- A job that was moved away leaves its follower behind

SELECT * FROM pg_temp.run('left') \gset
SELECT pg_temp.again('left', 'follow', '1') AS next \gset
SELECT pulse.fail(:lease, 'oops', retry_in => '1 h');
SELECT pulse.move(:job, 'left2') \g /dev/null
SELECT is(pg_temp.again('left', 'follow', '2'), :next::bigint, 'who comes next meets the one that waits for the key');
SELECT ok((SELECT NOT k.follows FROM pulse_internal.job_key AS k WHERE k.job = :next), 'which has it by then');
SELECT throws_ok(format('SELECT pulse.move(%s, %L)', :job, 'left'), 'PU102', NULL, 'so the other cannot come back');

-- If another job has the key when the follower is released, that one is followed

SELECT * FROM pg_temp.run('late2') \gset
SELECT pg_temp.again('late2', 'follow') AS next \gset
UPDATE pulse_internal.job_key SET lane = 'late3' WHERE job = :next;
SELECT pulse.enqueue('k', lane => 'late4', unique_key => 'a') AS other \gset
UPDATE pulse_internal.job_key SET lane = 'late3' WHERE job = :other;
SELECT pulse.complete(:lease);
SELECT is(pg_temp.state(:next), 'blocked', 'it waits for one that took the key meanwhile');
SELECT is((SELECT b.waits_for FROM pulse_internal.blocked AS b WHERE b.job = :next), :other::bigint, 'and for no other');
UPDATE pulse_internal.job_key SET lane = 'late2' WHERE job = :next;
UPDATE pulse_internal.job_key SET lane = 'late4' WHERE job = :other;
SELECT c.lease FROM pulse.claim_batch('w', 'late4') AS c \gset
SELECT pulse.complete(:lease);
SELECT is(pg_temp.state(:next), 'ready', 'until that one has ended');

-- cancel

SELECT pulse.enqueue('k', '1', 'c', unique_key => 'a', unique_for => '1 h') AS job \gset
SELECT o.job_id AS next, o.created FROM pulse.enqueue_one('k', '2', 'c', unique_key => 'a', on_conflict => 'cancel') AS o \gset
SELECT ok(:'created' AND :next <> :job, 'cancel makes a new job');
SELECT results_eq(
    $$SELECT * FROM pg_temp.jobs('c')$$,
    format($$VALUES (%s::bigint, 'cancelled', '1'::jsonb, NULL::boolean), (%s, 'ready', '2', false)$$, :job, :next),
    'in place of the one that waited, whatever its unique_for'
);
SELECT row_eq(
    format('SELECT j.ended_by COLLATE "default", j.last_error FROM pulse.jobs AS j WHERE j.job_id = %s', :job),
    ROW ('replace'::text, format('replaced by job %s', :next)), 'which says why'
);
SELECT row_eq(
    format('SELECT a.who, a.verb, a.after ->> %L FROM pulse.audit AS a WHERE a.job_id = %s', 'replaced_by', :job),
    ROW (current_user, 'replace'::text, :'next'::text), 'and so does the audit'
);
SELECT c.lease FROM pulse.claim_batch('w', 'c') AS c \gset
SELECT pg_temp.again('c', 'cancel', '3') AS third \gset
SELECT ok((SELECT l.cancel_by IS NOT NULL FROM pulse_internal.lease AS l WHERE l.job = :next), 'one that runs is asked to stop');
SELECT is(pg_temp.state(:third), 'blocked', 'and the new one follows it');
SELECT pg_temp.again('c', 'cancel', '4') AS fourth \gset
SELECT results_eq(
    format('SELECT * FROM pg_temp.jobs(%L) WHERE job > %s', 'c', :next),
    format($$VALUES (%s::bigint, 'cancelled', '3'::jsonb, NULL::boolean), (%s, 'blocked', '4', true)$$, :third, :fourth),
    'the newest one follows in place of the one before'
);
SELECT is((SELECT count(*) FROM pulse.audit AS a WHERE a.job_id = :next), 1::bigint, 'it is asked once');
SELECT pulse.ack_cancel(:lease);
SELECT is(pg_temp.state(:fourth), 'ready', 'when it has stopped, the newest runs');
SELECT pulse.enqueue('k', lane => 'child', after => ARRAY[:fourth]) AS child \gset
SELECT pg_temp.again('c', 'cancel', '5') AS fifth \gset
SELECT is(pg_temp.state(:child), 'cancelled', 'what depends on a job that is cancelled so is cancelled too');

SELECT * FROM pg_temp.run('c2') \gset
SELECT pg_temp.again('c2', 'follow') AS next \gset
SELECT pulse.fail(:lease, 'oops', retry_in => '1 h');
SELECT pg_temp.again('c2', 'cancel', '3') AS third \gset
SELECT results_eq(
    $$SELECT * FROM pg_temp.jobs('c2')$$,
    format($$VALUES (%s::bigint, 'cancelled', '{}'::jsonb, NULL::boolean), (%s, 'cancelled', '{}', NULL), (%s, 'ready', '3', false)$$, :job, :next, :third),
    'a job to be retried and its follower are both cancelled for the newest'
);

-- Approval

SELECT pulse.enqueue('k', '{"a": 1}', 'ap', unique_key => 'a', requires_approval => true) AS job \gset
SELECT pg_temp.again('ap', 'follow', '{"b": 2}') AS next \gset
SELECT results_eq(
    $$SELECT * FROM pg_temp.jobs('ap')$$,
    format($$VALUES (%s::bigint, 'cancelled', '{"a": 1}'::jsonb, NULL::boolean), (%s, 'awaiting_approval', '{"b": 2}', false)$$, :job, :next),
    'what awaits approval makes way for a new job'
);
SELECT pulse.approve(:next) \g /dev/null
SELECT throws_ok($$SELECT pg_temp.again('ap', 'follow')$$, 'PU105', NULL, 'what was approved is not replaced by follow');
SELECT pg_temp.again('ap', 'cancel') AS third \gset
SELECT is(pg_temp.state(:next), 'cancelled', 'it can be cancelled for a new one');
SELECT * FROM pg_temp.run('ap2') \gset
SELECT pulse.enqueue('k', lane => 'ap2', unique_key => 'a', on_conflict => 'follow', requires_approval => true) AS next \gset
SELECT is(pg_temp.again('ap2', 'follow'), :next::bigint, 'a follower that needs approval can still be replaced');
SELECT pulse.complete(:lease);
SELECT is(pg_temp.state(:next), 'awaiting_approval', 'and is asked for when it could run');

-- Other kinds, other owners

SELECT * FROM pg_temp.run('other') \gset
SELECT throws_ok(
    format($$SELECT pulse.enqueue('another', lane => 'other', unique_key => 'a', on_conflict => %L)$$, c.on_conflict),
    'PU102', NULL, format('%s of a job of another kind', c.on_conflict)
)
FROM unnest('{follow,cancel}'::text []) AS c (on_conflict);
SET LOCAL client_min_messages = warning;
CREATE ROLE tap_producer;
CREATE ROLE tap_operator;
SELECT pulse.grant_access('tap_producer', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_operator', 'operator') \g /dev/null
SELECT pulse.grant_access('tap_operator', 'producer') \g /dev/null
SET LOCAL ROLE tap_producer;
SELECT throws_ok(
    format($$SELECT pulse.enqueue('k', lane => 'other', unique_key => 'a', on_conflict => %L)$$, c.on_conflict),
    'PU102', NULL, format('%s of a job of another producer', c.on_conflict)
)
FROM unnest('{follow,cancel}'::text []) AS c (on_conflict);
RESET ROLE;
SET LOCAL ROLE tap_operator;
SELECT pulse.enqueue('k', '9', 'other', unique_key => 'a', on_conflict => 'follow') AS next \gset
RESET ROLE;
SELECT is(pg_temp.state(:next), 'blocked', 'an operator may follow any job');

-- max_delay

SELECT pulse.set_kind('d', max_delay => '1 min');
CREATE FUNCTION pg_temp.put_off(lane text, on_conflict text)
RETURNS interval
LANGUAGE sql
AS $$
    SELECT pulse.enqueue('d', '{}', put_off.lane, unique_key => 'a', delay => '50 s', on_conflict => put_off.on_conflict);
    SELECT w.run_at - b.enqueued_at FROM pulse_internal.waiting AS w JOIN pulse_internal.body AS b USING (job) WHERE w.lane = put_off.lane
$$;
SELECT pulse.enqueue('d', lane => d.lane, unique_key => 'a', delay => '50 s') FROM unnest('{replace,follow}'::text []) AS d (lane) \g /dev/null
UPDATE pulse_internal.body SET enqueued_at = enqueued_at - interval '30 s' WHERE kind = 'd';
UPDATE pulse_internal.waiting SET run_at = run_at - interval '30 s' WHERE kind = 'd';
SELECT is(
    array(SELECT pg_temp.put_off(d.lane, d.lane) FROM unnest('{replace,follow}'::text []) AS d (lane)),
    array_fill(interval '1 min', '{2}'), 'replace and follow put a job off to max_delay after it was enqueued, no further'
);
UPDATE pulse_internal.body SET enqueued_at = enqueued_at - interval '1 h' WHERE kind = 'd';
UPDATE pulse_internal.waiting SET run_at = run_at - interval '1 h' WHERE lane = 'replace';
SELECT pulse.enqueue('d', lane => 'replace', unique_key => 'a', delay => '50 s', on_conflict => 'replace') AS job \gset
SELECT is(pg_temp.state(:job), 'ready', 'what has waited that long is put off no more');
SELECT pulse.enqueue('d', lane => 'replace', unique_key => 'a', delay => '50 s', on_conflict => 'replace') AS job \gset
SELECT is(pg_temp.state(:job), 'ready', 'nor taken out of line');
SELECT pulse.enqueue('d', lane => 'far', unique_key => 'a', delay => '1 h') AS job \gset
SELECT ok(pg_temp.put_off('far', 'replace') BETWEEN '50 s' AND '51 s', 'an earlier time is taken as it is');
SELECT pulse.enqueue('d', lane => 'far2', unique_key => 'a', delay => '1 h') AS job \gset
SELECT pulse.enqueue('d', lane => 'far2', unique_key => 'a', delay => '2 h', on_conflict => 'replace') AS job \gset
SELECT ok(
    (SELECT w.run_at < now() + interval '61 min' AND w.run_at > now() + interval '59 min' FROM pulse_internal.waiting AS w WHERE w.job = :job),
    'and what was to wait longer from the first is not put off'
);
SELECT pulse.enqueue('d', lane => 'fd', unique_key => 'a') \g /dev/null
SELECT c.lease FROM pulse.claim_batch('w', 'fd') AS c \gset
SELECT pulse.enqueue('d', lane => 'fd', unique_key => 'a', delay => '50 s', on_conflict => 'follow') AS job \gset
UPDATE pulse_internal.body SET enqueued_at = enqueued_at - interval '1 h' WHERE job = :job;
UPDATE pulse_internal.blocked SET run_at = run_at - interval '1 h' WHERE job = :job;
SELECT pulse.enqueue('d', lane => 'fd', unique_key => 'a', delay => '50 s', on_conflict => 'follow') AS job \gset
SELECT pulse.complete(:lease);
SELECT is(pg_temp.state(:job), 'ready', 'a follower counts from its own enqueue');
SELECT pulse.set_kind('d', max_delay => '0');
SELECT is((SELECT k.max_delay FROM pulse_internal.kind AS k WHERE k.kind = 'd'), NULL, '0 is no bound');
SELECT throws_ok($$SELECT pulse.set_kind('d', max_delay => '-1 s')$$, 'PU002', NULL, 'and less is none');

-- Lists

SELECT * FROM pg_temp.run('list') \gset
SELECT array_agg(e) AS ids FROM pulse.enqueue_many(
    '[{"kind": "k", "payload": [1], "lane": "list", "unique_key": "a", "on_conflict": "follow"},
      {"kind": "k", "payload": [2], "lane": "list", "unique_key": "a", "on_conflict": "follow", "priority": 7},
      {"kind": "k", "payload": [1], "lane": "list", "unique_key": "b", "delay": "1 h"},
      {"kind": "k", "payload": [2], "lane": "list", "unique_key": "b", "on_conflict": "replace"},
      {"kind": "k", "payload": [3], "lane": "list", "unique_key": "b", "on_conflict": "replace"},
      {"kind": "k", "payload": [1], "lane": "list", "unique_key": "c"},
      {"kind": "k", "payload": [2], "lane": "list", "unique_key": "c", "on_conflict": "follow"},
      {"kind": "k", "payload": [4], "lane": "list", "unique_key": "c", "on_conflict": "cancel"}]'
) AS e \gset
SELECT results_eq(
    $$SELECT j.state, b.payload, j.priority FROM pulse.jobs AS j JOIN pulse_internal.body AS b ON b.job = j.job_id WHERE j.lane = 'list' ORDER BY b.payload$$,
    $$VALUES ('blocked', '[2]'::jsonb, 7), ('ready', '[3]', 0), ('ready', '[4]', 0), ('running', '{}', 0)$$,
    'enqueue_many knows them all, also inside one list'
);
SELECT is(cardinality(array(SELECT DISTINCT unnest(:'ids'::bigint []))), 3, 'one job for each key');
SELECT is(
    cardinality(array(SELECT DISTINCT pulse.enqueue_many('k', ARRAY['[1]', '[2]']::jsonb [], lane => 'pay', unique_key => 'a', on_conflict => 'follow'))),
    1, 'payloads of one call make one job'
);
SELECT is((SELECT b.payload FROM pulse_internal.body AS b JOIN pulse_internal.ready AS r USING (job) WHERE r.lane = 'pay'), '[2]', 'with the last of them');

-- What cannot be

SELECT throws_ok($$SELECT pg_temp.again('f', 'upsert')$$, 'PU002', NULL, 'another on_conflict');
SELECT throws_ok(
    format($$SELECT pulse.enqueue('k', unique_key => 'x', on_conflict => %L, after => ARRAY[%s])$$, c.on_conflict, :job),
    'PU002', NULL, format('after and %s', c.on_conflict)
)
FROM unnest('{follow,cancel}'::text []) AS c (on_conflict);
SELECT * FROM pg_temp.run('parent') \gset
SELECT throws_ok(
    format($$SELECT pulse.spawn(%s, 's', '[{"kind": "k", "unique_key": "a", "on_conflict": "follow"}]')$$, :lease),
    'PU002', NULL, 'a spawned job that follows'
);
SELECT lives_ok($$SELECT pulse.enqueue('k', on_conflict => c) FROM unnest('{follow,cancel}'::text []) AS c$$, 'without a key they say nothing');

-- In a grouped lane

SELECT pulse.set_lane('g', group_slots => 1);
SELECT pulse.enqueue('k', lane => 'g', group_key => 'x', unique_key => 'a') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'g') AS c \gset
SELECT pulse.enqueue('k', lane => 'g', group_key => 'x', unique_key => 'a', on_conflict => 'follow') AS next \gset
SELECT pulse.complete(:lease);
SELECT is((SELECT c.job_id FROM pulse.claim_batch('w', 'g') AS c), :next::bigint, 'a follower joins the line of its group');

SELECT is_empty('SELECT * FROM pulse.check()', 'check finds nothing');

SELECT * FROM finish();

ROLLBACK;
