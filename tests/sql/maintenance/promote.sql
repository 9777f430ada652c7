-- Promotion: what is due gets in line, by claims and by tick.
BEGIN;

SELECT plan(29);

CREATE FUNCTION pg_temp.later(label text, due interval, lane text DEFAULT 'l', priority integer DEFAULT 0)
RETURNS void
LANGUAGE sql
AS $$
    SELECT FROM pulse.enqueue(
        'k', jsonb_build_array(later.label), later.lane, later.priority, delay => later.due
    )
$$;

-- An hour passes.
CREATE FUNCTION pg_temp.an_hour_passes()
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.waiting SET run_at = run_at - interval '1 hour';
    DELETE FROM pulse_internal.due_mark;
    DELETE FROM pulse_internal.upkeep_run;
$$;

CREATE FUNCTION pg_temp.claims(lane text, max_jobs integer DEFAULT 100)
RETURNS text []
LANGUAGE sql
AS $$
    SELECT coalesce(array_agg(c.payload ->> 0), '{}')
    FROM pulse.claim_batch('w', claims.lane, claims.max_jobs) AS c
$$;

SELECT pg_temp.later('third', '59 min');
SELECT pg_temp.later('first', '10 min');
SELECT pg_temp.later('second', '20 min');
SELECT pg_temp.later('not yet', '2 hours');
SELECT pg_temp.later('elsewhere', '10 min', 'm');
SELECT is(pg_temp.claims('l'), '{}', 'what is not due is not claimed');
SELECT is(pulse_internal.promote('l', 100), 0, 'nor promoted');
SELECT pg_temp.an_hour_passes();
SELECT is(
    pg_temp.claims('l'), '{first,second,third}',
    'a claim promotes what is due, in the order in which it became so'
);
SELECT results_eq(
    'SELECT b.payload FROM pulse_internal.waiting JOIN pulse_internal.body AS b USING (job) ORDER BY b.payload',
    $$VALUES ('["elsewhere"]'::jsonb), ('["not yet"]')$$,
    'of its own lane, and leaves the rest'
);
SELECT is(
    (SELECT t.did FROM pulse.tick() AS t WHERE t.step = 'promote'), 1::bigint,
    'tick promotes in every lane'
);
SELECT is(pg_temp.claims('m'), '{elsewhere}', 'and claims find it');
SELECT pg_temp.an_hour_passes();
SELECT pg_temp.an_hour_passes();
SELECT is(pg_temp.claims('l'), '{not yet}', 'all in its time');

-- Priority counts when it is in line, not while it waits.

SELECT pg_temp.later('low', '1 min', 'p', 0);
SELECT pg_temp.later('high', '50 min', 'p', 5);
SELECT pg_temp.an_hour_passes();
SELECT is(pg_temp.claims('p'), '{high,low}', 'priority goes before the time of promotion');

-- Bounded

SELECT pg_temp.later(n::text, make_interval(secs => n), 'many') FROM generate_series(1, 50) AS n;
SELECT pg_temp.an_hour_passes();
SELECT is(pulse_internal.promote('many', 7), 7, 'promotion takes at most so many');
SELECT is(
    (SELECT array_agg((b.payload ->> 0)::integer ORDER BY r.seq) FROM pulse_internal.ready AS r JOIN pulse_internal.body AS b USING (job)),
    '{1,2,3,4,5,6,7}', 'those that are due longest'
);
SELECT is(cardinality(pg_temp.claims('many', 5)), 5, 'a claim of five');
SELECT is(
    (SELECT count(*) FROM pulse_internal.waiting AS w WHERE w.lane = 'many'), 38::bigint,
    'promotes at most five'
);
SELECT is(pulse_internal.promote('many', 1000), 38, 'and the rest is promoted at once if asked');
SELECT is(pulse_internal.promote('many', 1000), 0, 'once');
SELECT isnt(
    (SELECT m.run_at FROM pulse_internal.newest_due_mark('many') AS m), NULL,
    'many at once ask for a due mark'
);
SELECT is(
    cardinality(pg_temp.claims('many')), 45, 'and all of them can be claimed'
);

-- What was kept

SELECT pulse.enqueue('k', lane => 'kept', priority => 3, unique_key => 'u') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'kept') AS c \gset
SELECT pulse.fail(:lease, 'oops');
SELECT pg_temp.an_hour_passes();
SELECT is(pulse_internal.promote('kept', 1), 1, 'a retrying job is promoted');
SELECT row_eq(
    format(
        'SELECT r.rank, r.attempts, r.failures, r.keyed, r.last_lease, r.last_verb FROM pulse_internal.ready AS r WHERE r.job = %s',
        :job
    ),
    ROW (-3, 1, 1, true, :lease::bigint, 'fail'::text COLLATE "C"), 'with all it was'
);

-- Lanes

SELECT pg_temp.later('x', '1 h', lane.name)
FROM unnest('{zebra,ant,Bee,ünder,a b}'::text []) AS lane (name);
SELECT set_eq(
    'SELECT pulse_internal.waiting_lanes()', '{zebra,ant,Bee,ünder,"a b"}'::text [],
    'every lane with jobs in waiting is known'
);
SELECT FROM unnest('{ant,zebra}'::text []) AS l (lane),
    pulse_internal.advance_due(l.lane, clock_timestamp());
SELECT pg_temp.later('y', '1 h', 'between');
SELECT set_eq(
    'SELECT pulse_internal.waiting_lanes()', '{zebra,ant,Bee,ünder,"a b",between}'::text [],
    'one that appears between two known ones too'
);
SELECT pg_temp.an_hour_passes();
SELECT is(
    (SELECT t.did FROM pulse.tick() AS t WHERE t.step = 'promote'), 6::bigint,
    'and all are promoted'
);
SELECT is_empty('SELECT * FROM pulse_internal.waiting', 'without leaving one behind');
-- A wave of jobs that are due holds up no urgent one.

SELECT pg_temp.later('low ' || n, make_interval(secs => n), 'wave', 0) FROM generate_series(1, 30) AS n;
SELECT pg_temp.later('soon', '58 min', 'wave', 5);
SELECT pg_temp.later('urgent', '59 min', 'wave', 9);
SELECT pg_temp.later('tomorrow', '1 day', 'wave', 99);
SELECT pg_temp.an_hour_passes();
SELECT is(pg_temp.claims('wave', 1), '{urgent}', 'a claim of one promotes the most urgent that is due');
SELECT is(pg_temp.claims('wave', 2), '{soon,"low 1"}', 'then the next, then the oldest of the wave');
SELECT pg_temp.later('urgent', '59 min', 'wave', 9);
SELECT pg_temp.later('new level', '59 min', 'wave', 7);
SELECT FROM pulse_internal.advance_due('wave', clock_timestamp());
SELECT is(
    (SELECT array_agg(-r) FROM pulse_internal.newest_due_mark('wave') AS m, unnest(m.ranks) AS r),
    '{99,9,7,0}', 'each level has a due mark'
);
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() WHERE lane = 'wave' AND rank IN (-9, -7);
SELECT is(pg_temp.claims('wave', 3), '{urgent,"new level","low 2"}', 'from which it is found as well');
SELECT pg_temp.later('level ' || n, '1 s', 'many levels', n) FROM generate_series(1, 150) AS n;
SELECT pg_temp.an_hour_passes();
SELECT is(pulse_internal.promote('many levels', 1000), 150, 'more than a hundred levels are all found');
SELECT is((SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'many levels'), 150::bigint, 'none is lost');

SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
