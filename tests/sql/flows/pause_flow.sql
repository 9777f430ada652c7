-- The pause of a flow: claims park its jobs, resume puts them back in line.
BEGIN;

SELECT plan(46);

\o /dev/null
-- A claim parks for 50 ms at most: on a slow machine the next one goes on.
CREATE FUNCTION pg_temp.claimed(lane text, many integer DEFAULT 10) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_jobs bigint [];
BEGIN
    FOR v_round IN 1..30 LOOP
        v_jobs := array(
            SELECT c.job_id FROM pulse.claim_batch('w', claimed.lane, claimed.many) AS c ORDER BY c.job_id
        );
        EXIT WHEN v_jobs <> '{}';
    END LOOP;
    RETURN v_jobs;
END $$;
CREATE FUNCTION pg_temp.held(job bigint) RETURNS boolean
LANGUAGE sql AS $$ SELECT EXISTS (SELECT FROM pulse.why(held.job) AS w WHERE w.reason LIKE 'flow % is paused by %') $$;
SELECT pulse.set_lane('groups', group_slots => 1);
\o

SELECT pulse.enqueue('k', lane => 'l', flow => 'f') AS a, pulse.enqueue('k', lane => 'l', flow => 'f', priority => 5) AS b, pulse.enqueue('k', lane => 'l') AS other, pulse.enqueue('k', lane => 'l', flow => 'g') AS g \gset
SELECT pulse.enqueue('k', lane => 'l', flow => 'f', after => ARRAY[:other]) AS c \gset

-- who may, and what cannot be
SELECT throws_ok($$SELECT pulse.pause('ann', flow => 'nobody')$$, 'PU013', 'there is no flow ''nobody''', 'a flow that has no job is refused');
SELECT throws_ok($$SELECT pulse.pause('ann', lane => 'l', flow => 'f')$$, 'PU002', NULL, 'lane and flow are held one by one');
SELECT throws_ok($$SELECT pulse.resume('ann', lane => 'l', flow => 'f')$$, 'PU002', NULL, 'and resumed one by one');
SELECT throws_ok($$SELECT pulse.pause('drain', flow => 'f')$$, 'PU002', NULL, 'the holder drain belongs to lanes');
SELECT throws_ok($$SELECT pulse.pause('ann', flow => '')$$, 'PU002', NULL, 'a flow has a name');

-- pause
SELECT ok(pulse.pause('ann', 'prices are wrong', flow => 'f'), 'a flow is paused');
SELECT ok(NOT pulse.pause('ann', flow => 'f'), 'a second time it is not new');
SELECT results_eq(
    'SELECT lane, flow, holder, reason FROM pulse.pause_status()',
    $$VALUES (NULL::text, 'f'::text, 'ann'::text, 'prices are wrong'::text)$$, 'pause_status says so'
);
SELECT is(
    (SELECT verb || ' ' || reason || ' ' || (after ->> 'flow') FROM pulse_internal.audit_entry ORDER BY entry DESC LIMIT 1),
    'pause prices are wrong f', 'and so does the audit'
);
SELECT ok(pg_temp.held(:a), 'why says it of a ready job');
SELECT ok(pg_temp.held(:c), 'and of one that waits for another as well');
SELECT ok(NOT pg_temp.held(:other) AND NOT pg_temp.held(:g), 'of no other job');
SELECT is((SELECT status || ': ' || split_part(figure, ',', 1) FROM pulse.health() WHERE check_name = 'paused_flows'), 'ok: 1', 'health counts it');

-- claims
SELECT is(pg_temp.claimed('l', 1), ARRAY[:other]::bigint[], 'a claim passes the jobs of a paused flow and takes those behind them');
SELECT is(pg_temp.claimed('l'), ARRAY[:g]::bigint[], 'other flows go on');
SELECT is(pg_temp.state(:a) || ' ' || pg_temp.state(:b), 'blocked blocked', 'those that were met are blocked');
SELECT ok((SELECT waits_for IS NULL FROM pulse.jobs WHERE job_id = :a), 'and wait for no job');
SELECT ok(pg_temp.held(:a), 'why says it of a parked job');
SELECT is((SELECT count(*) FROM pulse.why(:a)), 1::bigint, 'and nothing else');
SELECT is_empty('SELECT * FROM pulse.check()', 'check finds nothing wrong');

-- jobs that come later
SELECT pulse.enqueue('k', lane => 'l', flow => 'f') AS d \gset
\o /dev/null
SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l WHERE l.job = :other;
\o
SELECT is(pg_temp.state(:c), 'ready', 'one that is released');
SELECT is(pg_temp.claimed('l'), '{}'::bigint[], 'and one that is enqueued are met by the next claim');
SELECT is(pg_temp.state(:c) || ' ' || pg_temp.state(:d), 'blocked blocked');

-- operators and parked jobs
SELECT is(pulse.cancel(:d), 'cancelled', 'a parked job can be cancelled');
SELECT is(pulse.reprioritize(:c, 9), 'blocked', 'and get another priority');
SELECT is(pulse.retry(:d), 'ready', 'and be retried, to be parked again');
SELECT is(pg_temp.claimed('l'), '{}'::bigint[]);

-- a second holder
SELECT ok(pulse.pause('bob', flow => 'f'), 'pauses nest by holder');
SELECT ok(pulse.resume('ann', flow => 'f'), 'one is taken back');
SELECT is(pg_temp.claimed('l'), '{}'::bigint[], 'and the other holds');
SELECT is_empty('SELECT * FROM pulse.check()');
SELECT ok(NOT pulse.resume('ann', flow => 'f'), 'a pause is taken back once');

-- resume
SELECT ok(pulse.resume('bob', flow => 'f'), 'the last pause is taken back');
SELECT is(pg_temp.claimed('l'), ARRAY[:a, :b, :c, :d]::bigint[], 'and claims put the jobs back in line');
SELECT is_empty('SELECT * FROM pulse.check()');

-- before it is enqueued; groups
SELECT ok(pulse.pause('ann', flow => 'later', new => true), 'a flow may be paused before it is enqueued');
\o /dev/null
SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[3]), lane => 'groups', group_key => 'x', flow => 'later');
SELECT pulse.enqueue('k', lane => 'groups', group_key => 'x') AS free \gset
\o
SELECT is(pg_temp.claimed('groups'), ARRAY[:free]::bigint[], 'in a lane with groups its jobs are passed as well');
\o /dev/null
SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l WHERE l.job = :free;
SELECT pulse.resume('ann', flow => 'later');
\o
SELECT is(cardinality(pg_temp.claimed('groups')), 1, 'and come back to their group, slot by slot');
SELECT is_empty('SELECT * FROM pulse.check()');

-- what was approved stays as it was approved, also while it is parked
SELECT pulse.enqueue('k', '{"eur": 1}', lane => 'pay', flow => 'pay', unique_key => 'pay', requires_approval => true) AS pay \gset
\o /dev/null
SELECT pulse.approve(:pay);
SELECT pulse.pause('ann', flow => 'pay');
SELECT pg_temp.claimed('pay');
\o
SELECT is(pg_temp.state(:pay), 'blocked', 'an approved job is parked');
SELECT throws_ok(
    format($$SELECT pulse.enqueue('k', '{"eur": 9}', lane => 'pay', unique_key => 'pay', on_conflict => %L)$$, o.how),
    'PU105', NULL, 'and no payload that was not approved gets into it by ' || o.how
)
FROM (VALUES ('replace'), ('follow')) AS o (how);
SELECT pulse.resume('ann', flow => 'pay') \g /dev/null
SELECT is(pg_temp.claimed('pay'), ARRAY[:pay]::bigint[], 'it runs when its flow is resumed');

-- what a resume did not tell, check says and the backstop finds
SELECT pulse.enqueue('k', lane => 'l', flow => 'f') AS lost \gset
\o /dev/null
SELECT pulse.pause('ann', flow => 'f');
SELECT pg_temp.claimed('l');
DELETE FROM pulse_internal.flow_hold;
\o
SELECT is((SELECT problem FROM pulse.check()), 'job is parked and its flow is not paused', 'check finds one that is left behind');
SELECT is((pulse_internal.backstop_flows()).missed, 1::bigint, 'and so does the backstop');
SELECT is(pg_temp.claimed('l'), ARRAY[:lost]::bigint[], 'which has it claimed');

SELECT * FROM finish();

ROLLBACK;
