-- The bulk verbs: their filter, their bounds, their one line in the audit.

-- Asked here, told below: a frozen snapshot is refused by every verb by job id.
SET default_transaction_isolation = 'repeatable read';

DO $$
DECLARE
    v_call text;
BEGIN
    PERFORM set_config('pulse_test.refused', '', false);
    FOREACH v_call IN ARRAY ARRAY[
        'cancel(1)', 'ack_cancel(1)', 'approve(1)', 'reject(1)', 'reprioritize(1, 1)',
        'move(1, ''a'')', 'retry(1)', 'delete_job(1)', 'cancel_where(''{}'')',
        'retry_where(''{}'')', 'reprioritize_where(''{}'', 1)', 'move_where(''{}'', ''a'')',
        'approve_where(''{}'')', 'reject_where(''{}'')'
    ] LOOP
        BEGIN
            EXECUTE 'SELECT pulse.' || v_call;
        EXCEPTION
            WHEN SQLSTATE 'PU001' THEN
                PERFORM set_config(
                    'pulse_test.refused', current_setting('pulse_test.refused') || '.', false
                );
        END;
    END LOOP;
END;
$$;

RESET default_transaction_isolation;

BEGIN;

SELECT plan(87);

SELECT is(
    length(current_setting('pulse_test.refused')), 14,
    'above READ COMMITTED every one of these verbs is refused'
);

CREATE FUNCTION pg_temp.states(lane text)
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(j.state, ' ' ORDER BY j.job_id)
    FROM pulse.jobs AS j
    WHERE j.lane = states.lane
$$;

-- How many jobs a filter means, asked of a bulk verb.
CREATE FUNCTION pg_temp.hits(filter jsonb)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT w.done FROM pulse.cancel_where(hits.filter, dry_run => true) AS w $$;

CREATE ROLE pulse_test_alice;
\o /dev/null
SELECT pulse.grant_access('pulse_test_alice', 'producer');
\o

-- One job of every kind of difference.
SELECT pulse.enqueue('a', lane => 'f', priority => 1, tags => '{red,blue}') AS one \gset
SELECT pulse.enqueue('b', '{"to": "Ada"}', lane => 'f', priority => 2, group_key => 'g') AS two \gset
SELECT pulse.enqueue('c', lane => 'f', priority => 3, delay => '1 hour') AS three \gset
SET LOCAL ROLE pulse_test_alice;
SELECT pulse.enqueue('c', lane => 'g', requires_approval => true) AS four \gset
RESET ROLE;
SELECT pulse.enqueue('a', lane => 'h') AS five \gset
SELECT c.lease FROM pulse.claim_batch('worker-1', 'h') AS c \gset
SELECT pulse.enqueue('e', lane => 'i') AS six \gset
\o /dev/null
SELECT pulse.fail((SELECT c.lease FROM pulse.claim_batch('worker-2', 'i') AS c), 'disk is full');
\o
UPDATE pulse_internal.body
SET enqueued_at = clock_timestamp() - interval '2 days'
WHERE job = :two;

-- The filter

SELECT is(pg_temp.hits('{"all": true}'), 6::bigint, 'all means every job');
SELECT is(pg_temp.hits('{"lane": "f"}'), 3::bigint, 'lane');
SELECT is(pg_temp.hits('{"lane": ["g", "h", "none"]}'), 2::bigint, 'any of several lanes');
SELECT is(pg_temp.hits('{"kind": "a"}'), 2::bigint, 'kind');
SELECT is(pg_temp.hits('{"kind": ["a", "b"], "lane": "f"}'), 2::bigint, 'all keys must hold');
SELECT is(pg_temp.hits('{"state": "ready"}'), 2::bigint, 'state ready');
SELECT is(pg_temp.hits('{"state": "scheduled"}'), 1::bigint, 'state scheduled');
SELECT is(pg_temp.hits('{"state": "retrying"}'), 1::bigint, 'state retrying');
SELECT is(pg_temp.hits('{"state": "awaiting_approval"}'), 1::bigint, 'state awaiting_approval');
SELECT is(pg_temp.hits('{"state": ["running", "scheduled"]}'), 2::bigint, 'any of several states');
SELECT is(pg_temp.hits('{"tag": "blue"}'), 1::bigint, 'tag');
SELECT is(pg_temp.hits('{"tag": ["green", "red"]}'), 1::bigint, 'any of several tags');
SELECT is(pg_temp.hits('{"group_key": "g"}'), 1::bigint, 'group_key');
SELECT is(pg_temp.hits('{"enqueued_by": "pulse_test_alice"}'), 1::bigint, 'enqueued_by');
SELECT is(pg_temp.hits('{"worker": "worker-1"}'), 1::bigint, 'worker');
SELECT is(pg_temp.hits('{"priority": 2}'), 1::bigint, 'priority');
SELECT is(pg_temp.hits('{"priority_above": 1}'), 2::bigint, 'priority_above');
SELECT is(pg_temp.hits('{"priority_below": 2, "lane": "f"}'), 1::bigint, 'priority_below');
SELECT is(pg_temp.hits('{"older_than": "1 day"}'), 1::bigint, 'older_than');
SELECT is(pg_temp.hits('{"newer_than": "1 day"}'), 5::bigint, 'newer_than');
SELECT is(pg_temp.hits('{"error_like": "disk%"}'), 1::bigint, 'error_like');
SELECT is(pg_temp.hits('{"error_like": "DISK%"}'), 1::bigint, 'error_like in any case');
SELECT is(pg_temp.hits('{"error_like": "net%"}'), 0::bigint, 'error_like that nothing is like');
SELECT is(pg_temp.hits('{"error_contains": "IS FULL"}'), 1::bigint, 'error_contains');
SELECT is(pg_temp.hits('{"error_contains": "disk", "error_like": "net%"}'), 0::bigint, 'and error_like: both must hold');
SELECT is(pg_temp.hits('{"payload": {"to": "Ada"}}'), 1::bigint, 'payload');
SELECT is(pg_temp.hits('{"payload": {"to": "ada"}}'), 0::bigint, 'payload that is another');
SELECT is(pg_temp.hits('{"payload_contains": "ADA"}'), 1::bigint, 'payload_contains');
SELECT is(
    pg_temp.hits(jsonb_build_object('job_ids', jsonb_build_array(:one, :'two'::text, '7'))),
    2::bigint,
    'job_ids, as numbers or as strings'
);
SELECT is(pg_temp.hits('{"job_ids": []}'), 0::bigint, 'an empty list is no job');
SELECT is(
    (SELECT count(*) FROM pulse_internal.audit_entry AS e WHERE e.verb ~ '_where$'), 0::bigint,
    'a dry run leaves no entry in the audit'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.finished), 0::bigint, 'and changes nothing'
);

-- What is not understood is refused.

SELECT
    throws_ok(
        format('SELECT pulse.cancel_where(%L)', f.filter), 'PU006', NULL,
        format('refused: %s', coalesce(f.filter, 'NULL'))
    )
FROM (
    VALUES
    (NULL), ('{}'), ('[]'), ('7'), ('{"all": false}'), ('{"lanes": "f"}'), ('{"lane": 7}'),
    ('{"lane": null}'), ('{"lane": ["f", 7]}'), ('{"state": "asleep"}'), ('{"state": "dead"}'),
    ('{"priority": "1"}'), ('{"priority": 1.5}'), ('{"priority_below": 3000000000}'),
    ('{"older_than": "soon"}'), ('{"newer_than": 5}'), ('{"older_than": "300000 years"}'),
    ('{"error_like": "oops\\"}'), ('{"job_ids": "1024"}'), ('{"job_ids": ["x"]}'),
    ('{"job_ids": ["99999999999999999999"]}'), ('{"error_contains": ""}'), ('{"error_contains": 1}'),
    ('{"payload": "Ada"}'), ('{"payload": null}'), ('{"payload_contains": ["a"]}')
) AS f (filter);

SELECT throws_ok(
    $$SELECT pulse.cancel_where('{"all": true}', max_jobs => 0)$$, 'PU002', NULL,
    'max_jobs has bounds'
);

-- cancel_where

SELECT results_eq(
    $$SELECT done, remaining FROM pulse.cancel_where('{"lane": "f"}', max_jobs => 2, dry_run => true)$$,
    $$VALUES (2::bigint, 1::bigint)$$,
    'a dry run says what one call would do, and what it would leave'
);
-- proves: R20
SELECT results_eq(
    $$SELECT done, remaining FROM pulse.cancel_where('{"lane": "f"}', max_jobs => 2, reason => 'spring')$$,
    $$VALUES (2::bigint, 1::bigint)$$,
    'a call does at most max_jobs and says how many remain'
);
SELECT is(pg_temp.states('f'), 'cancelled cancelled scheduled', 'oldest first');
SELECT results_eq(
    $$SELECT job, lane COLLATE "default", before, after, reason
    FROM pulse_internal.audit_entry WHERE verb = 'cancel_where'$$,
    format(
        'VALUES (NULL::bigint, %L, %L::jsonb, %L::jsonb, %L)',
        'f', '{"filter": {"lane": "f"}}',
        jsonb_build_object(
            'done', 2, 'remaining', 1, 'first_job', :'one'::text, 'last_job', :'two'::text
        ),
        'spring'
    ),
    'a call leaves one entry in the audit, with ids as strings'
);
SELECT results_eq(
    $$SELECT done, remaining FROM pulse.cancel_where('{"worker": "worker-1"}')$$,
    $$VALUES (1::bigint, 0::bigint)$$,
    'a running job is asked to stop'
);
SELECT is(pg_temp.states('h'), 'running', 'and runs on for its grace');
SELECT results_eq(
    $$SELECT done, remaining FROM pulse.cancel_where('{"worker": "worker-1"}')$$,
    $$VALUES (0::bigint, 0::bigint)$$,
    'it is asked once'
);
SELECT results_eq(
    $$SELECT done, remaining FROM pulse.cancel_where('{"worker": "worker-1"}', force => true)$$,
    $$VALUES (1::bigint, 0::bigint)$$,
    'force ends it'
);
SELECT is(pg_temp.states('h'), 'cancelled', 'at once');

-- retry_where

SELECT results_eq(
    $$SELECT done, remaining FROM pulse.retry_where('{"lane": ["f", "h"], "error_like": "spring"}')$$,
    $$VALUES (2::bigint, 0::bigint)$$,
    'retry_where puts back what ended as the filter says'
);
SELECT is(pg_temp.states('f'), 'ready ready scheduled', 'in line');
SELECT throws_ok(
    $$SELECT pulse.retry_where('{"state": "completed"}')$$, 'PU006', NULL,
    'completed jobs are not retried'
);
SELECT pulse.enqueue('a', lane => 'u', unique_key => 'k') AS first \gset
\o /dev/null
SELECT pulse.cancel(:first);
\o
SELECT pulse.enqueue('a', lane => 'u', unique_key => 'k') AS second \gset
\o /dev/null
SELECT pulse.cancel(:second);
\o
SELECT results_eq(
    $$SELECT done, remaining FROM pulse.retry_where('{"lane": "u", "state": "cancelled"}')$$,
    $$VALUES (1::bigint, 0::bigint)$$,
    'of two jobs with one unique key one is retried'
);
SELECT is(pg_temp.states('u'), 'ready cancelled', 'the older one');

-- reprioritize_where

SELECT results_eq(
    $$SELECT done, remaining FROM pulse.reprioritize_where('{"lane": "f"}', 2)$$,
    $$VALUES (2::bigint, 0::bigint)$$,
    'reprioritize_where changes what has another priority'
);
SELECT results_eq(
    $$SELECT priority FROM pulse.jobs WHERE lane = 'f'$$,
    $$VALUES (2), (2), (2)$$,
    'and then all have it'
);
SELECT throws_ok(
    $$SELECT pulse.reprioritize_where('{"lane": "f"}', NULL)$$, 'PU002', NULL,
    'a priority is a number'
);

-- move_where

SELECT pulse.enqueue('a', lane => 'u2', unique_key => 'k') AS taken \gset
SELECT pulse.enqueue('a', lane => 'u', unique_key => 'k2') AS free \gset
SELECT r.seq FROM pulse_internal.ready AS r WHERE r.job = :first \gset
SELECT results_eq(
    $$SELECT done, remaining FROM pulse.move_where('{"lane": "u"}', 'u2')$$,
    $$VALUES (1::bigint, 0::bigint)$$,
    'move_where leaves a job whose unique key is taken in the other lane'
);
SELECT is(
    (SELECT r.seq FROM pulse_internal.ready AS r WHERE r.job = :first), :seq::bigint,
    'in its place in line'
);
SELECT is(
    (SELECT k.lane FROM pulse_internal.job_key AS k WHERE k.job = :free), 'u2', 'a key moves along'
);
SELECT throws_ok(
    $$SELECT pulse.move_where('{"lane": "f"}', '')$$, 'PU002', NULL, 'a lane has a name'
);

-- approve_where, reject_where

SELECT results_eq(
    format('SELECT done FROM pulse.approve_where(%L)', jsonb_build_object('job_ids', ARRAY[:four])),
    $$VALUES (1::bigint)$$,
    'approve_where approves many'
);
SELECT is(pg_temp.states('g'), 'ready', 'and they are ready');
SELECT results_eq(
    $$SELECT before -> 'filter' -> 'job_ids' -> 0 FROM pulse_internal.audit_entry WHERE verb = 'approve_where'$$,
    format('VALUES (to_jsonb(%L::text))', :four),
    'ids are strings in the audit, however they were given'
);
\o /dev/null
SELECT pulse.enqueue('z', lane => 'g', requires_approval => true);
\o
SELECT results_eq(
    $$SELECT done FROM pulse.reject_where('{"kind": "z"}', reason => 'no')$$,
    $$VALUES (1::bigint)$$,
    'reject_where rejects many'
);
SELECT is(pg_temp.states('g'), 'ready cancelled', 'and they are cancelled');
SELECT is_empty('SELECT * FROM pulse.check()', 'after all of this every job is in one place');

SELECT * FROM finish();

ROLLBACK;
