-- Lanes and kinds: their defaults, and what changes with set_lane and set_kind.
BEGIN;

SELECT plan(125);

CREATE FUNCTION pg_temp.claims(lane text, max_jobs integer DEFAULT 1)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT count(*) FROM pulse.claim_batch('w', claims.lane, claims.max_jobs) $$;

-- Defaults

SELECT is_empty('SELECT * FROM pulse_internal.lane', 'no lane has a row before one is set');
SELECT is_empty('SELECT * FROM pulse_internal.kind', 'nor has a kind');
SELECT row_eq(
    'SELECT s.* FROM pulse_internal.lane_settings(''any'') AS s',
    ROW (
        'any', NULL, 100, '500 milliseconds', '30 seconds', NULL,
        '48 hours', '48 hours', '7 days', '30 seconds', true, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL
    )::pulse_internal.lane,
    'defaults: 100 jobs a claim, poll 500 ms, lease 30 s, retention 48 h, 48 h and 7 d, grace 30 s'
);
SELECT results_eq(
    $$
    SELECT s.lane COLLATE "default", s.priority, s.max_attempts, s.requires_approval,
        s.approval_expiry
    FROM pulse_internal.kind_settings('any') AS s
    $$,
    $$VALUES ('default', 0, 3, false, interval '24 hours')$$,
    'defaults: an unknown kind goes to default, priority 0, 3 attempts, approvals last 24 h'
);

-- On first mention

SELECT pulse.enqueue('k', lane => 'brand-new') AS job \gset
SELECT is(
    (SELECT c.job_id FROM pulse.claim_batch('w', 'brand-new') AS c), :job::bigint,
    'a lane works when it is mentioned for the first time'
);
SELECT is_empty('SELECT * FROM pulse_internal.lane', 'and has no row for that');
SELECT is(pg_temp.claims('nobody-knows'), 0::bigint, 'a lane without jobs gives none');
SELECT pulse.enqueue('k') AS job \gset
SELECT is(
    (SELECT c.job_id FROM pulse.claim_batch('w') AS c), :job::bigint,
    'the lane default is what a claim without a lane works'
);
SELECT ok(
    c.lease_until - clock_timestamp() BETWEEN interval '20 seconds' AND interval '30 seconds',
    'a lease lasts 30 seconds when nobody says otherwise'
)
FROM pulse.enqueue('k') AS e, LATERAL (SELECT * FROM pulse.claim_batch('w')) AS c;

-- set_lane

SELECT lives_ok(
    $$
    SELECT pulse.set_lane(
        'full', max_slots => 5, max_batch => 7, poll_interval => '2 s', lease_for => '10 s',
        max_runtime => '1 h', retain_completed => '1 d', retain_cancelled => '2 d',
        retain_dead => '3 d', cancel_grace => '4 s', enabled => false, fair => true,
        group_slots => 6, reason => 'trial'
    )
    $$,
    'every setting of a lane can be given'
);
SELECT row_eq(
    'SELECT l.* FROM pulse_internal.lane AS l WHERE l.lane = ''full''',
    ROW (
        'full', 5, 7, '2 s', '10 s', '1 h', '1 d', '2 d', '3 d', '4 s', false, true, 6, NULL, NULL, NULL, NULL, NULL,
        true
    )::pulse_internal.lane,
    'and is kept'
);
SELECT lives_ok($$SELECT pulse.set_lane('full', max_batch => 8)$$, 'one can be changed');
SELECT row_eq(
    'SELECT l.* FROM pulse_internal.lane AS l WHERE l.lane = ''full''',
    ROW (
        'full', 5, 8, '2 s', '10 s', '1 h', '1 d', '2 d', '3 d', '4 s', false, true, 6, NULL, NULL, NULL, NULL, NULL,
        true
    )::pulse_internal.lane,
    'and the others stay as they are'
);
SELECT pulse.set_lane(
    'full', max_slots => 0, max_runtime => '0', enabled => true, fair => false, group_slots => 0
);
SELECT row_eq(
    'SELECT l.* FROM pulse_internal.lane AS l WHERE l.lane = ''full''',
    ROW (
        'full', NULL, 8, '2 s', '10 s', NULL, '1 d', '2 d', '3 d', '4 s', true, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, false
    )::pulse_internal.lane,
    '0 takes a limit away'
);
SELECT results_eq(
    $$
    SELECT a.who = session_user, a.reason, a.before, a.after -> 'max_batch', a.lane COLLATE "default"
    FROM pulse.audit AS a
    WHERE a.verb = 'set_lane'
    ORDER BY a.entry
    LIMIT 1
    $$,
    $$VALUES (true, 'trial', '{}'::jsonb, '7'::jsonb, 'full')$$,
    'who set it and why is in the audit'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.audit_entry AS a WHERE a.verb = 'set_lane'), 3::bigint,
    'each change once'
);
SELECT lives_ok(
    $$SELECT pulse.set_lane('idle')$$, 'set_lane without a setting changes nothing'
);
SELECT results_eq(
    $$SELECT s.max_batch, s.enabled FROM pulse_internal.lane_settings('idle') AS s$$,
    $$VALUES (100, true)$$, 'at all'
);

-- Effective at the next claim

SELECT pg_temp.fill(260, 'big');
SELECT is(pg_temp.claims('big', 200), 100::bigint, 'a claim gives at most 100 jobs');
SELECT pulse.set_lane('big', max_batch => 3);
SELECT is(pg_temp.claims('big', 200), 3::bigint, 'a lane may lower that');
SELECT pulse.set_lane('big', max_batch => 150);
SELECT is(pg_temp.claims('big', 200), 150::bigint, 'and raise it');
SELECT pulse.set_lane('big', lease_for => '5 minutes');
SELECT ok(
    (
        SELECT c.lease_until - clock_timestamp() BETWEEN interval '290 s' AND interval '300 s'
        FROM pulse.claim_batch('w', 'big') AS c
    ),
    'lease_for of the lane counts from the next claim on'
);
SELECT pulse.set_kind('k', lease_for => '4 minutes');
SELECT ok(
    (
        SELECT c.lease_until - clock_timestamp() BETWEEN interval '230 s' AND interval '240 s'
        FROM pulse.claim_batch('w', 'big') AS c
    ),
    'that of the kind goes before that of the lane'
);
SELECT ok(
    (
        SELECT c.lease_until - clock_timestamp() BETWEEN interval '50 s' AND interval '60 s'
        FROM pulse.claim_batch('w', 'big', lease_for => '1 minute') AS c
    ),
    'and that of the claim before both'
);
SELECT pulse.set_lane('big', enabled => false);
SELECT is(pg_temp.claims('big'), 0::bigint, 'a lane that is not enabled gives nothing');
SELECT lives_ok(
    $$SELECT pulse.enqueue('k', lane => 'big')$$, 'but takes jobs'
);
SELECT is(
    (SELECT count(*) FROM pulse.heartbeat(array(SELECT l.lease FROM pulse_internal.lease AS l)) AS h
        WHERE h.verdict = 'ok'),
    (SELECT count(*) FROM pulse_internal.lease), 'and what runs goes on'
);
SELECT pulse.set_lane('big', enabled => true);
SELECT is(pg_temp.claims('big'), 1::bigint, 'until it is enabled again');

-- Slots

SELECT pg_temp.fill(30, 'slots', 's');
SELECT is(pg_temp.claims('slots', 2), 2::bigint, 'a lane has no limit at first');
SELECT pulse.set_lane('slots', max_slots => 5);
SELECT is(pg_temp.claims('slots', 10), 3::bigint, 'running jobs count when a limit is set');
SELECT is(pg_temp.claims('slots', 10), 0::bigint, 'a full lane gives nothing');
SELECT is(pg_temp.claims('slots', 1), 0::bigint, 'not even one');
SELECT pulse.complete(l.lease) FROM pulse_internal.lease AS l WHERE l.lane = 'slots' LIMIT 1;
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'a slot that was given back is used again');
SELECT pulse.fail(l.lease) FROM pulse_internal.lease AS l WHERE l.lane = 'slots' LIMIT 1;
-- proves: R13
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'rule 13: whichever way the run ended: failed,');
SELECT pulse.snooze(l.lease, '1 h') FROM pulse_internal.lease AS l WHERE l.lane = 'slots' LIMIT 1;
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'snoozed,');
SELECT r.verdict
FROM pulse_internal.lease AS l
CROSS JOIN LATERAL pulse.release(ARRAY[l.lease]) AS r
WHERE l.lane = 'slots'
LIMIT 1 \gset
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'released,');
SELECT pulse.cancel(l.job, force => true) AS c FROM pulse_internal.lease AS l WHERE l.lane = 'slots' LIMIT 1 \gset
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'cancelled by force,');
UPDATE pulse_internal.lease AS l SET lease_until = clock_timestamp() - interval '1 s'
WHERE l.lease = (SELECT min(x.lease) FROM pulse_internal.lease AS x WHERE x.lane = 'slots');
SELECT pulse.reap() AS n \gset
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'or reaped');
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lane = 'slots'), 5::bigint,
    'rule 13: and never is one more running than max_slots'
);
SELECT pulse.set_lane('slots', max_slots => 2);
-- proves: R14
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lane = 'slots'), 5::bigint,
    'rule 14: lowering max_slots stops nothing that runs'
);
SELECT pulse.complete(l.lease)
FROM (SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'slots' ORDER BY x.lease LIMIT 3) AS l;
SELECT is(pg_temp.claims('slots', 10), 0::bigint, 'and gives nothing while that is still full');
SELECT pulse.complete(l.lease)
FROM (SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'slots' ORDER BY x.lease LIMIT 1) AS l;
SELECT is(pg_temp.claims('slots', 10), 1::bigint, 'then exactly what is free');
SELECT pulse.set_lane('slots', max_slots => 6);
SELECT is(pg_temp.claims('slots', 10), 4::bigint, 'raising it makes room at once');
DELETE FROM pulse_internal.roster;
SELECT is(pg_temp.claims('slots', 10), 0::bigint, 'a roster lost in a restore is made again');
DELETE FROM pulse_internal.roster;
SELECT pulse.complete(l.lease)
FROM (SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'slots' LIMIT 2) AS l;
SELECT is(pg_temp.claims('slots', 10), 2::bigint, 'and counts what runs then');
SELECT set_eq(
    $$
    SELECT unnest(r.leases)
    FROM pulse_internal.roster AS r
    WHERE r.lane = 'slots'
        AND r.version = (SELECT max(n.version) FROM pulse_internal.roster AS n)
    $$,
    $$SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'slots'$$,
    'the newest roster is exactly what runs'
);
SELECT pulse.set_lane('slots', max_slots => 0);
SELECT is(pg_temp.claims('slots', 3), 3::bigint, 'rule 14: max_slots 0 is no limit');
SELECT is_empty(
    'SELECT * FROM pulse_internal.roster WHERE lane = ''slots''', 'and keeps no roster'
);
SELECT pulse.set_lane('slots', max_slots => 1);
SELECT pg_temp.fill(3, 'next-door', 's');
SELECT is(pg_temp.claims('slots', 3), 0::bigint, 'a lane over its limit gives nothing');
SELECT is(pg_temp.claims('next-door', 3), 3::bigint, 'and delays no other lane');
SELECT is_empty(
    $$SELECT * FROM pulse.check() AS c WHERE c.problem LIKE '%slots%' OR c.problem LIKE '%roster%'$$,
    'check() agrees with the slots'
);

-- Many slots

SELECT pulse.set_lane('wide', max_slots => 450, max_batch => 1000);
SELECT pg_temp.fill(1000, 'wide', 's');
SELECT is(pg_temp.claims('wide', 150), 150::bigint, 'a claim has what it asks for');
SELECT results_eq(
    $$SELECT cardinality(r.leases) FROM pulse_internal.roster AS r WHERE r.lane = 'wide'$$, ARRAY[150],
    'rule 13: the roster names the leases that run'
);
SELECT is(pg_temp.claims('wide', 1000), 300::bigint, 'rule 13: up to max_slots');
SELECT is(pg_temp.claims('wide', 1), 0::bigint, 'and not one more');
SELECT pulse.complete_batch(array(
    SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'wide' ORDER BY x.lease LIMIT 7
)) \g /dev/null
SELECT is(pg_temp.claims('wide', 1000), 7::bigint, 'what ends makes room');
SELECT pulse.set_lane('wide', max_slots => 300);
SELECT pulse.complete_batch(array(
    SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'wide' ORDER BY x.lease LIMIT 150
)) \g /dev/null
SELECT is(
    pg_temp.claims('wide', 10), 0::bigint,
    'rule 14: lowered below what runs, the lane gives none until enough have ended'
);
SELECT pulse.complete_batch(array(
    SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'wide' ORDER BY x.lease LIMIT 1
)) \g /dev/null
SELECT is(pg_temp.claims('wide', 10), 1::bigint, 'then exactly what is free');
DELETE FROM pulse_internal.roster;
SELECT pulse.complete_batch(array(
    SELECT x.lease FROM pulse_internal.lease AS x WHERE x.lane = 'wide' LIMIT 5
)) \g /dev/null
SELECT is(pg_temp.claims('wide', 10), 5::bigint, 'a roster lost in a restore is made again');
SELECT is_empty(
    $$SELECT * FROM pulse.check() AS c WHERE c.problem LIKE '%slots%' OR c.problem LIKE '%roster%'$$,
    'check() agrees with many slots'
);

-- Bounds

SELECT throws_ok(
    format('SELECT pulse.set_lane(%s)', b.arguments), 'PU002', NULL,
    format('set_lane(%s) is out of bounds', left(b.arguments, 60))
)
FROM (
    VALUES
    ('NULL'), (''''''), (quote_literal(repeat('x', 201))),
    ('''a'', max_slots => -1'), ('''a'', max_slots => 10001'),
    ('''a'', max_slots => 2147483647'),
    ('''a'', max_batch => 0'), ('''a'', max_batch => 10001'),
    ('''a'', poll_interval => ''9 ms'''), ('''a'', poll_interval => ''2 h'''),
    ('''a'', lease_for => ''999 ms'''), ('''a'', lease_for => ''25 h'''),
    ('''a'', max_runtime => ''-1 s'''), ('''a'', max_runtime => ''2 years'''),
    ('''a'', retain_completed => ''-1 s'''), ('''a'', retain_completed => ''11 years'''),
    ('''a'', retain_cancelled => ''-1 s'''), ('''a'', retain_cancelled => ''11 years'''),
    ('''a'', retain_dead => ''-1 s'''), ('''a'', retain_dead => ''11 years'''),
    ('''a'', cancel_grace => ''-1 s'''), ('''a'', cancel_grace => ''25 h''')
) AS b (arguments);
SELECT is_empty(
    'SELECT * FROM pulse_internal.lane WHERE lane = ''a''', 'and a call out of bounds changes nothing'
);

-- Kinds

SELECT lives_ok(
    $$
    SELECT pulse.set_kind(
        'mail', lane => 'post', priority => 9, max_attempts => 5, backoff => 'fixed',
        backoff_base => '7 s', backoff_cap => '8 s', backoff_jitter => 0,
        lease_for => '9 s', max_runtime => '10 s', requires_approval => true,
        approval_expiry => '11 s', reason => 'trial', max_delay => '12 s',
        rate => 13, rate_per => '14 s'
    )
    $$,
    'every setting of a kind can be given'
);
SELECT row_eq(
    'SELECT k.* FROM pulse_internal.kind AS k WHERE k.kind = ''mail''',
    ROW (
        'mail', 'post', 9, 5, 'fixed', '7 s', '8 s', 0, '9 s', '10 s', true, '11 s',
        '12 s', 13, '14 s'
    )::pulse_internal.kind,
    'and is kept'
);
SELECT pulse.set_kind('mail', requires_approval => false, max_runtime => '0', max_delay => '0', rate => 0);
SELECT row_eq(
    'SELECT k.* FROM pulse_internal.kind AS k WHERE k.kind = ''mail''',
    ROW (
        'mail', 'post', 9, 5, 'fixed', '7 s', '8 s', 0, '9 s', NULL, false, '11 s',
        NULL, NULL, NULL
    )::pulse_internal.kind,
    'what is not given stays, and 0 of max_runtime, max_delay and rate is none'
);
SELECT is(
    (SELECT a.reason FROM pulse_internal.audit_entry AS a WHERE a.verb = 'set_kind' AND a.lane = 'post'
        ORDER BY a.entry LIMIT 1),
    'trial', 'who set it and why is in the audit'
);
SELECT pulse.enqueue('mail') AS job \gset
SELECT row_eq(
    format(
        'SELECT r.lane, r.rank, b.max_attempts FROM pulse_internal.ready AS r JOIN pulse_internal.body AS b USING (job) WHERE r.job = %s',
        :job
    ),
    ROW ('post'::text COLLATE "C", -9, 5),
    'a job gets the lane, priority and attempts of its kind'
);
SELECT pulse.enqueue('mail', lane => 'express', priority => -1, max_attempts => 1) AS job \gset
SELECT row_eq(
    format(
        'SELECT r.lane, r.rank, b.max_attempts FROM pulse_internal.ready AS r JOIN pulse_internal.body AS b USING (job) WHERE r.job = %s',
        :job
    ),
    ROW ('express'::text COLLATE "C", 1, 1),
    'what enqueue says goes before what the kind says'
);
SELECT pulse.set_kind('mail', lane => 'post-2');
SELECT pulse.enqueue('mail') AS job \gset
SELECT is(pg_temp.claims('post', 10), 1::bigint, 'jobs stay in the lane they were enqueued to');
SELECT is(
    (SELECT c.job_id FROM pulse.claim_batch('w', 'post-2') AS c), :job::bigint,
    'later ones go to the kind''s new lane'
);

SELECT throws_ok(
    format('SELECT pulse.set_kind(%s)', b.arguments), 'PU002', NULL,
    format('set_kind(%s) is out of bounds', left(b.arguments, 60))
)
FROM (
    VALUES
    ('NULL'), (''''''), (quote_literal(repeat('x', 201))),
    ('''a'', lane => '''''), ('''a'', lane => repeat(''x'', 201)'),
    ('''a'', priority => 2000000001'), ('''a'', priority => -2147483648'),
    ('''a'', max_attempts => 0'), ('''a'', max_attempts => 100001'),
    ('''a'', backoff => ''sometimes'''), ('''a'', backoff => '''''),
    ('''a'', backoff_base => ''-1 s'''), ('''a'', backoff_base => ''25 h'''),
    ('''a'', backoff_cap => ''-1 s'''), ('''a'', backoff_cap => ''2 years'''),
    ('''a'', backoff_jitter => -0.1'), ('''a'', backoff_jitter => 1.1'),
    ('''a'', backoff_jitter => ''NaN'''), ('''a'', backoff_jitter => ''Infinity'''),
    ('''a'', lease_for => ''0'''), ('''a'', lease_for => ''25 h'''),
    ('''a'', max_runtime => ''-1 s'''), ('''a'', approval_expiry => ''0''')
) AS b (arguments);
SELECT is_empty(
    'SELECT * FROM pulse_internal.kind WHERE kind = ''a''', 'and a call out of bounds changes nothing'
);

-- Backoff

SELECT ok(
    bool_and(
        extract(epoch FROM pulse_internal.backoff(NULL, NULL, NULL, NULL, b.failures))
        BETWEEN b.failures ^ 2 * 0.9 AND b.failures ^ 2 * 1.1
    ),
    'backoff is failures squared seconds, give or take 10 %: 1, 4, 9 …'
)
FROM generate_series(1, 50) AS b (failures);
SELECT cmp_ok(
    count(DISTINCT pulse_internal.backoff(NULL, NULL, NULL, NULL, 10)), '>', 50::bigint,
    'and spread, so that what failed together does not come back together'
)
FROM generate_series(1, 100);
SELECT ok(
    bool_and(pulse_internal.backoff(NULL, NULL, NULL, NULL, b.failures) = '1 hour'),
    'it is capped at one hour, however many failures there were'
)
FROM unnest(ARRAY[70, 1000, 2147483647]) AS b (failures);
SELECT results_eq(
    $$
    SELECT pulse_internal.backoff('exponential', NULL, NULL, 0, b.failures)
    FROM unnest(ARRAY[1, 2, 3, 5, 6, 100000]) AS b (failures)
    $$,
    $$VALUES (interval '2 s'), ('4 s'), ('8 s'), ('32 s'), ('60 s'), ('60 s')$$,
    'exponential is 2^n seconds, capped at 60'
);
SELECT results_eq(
    $$
    SELECT pulse_internal.backoff('fixed', '7 s', NULL, 0, b.failures)
    FROM unnest(ARRAY[1, 2, 9]) AS b (failures)
    $$,
    $$VALUES (interval '7 s'), ('7 s'), ('7 s')$$,
    'fixed is the base, each time'
);
SELECT is(pulse_internal.backoff('none', '7 s', NULL, NULL, 5), interval '0', 'none is at once');
SELECT is(
    pulse_internal.backoff('quadratic', '10 s', NULL, 0, 3), interval '90 s',
    'a base of 10 s multiplies'
);
SELECT is(
    pulse_internal.backoff('quadratic', '1 day', '1 minute', 0, 3), interval '1 minute',
    'a kind''s own cap is obeyed'
);
SELECT ok(
    bool_and(pulse_internal.backoff('fixed', '100 s', NULL, 0.5, 1) BETWEEN '50 s' AND '150 s')
    AND max(pulse_internal.backoff('fixed', '100 s', NULL, 0.5, 1)) > '115 s',
    'and its own jitter'
)
FROM generate_series(1, 100);
SELECT cmp_ok(
    pulse_internal.backoff('exponential', '1 day', '1 year', 1, 2147483647), '<=',
    interval '366 days', 'nothing overflows'
);

SELECT * FROM finish();

ROLLBACK;
