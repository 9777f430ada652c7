-- The claim: which jobs, in which order, and what the worker gets.
BEGIN;

SELECT plan(79);

-- What comes back, as labels in claim order.
CREATE FUNCTION pg_temp.claims(lane text, max_jobs integer DEFAULT 100, kinds text [] DEFAULT NULL)
RETURNS text []
LANGUAGE sql
AS $$
    SELECT coalesce(array_agg(c.payload ->> 0 ORDER BY c.place), '{}')
    FROM pulse.claim_batch('w', claims.lane, claims.max_jobs, kinds => claims.kinds)
    WITH ORDINALITY AS c (
        lease, job_id, kind, payload, attempt, failures, max_attempts, priority, lease_until,
        deadline, enqueued_at, checkpoint, group_key, place
    )
$$;

CREATE FUNCTION pg_temp.put(label text, lane text, kind text, priority integer DEFAULT 0)
RETURNS void
LANGUAGE sql
AS $$
    SELECT FROM pulse.enqueue(
        put.kind, jsonb_build_array(put.label), put.lane, put.priority
    )
$$;

-- What the line says, by the plainest of queries.
CREATE FUNCTION pg_temp.naive(lane text, max_jobs integer, kinds text [] DEFAULT NULL)
RETURNS bigint []
LANGUAGE sql
AS $$
    SELECT coalesce(array_agg(n.job ORDER BY n.rank, n.seq), '{}')
    FROM (
        SELECT r.job, r.rank, r.seq
        FROM pulse_internal.ready AS r
        WHERE r.lane = naive.lane
            AND (naive.kinds IS NULL OR r.kind = ANY (naive.kinds))
        ORDER BY r.rank, r.seq
        LIMIT naive.max_jobs
    ) AS n
$$;

-- The same by claim_batch. The line is read in one statement and claimed in the next.
CREATE FUNCTION pg_temp.agrees(lane text, max_jobs integer, kinds text [] DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_naive bigint [] := pg_temp.naive(agrees.lane, agrees.max_jobs, agrees.kinds);
    v_claimed bigint [];
BEGIN
    SELECT coalesce(array_agg(c.job_id), '{}') INTO v_claimed
    FROM pulse.claim_batch('w', agrees.lane, agrees.max_jobs, kinds => agrees.kinds) AS c;
    IF v_claimed = v_naive THEN
        RETURN 'as the plain query';
    END IF;
    RETURN format(
        '%s jobs of %s, kinds %s: %s instead of %s', cardinality(v_claimed),
        cardinality(v_naive), agrees.kinds, v_claimed, v_naive
    );
END;
$$;

-- What a worker gets

SELECT pulse.enqueue(
    'mail', '{"to": 1}', lane => 'one', priority => 4, max_attempts => 6, group_key => 'g',
    max_runtime => '1 h'
) AS job \gset
CREATE TEMPORARY TABLE got AS
SELECT c.* FROM pulse.claim_batch('alice', 'one') AS c;
SELECT row_eq(
    'SELECT g.job_id, g.kind, g.payload, g.attempt, g.failures, g.max_attempts, g.priority, g.checkpoint, g.group_key FROM got AS g',
    ROW (:job::bigint, 'mail'::text, '{"to": 1}'::jsonb, 1, 0, 6, 4, NULL::jsonb, 'g'::text),
    'a claim gives everything that a worker needs'
);
SELECT ok(
    (
        SELECT g.deadline - g.lease_until BETWEEN interval '59 min' AND interval '60 min'
            AND g.lease_until > clock_timestamp() AND g.enqueued_at < clock_timestamp()
        FROM got AS g
    ),
    'and when: lease, deadline, enqueued'
);
SELECT row_eq(
    'SELECT l.job, l.lane, l.kind, l.rank, l.attempt, l.failures, l.worker, l.lease_for, l.reap_at FROM pulse_internal.lease AS l',
    ROW (
        :job::bigint, 'one'::text COLLATE "C", 'mail'::text COLLATE "C", -4, 1, 0,
        'alice'::text, interval '30 s', NULL::timestamptz
    ),
    'the lease is the running job'
);
SELECT is(
    (SELECT g.lease FROM got AS g), (SELECT l.lease FROM pulse_internal.lease AS l),
    'and its number is the token'
);
SELECT is_empty('SELECT * FROM pulse_internal.ready', 'which has left the line');
SELECT is(
    (SELECT j.state FROM pulse.jobs AS j WHERE j.job_id = :job), 'running', 'and is running'
);
SELECT is_empty($$SELECT * FROM pulse.claim_batch('bob', 'one')$$, 'nobody else can claim it');
SELECT pulse.enqueue('k', lane => 'one') AS job \gset
SELECT ok(
    (SELECT c.lease > g.lease FROM pulse.claim_batch('w', 'one') AS c, got AS g), 'leases grow'
);
SELECT pulse.enqueue('k', lane => 'dl', max_runtime => '5 s') AS job \gset
SELECT ok(
    (SELECT c.lease_until = c.deadline FROM pulse.claim_batch('w', 'dl') AS c),
    'a lease never lasts beyond max_runtime'
);
SELECT pulse.set_lane('dl', max_runtime => '3 h');
SELECT pulse.set_kind('slow', max_runtime => '2 h');
SELECT pg_temp.fill(1, 'dl', 'fast');
SELECT pg_temp.fill(1, 'dl', 'slow');
SELECT results_eq(
    $$
    SELECT c.kind, round(extract(epoch FROM c.deadline - clock_timestamp()) / 3600)
    FROM pulse.claim_batch('w', 'dl', 2) AS c
    $$,
    $$VALUES ('fast', 3::numeric), ('slow', 2)$$,
    'max_runtime is the job''s, else the kind''s, else the lane''s'
);

-- Order

SELECT pg_temp.put('a', 'order', 'x', 0);
SELECT pg_temp.put('b', 'order', 'y', 5);
SELECT pg_temp.put('c', 'order', 'x', -5);
SELECT pg_temp.put('d', 'order', 'x', 5);
SELECT pg_temp.put('e', 'order', 'y', 0);
SELECT pg_temp.put('f', 'order', 'y', 2000000000);
SELECT pg_temp.put('g', 'order', 'x', -2000000000);
SELECT is(
    pg_temp.claims('order'), '{f,b,d,a,e,c,g}',
    'higher priority first, negative last, in order of arrival inside one'
);
SELECT pg_temp.put('x1', 'kinds', 'x', 0);
SELECT pg_temp.put('y1', 'kinds', 'y', 1);
SELECT pg_temp.put('z1', 'kinds', 'z', 9);
SELECT pg_temp.put('x2', 'kinds', 'x', 2);
SELECT pg_temp.put('y2', 'kinds', 'y', 0);
SELECT pg_temp.put('x3', 'kinds', 'x', 1);
SELECT is(
    pg_temp.claims('kinds', 3, '{y,x}'), '{x2,y1,x3}',
    'priority is strict across the kinds that a claim names'
);
SELECT is(
    pg_temp.claims('kinds', 100, '{x,y,x,nothing}'), '{x1,y2}', 'and so is arrival'
);
SELECT is(pg_temp.claims('kinds', 100, '{nothing}'), '{}', 'an unknown kind gives nothing');
-- proves: G15
SELECT is(
    pg_temp.claims('kinds'), '{z1}', 'guarantee 15: what nobody named is still there'
);
SELECT pg_temp.put(n::text, 'fifo', 'x') FROM generate_series(1, 20) AS n;
SELECT is(
    pg_temp.claims('fifo', 7) || pg_temp.claims('fifo', 7) || pg_temp.claims('fifo', 7),
    array(SELECT n::text FROM generate_series(1, 20) AS n),
    'batches follow each other in order, and the last is shorter'
);

-- A job that comes back joins the end of its priority.

SELECT pg_temp.put('a', 'back', 'x', 1);
SELECT pg_temp.put('b', 'back', 'x', 1);
SELECT pg_temp.put('c', 'back', 'x', 0);
SELECT is(pg_temp.claims('back', 1), '{a}', 'the first runs');
SELECT pulse.fail(l.lease, retry_in => '0') FROM pulse_internal.lease AS l WHERE l.lane = 'back';
-- proves: R26
SELECT is(
    pg_temp.claims('back', 1), '{b}', 'rule 26: a retry rejoins at the end of its priority'
);
SELECT is(pg_temp.claims('back', 2), '{a,c}', 'but before what is less important');
SELECT pg_temp.put('a', 'back2', 'x', 1);
SELECT pg_temp.put('b', 'back2', 'x', 1);
SELECT is(pg_temp.claims('back2', 1), '{a}', 'the first runs');
SELECT r.verdict FROM pulse_internal.lease AS l, LATERAL pulse.release(ARRAY[l.lease]) AS r WHERE l.lane = 'back2' \gset
SELECT is(pg_temp.claims('back2', 2), '{b,a}', 'so does one that was released');
SELECT pg_temp.put('new', 'gaps', 'x', 0);
SELECT pulse.enqueue('x', '["due"]', lane => 'gaps', priority => 1, delay => '1 h') AS job \gset
UPDATE pulse_internal.waiting SET run_at = run_at - interval '2 hours';
DELETE FROM pulse_internal.due_mark;
SELECT is(
    pg_temp.claims('gaps', 2), '{due,new}', 'what has become due is promoted by the claim'
);

-- Levels that marks know, and those they don't

SELECT pg_temp.put('ten', 'gaps', 'x', 10);
SELECT pg_temp.put('twenty', 'gaps', 'x', 20);
SELECT pg_temp.put('thirty', 'gaps', 'x', 30);
SELECT FROM pulse_internal.advance_line('gaps', '', pulse_internal.last_drawn_ready());
SELECT is(
    (SELECT m.ranks FROM pulse_internal.newest_mark('gaps', '') AS m), '{-30,-20,-10}',
    'marks know three levels'
);
SELECT pg_temp.put('forty', 'gaps', 'x', 40);
SELECT pg_temp.put('fifteen', 'gaps', 'x', 15);
SELECT pg_temp.put('twenty-five', 'gaps', 'y', 25);
SELECT pg_temp.put('zero', 'gaps', 'x', 0);
SELECT is(
    pg_temp.claims('gaps', 3, '{x}'), '{forty,thirty,twenty}',
    'a level above all that marks know is found at once'
);
SELECT is(
    pg_temp.claims('gaps', 2), '{twenty-five,fifteen}',
    'so is one between two of them'
);
SELECT is(pg_temp.claims('gaps', 9), '{ten,zero}', 'and one below all');

SELECT pulse.set_lane('many', max_batch => 1000);
SELECT pulse.enqueue('k' || n % 3, lane => 'many', priority => (n * 7919) % 3001 - 1500) AS job
FROM generate_series(1, 3000) AS n \g /dev/null
SELECT is(
    (SELECT count(DISTINCT r.rank) FROM pulse_internal.ready AS r WHERE r.lane = 'many'), 3000::bigint,
    '3,000 levels stand in line'
);
SELECT is(pg_temp.agrees('many', 500), 'as the plain query', 'and are claimed in order');
SELECT is(
    pg_temp.agrees('many', 300, '{k1,k2}'), 'as the plain query', 'with kinds as well'
);
SELECT FROM pulse_internal.advance_line('many', '', pulse_internal.last_drawn_ready());
SELECT cmp_ok(
    (SELECT cardinality(m.ranks) FROM pulse_internal.newest_mark('many', '') AS m), '<=', 100,
    'marks record at most 100 of them'
);
SELECT is(
    pg_temp.agrees('many', 700, '{k0,k2}'), 'as the plain query', 'which changes nothing'
);
SELECT is(pg_temp.agrees('many', 1000), 'as the plain query', 'to the end');
SELECT is(pg_temp.agrees('many', 1000), 'as the plain query', 'of the line');
SELECT is_empty('SELECT * FROM pulse_internal.ready WHERE lane = ''many''', 'with none left out');

-- Jobs of other kinds ahead

SELECT pg_temp.fill(300, 'patchy', 'crowd');
SELECT pg_temp.fill(10, 'patchy', 'x', -1);
SELECT pg_temp.fill(300, 'patchy', 'crowd', -1);
SELECT pg_temp.fill(10, 'patchy', 'y', -1);
SELECT pg_temp.fill(10, 'patchy', 'x', -2);
SELECT is(
    pg_temp.agrees('patchy', 5, '{x,y}'), 'as the plain query',
    'a claim finds its kinds behind 300 jobs of another'
);
SELECT isnt(
    (SELECT m.patchy_at FROM pulse_internal.newest_mark('patchy', '') AS m), NULL,
    'and notes that the line is patchy'
);
SELECT is(
    pg_temp.agrees('patchy', 8, '{x,y}'), 'as the plain query',
    'the next goes kind by kind at once, in the same order'
);
SELECT FROM unnest('{x,y}'::text []) AS k (kind),
    pulse_internal.advance_line('patchy', k.kind, pulse_internal.last_drawn_ready());
SELECT is(
    pg_temp.agrees('patchy', 8, '{y,x}'), 'as the plain query', 'with marks of the kinds too'
);
SELECT pg_temp.fill(2, 'patchy', 'y', 7);
SELECT is(
    pg_temp.agrees('patchy', 3, '{y,x}'), 'as the plain query',
    'a level that no mark of the kind knows is found at once'
);
UPDATE pulse_internal.mark SET patchy_at = NULL;
SELECT is(
    pg_temp.agrees('patchy', 100, '{x,y}'), 'as the plain query', 'and all the rest'
);
SELECT is(
    pg_temp.agrees('patchy', 100, '{x,y}'), 'as the plain query', 'until there is none'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'patchy'), 600::bigint,
    'while the others keep their place'
);
SELECT pg_temp.fill(1, 'thin', CASE WHEN n % 9 = 0 THEN 'x' ELSE 'crowd' END)
FROM generate_series(1, 2000) AS n \g /dev/null
SELECT is(
    pg_temp.agrees('thin', 100, '{x}'), 'as the plain query',
    'one job in nine fills a batch of 100'
);
-- Ninety-nine of the first 700, and the rest far behind.
SELECT pg_temp.fill(1, 'torn', CASE WHEN n <= 693 AND n % 7 = 0 OR n > 1200 THEN 'x' ELSE 'crowd' END)
FROM generate_series(1, 1300) AS n \g /dev/null
SELECT is(
    pg_temp.agrees('torn', 100, '{x}'), 'as the plain query',
    'so does a line whose last wanted job stands far behind'
);

-- At random: kinds, priorities, batches; marks moved, forgotten, patchy or not.

CREATE FUNCTION pg_temp.at_random(lane text, rounds integer)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
    v_kinds text [] := '{a,b,c,d,e,f}';
    v_some text [];
    v_said text;
BEGIN
    FOR v_round IN 1..rounds LOOP
        -- Mostly a: a crowd that others do not want.
        PERFORM pulse.enqueue(
            CASE WHEN random() < 0.8 THEN 'a' ELSE v_kinds[1 + floor(random() * 6)::integer] END,
            lane => at_random.lane,
            priority => floor(random() * 7 - 3)::integer * CASE WHEN random() < 0.1 THEN 13 ELSE 1 END
        )
        FROM generate_series(1, floor(random() * 60)::integer);

        CASE floor(random() * 6)::integer
            WHEN 0 THEN
                PERFORM pulse_internal.advance_line(
                    at_random.lane, k.kind, pulse_internal.last_drawn_ready()
                )
                FROM unnest(v_kinds || ''::text) AS k (kind);
            WHEN 1 THEN
                PERFORM pulse_internal.advance_line(at_random.lane, '', pulse_internal.last_drawn_ready());
            WHEN 2 THEN
                DELETE FROM pulse_internal.mark AS m
                WHERE m.lane = at_random.lane;
            WHEN 3 THEN
                UPDATE pulse_internal.mark AS m
                SET patchy_at = clock_timestamp()
                WHERE m.lane = at_random.lane
                    AND m.kind = '';
            ELSE
                UPDATE pulse_internal.mark AS m
                SET patchy_at = NULL
                WHERE m.lane = at_random.lane;
        END CASE;

        v_some := array(SELECT k.kind FROM unnest(v_kinds) AS k (kind) WHERE random() < 0.4);
        v_said := pg_temp.agrees(
            at_random.lane, 1 + floor(random() * 40)::integer,
            CASE WHEN v_some <> '{}' THEN v_some END
        );
        IF v_said <> 'as the plain query' THEN
            RETURN NEXT format('round %s: %s', v_round, v_said);
        END IF;
    END LOOP;
END;
$$;

SELECT setseed(0.42);
SELECT is_empty(
    'SELECT pg_temp.at_random(''random'', 150)',
    'whatever the marks say, the order is that of the plain query: priority, then arrival'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'and nothing is below a mark');

-- How many

SELECT pg_temp.fill(250, 'cap');
SELECT is(cardinality(pg_temp.naive('cap', 250)), 250, '250 jobs stand in line');
SELECT is(cardinality(pg_temp.claims('cap', 3)), 3, 'a batch is never larger than asked');
SELECT is(cardinality(pg_temp.claims('cap', 2147483647)), 100, 'nor than 100');
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'cap')), 1::bigint, 'one, if not asked');

-- What is refused

SELECT (SELECT count(*) FROM pulse_internal.lease) AS before \gset
SELECT throws_ok(
    format('SELECT pulse.claim_batch(%s)', b.arguments), 'PU002', NULL,
    format('claim_batch(%s) is refused', left(b.arguments, 60))
)
FROM (
    VALUES
    ('NULL'), (''''''), ('repeat(''w'', 201)'),
    ('''w'', NULL'), ('''w'', '''''), ('''w'', repeat(''l'', 201)'),
    ('''w'', ''cap'', NULL'), ('''w'', ''cap'', 0'), ('''w'', ''cap'', -1'),
    ('''w'', ''cap'', -2147483648'),
    ('''w'', ''cap'', lease_for => ''0'''), ('''w'', ''cap'', lease_for => ''-1 s'''),
    ('''w'', ''cap'', lease_for => ''25 h'''),
    ('''w'', ''cap'', kinds => ''{}'''), ('''w'', ''cap'', kinds => ''{NULL}'''),
    ('''w'', ''cap'', kinds => ''{k,NULL}'''), ('''w'', ''cap'', kinds => ''{""}''')
) AS b (arguments);
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease), :before::bigint, 'and claims nothing'
);
SELECT is(
    cardinality(pg_temp.claims('cap', 1, array(SELECT 'k' || n FROM generate_series(1, 500) AS n) || '{k}'::text [])),
    1, 'many kinds are fine'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'cap', lease_for => '1 s')), 1::bigint,
    'a lease may be as short as a second'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'cap', lease_for => '1 day')), 1::bigint,
    'and as long as a day'
);

-- proves: R11
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND (p.prosrc || p.proconfig::text) LIKE '%synchronous_commit%'
    $$,
    'rule 11: claims are durable: nothing in pulse touches synchronous_commit'
);

-- A rolled back claim never happened.

SELECT pg_temp.naive('cap', 1) AS first \gset
SAVEPOINT before_it;
SELECT pg_temp.claims('cap', 10) AS c \gset
ROLLBACK TO before_it;
SELECT is(pg_temp.naive('cap', 1), :'first', 'a claim that is rolled back never happened');

-- A long roster is looked through before the slots are full: surely by a claim for
-- as many jobs as it has leases.

SELECT pulse.set_lane('roomy', max_slots => 1000, max_batch => 500) \g /dev/null
SELECT pg_temp.fill(3, 'roomy');
DELETE FROM pulse_internal.roster AS r WHERE r.lane = 'roomy';
INSERT INTO pulse_internal.roster (lane, leases) SELECT 'roomy', array_agg(n) FROM generate_series(1, 150) AS n;
SELECT count(*) FROM pulse.claim_batch('w', 'roomy', 200) \g /dev/null
SELECT is(
    (SELECT sum(cardinality(r.leases)) FROM pulse_internal.roster AS r WHERE r.lane = 'roomy'),
    3::bigint, 'who is gone leaves a long roster'
);

-- The overdue sweep

SELECT pg_temp.fill(1, 'lost');
SELECT c.lease FROM pulse.claim_batch('gone', 'lost') AS c \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 s', reap_at = NULL
WHERE lease = :lease;
SELECT pg_temp.claims('elsewhere') AS c \gset
SELECT is(
    (SELECT count(*) FROM pulse_internal.lease AS l WHERE l.lease = :lease), 1::bigint,
    'a claim does not reap when another session did so lately'
);
DELETE FROM pulse_internal.upkeep_run;
SELECT pg_temp.claims('elsewhere') AS c \gset
-- proves: G4
SELECT is_empty(
    format('SELECT * FROM pulse_internal.lease AS l WHERE l.lease = %s', :lease),
    'guarantee 4: when nobody did, it reaps, whatever lane it is of'
);

-- Further down the line than a claim looks at first, whether or not it can count.
SELECT pg_temp.fill(300, 'far', 'foreign', 5);
SELECT pulse.enqueue('mine', '["urgent"]', 'far', 5) AS c \gset
SELECT pulse.enqueue('mine', '["later"]', 'far', 0) AS c \gset
SET LOCAL track_counts = off;
SELECT is(pg_temp.claims('far', 1, '{mine}'), '{urgent}', 'far away, without statistics');
RESET track_counts;
SELECT is(pg_temp.claims('far', 9, '{mine,none}'), '{later}', 'and on the next level');
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
