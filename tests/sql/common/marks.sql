-- Low-water marks, in one session. The races (out-of-order commit, rollback, a
-- transaction open across several ticks, a prepared one, two tickers) are isolation specs.
-- Every statement commits by itself: a mark moves only over transactions that have ended.
SELECT plan(57);

CREATE FUNCTION pg_temp.work(lane text, max_jobs integer, kinds text [] DEFAULT NULL)
RETURNS void
LANGUAGE sql
AS $$
    SELECT FROM pulse.complete_batch(
        array(SELECT c.lease FROM pulse.claim_batch('w', work.lane, work.max_jobs, kinds => work.kinds) AS c)
    )
$$;

-- A look that is younger than 20 ms is good enough for everybody: make it older.
CREATE FUNCTION pg_temp.look()
RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE pulse_internal.horizon SET seen_at = seen_at - interval '1 second';
    RETURN (pulse_internal.see_horizon()).ready_q;
END;
$$;

CREATE FUNCTION pg_temp.mark(lane text, kind text DEFAULT '')
RETURNS text
LANGUAGE sql
AS $$
    SELECT array_to_string(array(
        SELECT format('%s:%s', -v.rank, v.seq)
        FROM pulse_internal.newest_mark(mark.lane, mark.kind) AS m, unnest(m.ranks, m.seqs) AS v (rank, seq)
    ), ' ')
$$;

-- Sequences

-- proves: R3
SELECT is(pulse_internal.last_drawn_ready(), 0::bigint, 'rule 3: before the first nothing is drawn');
SELECT pg_temp.fill(10, 'a');
SELECT is(pulse_internal.last_drawn_ready(), 10::bigint, 'rule 3: then the last value is');
SELECT is(
    (SELECT s.cache_size FROM pg_sequences AS s WHERE s.schemaname = 'pulse_internal' AND s.sequencename = 'ready_seq'),
    1::bigint, 'rule 3: no session keeps places in store'
);
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~ 'nextval\(''pulse_internal\.ready_seq''\)'
    $$,
    'rule 3: a place in line is drawn by the column default alone, inside the INSERT'
);
-- Every other number that is drawn in a function: leases by the statement that inserts them, after it
-- has locked their table (spec lease-drawn-under-lock). No mark relies on the rest.
SELECT set_eq(
    $$
    SELECT DISTINCT p.proname::text, m.sequence [1]
    FROM pg_proc AS p
    CROSS JOIN LATERAL regexp_matches(p.prosrc, 'nextval\(\s*''?([a-z_.]+)', 'g') AS m (sequence)
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND m.sequence [1] NOT IN ('pulse_internal.job_id', 'pulse_internal.version')
    $$,
    $$
    VALUES
    ('claim_batch', 'pulse_internal.lease_seq'),
    ('fail_unsent', 'pulse_internal.lease_seq')
    $$,
    'rule 3: numbers that marks rely on are drawn by claims and by column defaults'
);
SELECT set_eq(
    $$
    SELECT c.relname::text
    FROM pg_attrdef AS d
    INNER JOIN pg_class AS c ON c.oid = d.adrelid
    WHERE pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(''pulse_internal.ready_seq''%'
    $$,
    ARRAY['ready', 'group_notice'],
    'rule 3: these tables draw from the sequence of places'
);
SELECT is_empty(
    $$
    WITH fn AS (
        SELECT
            p.proname::text AS name,
            p.prosrc AS body,
            p.prosrc ~ 'INSERT INTO pulse_internal\.(ready|waiting)\M' AS puts,
            p.prosrc ~ 'pulse_internal\.(enter_lane\(|ready_seq''::regclass)' AS announces
        FROM pg_proc AS p
        WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
    )

    SELECT f.name
    FROM fn AS f
    WHERE f.puts
        AND NOT f.announces
        AND (
            SELECT bool_and(c.announces)
            FROM fn AS c
            WHERE c.body ~ ('pulse_internal\.' || f.name || '\(')
        ) IS NOT TRUE
    $$,
    'rule 3: a function that puts jobs into ready or waiting announces their lanes, or its callers do'
);
-- The marks of a lane go by seq, so a job in the line of its lane has a new one. A group is read from a
-- place that its notices lower, so a job in its line can keep the place that it had.
SELECT set_eq(
    $$
    SELECT p.proname::text
    FROM pg_proc AS p
    CROSS JOIN LATERAL regexp_matches(
        p.prosrc, 'INSERT INTO pulse_internal\.ready(?: AS r)?\s+(\([^)]*\)|SELECT)', 'g'
    ) AS m (columns)
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND (m.columns [1] ~ '\mseq\M' OR m.columns [1] = 'SELECT')
    $$,
    ARRAY['promote_to_groups', 'sort_into_groups', 'put_back_in_group'],
    'rule 3: only jobs in the line of a group keep a place'
);
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    CROSS JOIN LATERAL regexp_matches(
        p.prosrc, 'INSERT INTO pulse_internal\.(ready|group_notice)(?: AS r)?\s+(\([^)]*\))', 'g'
    ) AS m (into_table)
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND m.into_table [2] ~ '\mseq\M'
        AND (m.into_table [1] = 'group_notice' OR m.into_table [2] !~ '\mgroup_key\M')
    $$,
    'rule 3: in a statement that names their group; a notice never keeps one'
);
SELECT is(pulse_internal.group_of(NULL), '', 'rule 3: a job without a key has a group as well');
-- proves: R7
SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~ 'UPDATE\s+pulse_internal\.(ready|waiting|approval|finished)\M'
    $$,
    'rule 7: rows of ready, waiting, approval and finished are never updated'
);

-- The horizon

SELECT is(pg_temp.look(), 10::bigint, 'what has ended is decided at once');
SELECT is(pg_temp.look(), 10::bigint, 'and stays so');
SELECT pg_temp.fill(5, 'a');
SELECT is(pg_temp.look(), 15::bigint, 'what came since is decided too');
SELECT is(pg_temp.look(), 15::bigint, 'and no more than that');
SELECT cmp_ok(
    (SELECT count(DISTINCT (pulse_internal.see_horizon()).version) FROM generate_series(1, 200)), '<',
    200::bigint, 'looks at the same moment are one'
);
SELECT is((SELECT count(*) FROM pulse_internal.horizon), 1::bigint, 'and one is kept');

BEGIN;
SELECT pg_temp.fill(1, 'a');
SELECT is(pg_temp.look(), 15::bigint, 'a transaction that has drawn a place');
SELECT is(pg_temp.look(), 15::bigint, 'holds the horizon back');
SELECT is(pg_temp.look(), 15::bigint, 'while it is open');
ROLLBACK;
SELECT pg_temp.look() AS q \g /dev/null
SELECT is(pg_temp.look(), 16::bigint, 'a place that was rolled back is decided too');

-- Marks

SELECT pg_temp.work('a', 4);
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
SELECT FROM pulse_internal.advance_line('a', '', (pulse_internal.see_horizon()).ready_q);
SELECT is(pg_temp.mark('a'), '0:5', 'a mark stands at the first live place');
SELECT FROM pulse_internal.advance_line('a', '', (pulse_internal.see_horizon()).ready_q);
SELECT is((SELECT count(*) FROM pulse_internal.mark), 1::bigint, 'one that need not move is not written');
SELECT pg_temp.fill(3, 'a', priority => 7);
SELECT pg_temp.fill(3, 'a', priority => -7);
SELECT FROM pulse_internal.advance_line('a', '', 16);
-- proves: R4
SELECT is(
    pg_temp.mark('a'), '7:17 0:5 -7:17',
    'rule 4: new levels are recorded, never past what is decided plus one'
);
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
SELECT pg_temp.work('a', 3);
SELECT FROM pulse_internal.advance_line('a', '', (pulse_internal.see_horizon()).ready_q);
SELECT is(
    pg_temp.mark('a'), '7:23 0:5 -7:20', 'a level that ran dry stands behind all that is decided'
);
SELECT pg_temp.fill(1, 'a', priority => 7);
SELECT is(
    (SELECT c.priority FROM pulse.claim_batch('w', 'a') AS c), 7, 'and what comes after is found'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds no job below a mark');

-- Kinds

SELECT pg_temp.fill(10, 'kinds', 'x');
SELECT pg_temp.fill(10, 'kinds', 'y');
SELECT pg_temp.work('kinds', 5, '{y}');
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
SELECT FROM unnest('{x,y,z}'::text []) AS k (kind),
    pulse_internal.advance_line('kinds', k.kind, (pulse_internal.see_horizon()).ready_q);
SELECT is(
    (SELECT m.seqs[1] FROM pulse_internal.newest_mark('kinds', 'y') AS m),
    (SELECT min(r.seq) FROM pulse_internal.ready AS r WHERE r.lane = 'kinds' AND r.kind = 'y'),
    'each kind has marks of its own'
);
SELECT is(
    (SELECT m.seqs[1] FROM pulse_internal.newest_mark('kinds', 'x') AS m),
    (SELECT min(r.seq) FROM pulse_internal.ready AS r WHERE r.lane = 'kinds' AND r.kind = 'x'),
    'each at its own first live place'
);
SELECT is(pg_temp.mark('kinds', 'z'), '', 'a kind without jobs has none');

-- Many levels

SELECT pulse.enqueue('k', lane => 'levels', priority => n) AS job FROM generate_series(1, 150) AS n \g /dev/null
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
SELECT FROM pulse_internal.advance_line('levels', '', (pulse_internal.see_horizon()).ready_q);
SELECT is(
    (SELECT cardinality(m.ranks) FROM pulse_internal.newest_mark('levels', '') AS m), 100,
    'at most 100 levels are recorded'
);
SELECT is(
    (SELECT array_agg(c.priority) FROM pulse.claim_batch('w', 'levels', 100) AS c),
    array(SELECT n FROM generate_series(150, 51, -1) AS n), 'the order is right'
);
SELECT FROM pulse_internal.advance_line('levels', '', (pulse_internal.see_horizon()).ready_q);
SELECT is(
    (SELECT array_agg(c.priority) FROM pulse.claim_batch('w', 'levels', 100) AS c),
    array(SELECT n FROM generate_series(50, 1, -1) AS n), 'down to the last'
);

-- Asked for by a claim

SELECT pg_temp.fill(700, 'ask');
SELECT pg_temp.work('ask', 100) FROM generate_series(1, 6);
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
SELECT pg_temp.work('ask', 10);
SELECT isnt(
    pg_temp.mark('ask'), '', 'a claim that stepped over many places advances the marks itself'
);

-- By tick

SELECT pg_temp.fill(3, 'tick');
SELECT pg_temp.fill(3, 'tock', priority => 4);
SELECT pulse.enqueue('k', lane => 'later', delay => '1 hour') AS job \gset
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
DELETE FROM pulse_internal.upkeep_run;
SELECT cmp_ok(
    (SELECT t.did FROM pulse.tick() AS t WHERE t.step = 'marks'), '>=', 5::bigint,
    'tick advances the marks of every line'
);
SELECT isnt(pg_temp.mark('tick'), '', 'also of lanes that had none');
SELECT isnt(pg_temp.mark('tock'), '', 'all of them');

-- Due marks

UPDATE pulse_internal.horizon SET seen_at = seen_at - interval '1 second';
-- proves: R5
SELECT ok(
    (SELECT m.run_at < clock_timestamp() FROM pulse_internal.newest_due_mark('later') AS m),
    'rule 5: a due mark never stands in the future'
);
SELECT pulse.enqueue('k', lane => 'due', delay => '1 s') AS job FROM generate_series(1, 30) \g /dev/null
UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - interval '1 hour' WHERE lane = 'due';
DELETE FROM pulse_internal.due_mark;
SELECT is(pulse_internal.promote('due', 30), 30, 'thirty jobs are promoted at once');
SELECT pg_temp.look() AS q FROM generate_series(1, 3) \g /dev/null
SELECT pulse.enqueue('k', lane => 'due', delay => '1 hour') AS job \gset
SELECT FROM pulse_internal.advance_due('due', (pulse_internal.see_horizon()).waiting_t);
SELECT ok(
    (
        SELECT m.run_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()
        FROM pulse_internal.newest_due_mark('due') AS m
    ),
    'the due mark follows, up to what is decided less a second'
);
SELECT pulse.enqueue('k', lane => 'due', delay => '1 us') AS job \g /dev/null
SELECT is_empty('SELECT * FROM pulse.check()', 'nothing is below it');
SELECT is((SELECT m.run_at FROM pulse_internal.newest_due_mark('never') AS m), '-infinity', 'no mark is from the start');

-- Clock steps back

SELECT h.waiting_t FROM pulse_internal.see_horizon() AS h \gset
UPDATE pulse_internal.horizon SET seen_at = clock_timestamp() + interval '1 hour', waiting_t = clock_timestamp() + interval '1 hour';
SELECT cmp_ok(
    (SELECT h.waiting_t FROM pulse_internal.see_horizon() AS h), '<',
    clock_timestamp() - interval '59 seconds', 'rule 5: a clock that stepped back lowers what is decided'
);
SELECT FROM pulse_internal.advance_due('due', (pulse_internal.see_horizon()).waiting_t);
SELECT ok(
    (
        SELECT m.run_at < clock_timestamp() - interval '1 minute'
        FROM pulse_internal.newest_due_mark('due') AS m
    ),
    'and the mark with it'
);

-- Idle claims. Whatever the upkeep remembers is old, so that no write is spared because
-- there was one just before; the fourth claim is what an idle worker does all day.

CREATE FUNCTION pg_temp.writes(lane text, kinds text [] DEFAULT NULL)
RETURNS text []
LANGUAGE plpgsql
AS $$
DECLARE
    v_before jsonb;
BEGIN
    UPDATE pulse_internal.horizon SET seen_at = seen_at - interval '1 minute';
    UPDATE pulse_internal.mark SET marked_at = marked_at - interval '1 minute';
    SELECT jsonb_object_agg(s.relname, s.n_tup_ins + s.n_tup_upd + s.n_tup_del) INTO v_before
    FROM pg_stat_xact_user_tables AS s
    WHERE s.schemaname = 'pulse_internal';
    IF EXISTS (SELECT FROM pulse.claim_batch('w', writes.lane, kinds => writes.kinds)) THEN
        RAISE EXCEPTION 'lane % is not idle', writes.lane;
    END IF;
    RETURN array(
        SELECT s.relname
        FROM pg_stat_xact_user_tables AS s
        WHERE s.schemaname = 'pulse_internal'
            AND s.n_tup_ins + s.n_tup_upd + s.n_tup_del > (v_before ->> s.relname)::bigint
    );
END;
$$;

SELECT pg_temp.fill(3000, 'crowd', 'foreign');
SELECT pg_temp.work('levels', 100);
SELECT pg_temp.writes('idle') \g /dev/null
SELECT pg_temp.writes('idle') \g /dev/null
SELECT pg_temp.writes('idle') \g /dev/null
SELECT is(pg_temp.writes('idle'), '{}', 'a claim that finds nothing writes nothing');
SELECT pg_temp.writes('idle', '{a,b}') \g /dev/null
SELECT pg_temp.writes('idle', '{a,b}') \g /dev/null
SELECT pg_temp.writes('idle', '{a,b}') \g /dev/null
SELECT is(pg_temp.writes('idle', '{a,b}'), '{}', 'nor does one that names kinds');
SELECT pg_temp.writes('levels') \g /dev/null
SELECT pg_temp.writes('levels') \g /dev/null
SELECT pg_temp.writes('levels') \g /dev/null
SELECT is(pg_temp.writes('levels'), '{}', 'nor one of a lane that ran dry');
SELECT pg_temp.writes('crowd', '{a,b}') \g /dev/null
SELECT pg_temp.writes('crowd', '{a,b}') \g /dev/null
SELECT pg_temp.writes('crowd', '{a,b}') \g /dev/null
SELECT is(
    pg_temp.writes('crowd', '{a,b}'), '{}', 'nor one that finds only jobs of other kinds'
);

-- What a claim itself puts above the first known level it also sees.

SELECT pg_temp.fill(600, 'above');
SELECT pg_temp.work('above', 100) FROM generate_series(1, 6);
SELECT pg_temp.look() \g /dev/null
SELECT pg_temp.look() \g /dev/null
SELECT FROM pulse_internal.advance_line('above', '', (SELECT max(h.ready_q) FROM pulse_internal.horizon AS h));
SELECT matches(pg_temp.mark('above'), '^0:\d+$', 'a line with one known level');
SELECT pulse.enqueue('k', lane => 'above', priority => 10, delay => '1 hour') \g /dev/null
UPDATE pulse_internal.waiting SET run_at = run_at - interval '2 hours' WHERE lane = 'above';
SELECT is(
    (SELECT c.priority FROM pulse.claim_batch('w', 'above') AS c), 10,
    'a job that the claim promotes above it is found by the same claim'
);
SELECT pg_temp.fill(1, 'above');
SELECT pulse.enqueue('k', lane => 'above', priority => 20, delay => '1 hour') \g /dev/null
UPDATE pulse_internal.waiting SET run_at = run_at - interval '2 hours' WHERE lane = 'above';
SELECT is(
    (SELECT c.priority FROM pulse.claim_batch('w', 'above', kinds => '{k}') AS c), 20,
    'and goes before what stands in line'
);

-- A cache

DELETE FROM pulse_internal.mark;
DELETE FROM pulse_internal.due_mark;
DELETE FROM pulse_internal.horizon;
DELETE FROM pulse_internal.upkeep_run;
-- proves: R6
SELECT is(
    (SELECT c.priority FROM pulse.claim_batch('w', 'tock') AS c), 4,
    'rule 6: without marks a claim begins at the start'
);
SELECT lives_ok('SELECT * FROM pulse.tick()', 'rule 6: and tick makes them anew');

-- The backstop

SELECT pg_temp.fill(1, 'bug');
INSERT INTO pulse_internal.mark (lane, kind, ranks, seqs, marked_at)
VALUES ('bug', '', '{0}', ARRAY[1000000000], clock_timestamp());
SELECT is_empty($$SELECT * FROM pulse.claim_batch('w', 'bug')$$, 'a mark that is wrong hides a job');
SELECT isnt_empty('SELECT * FROM pulse.check()', 'check() sees it');
DELETE FROM pulse_internal.upkeep_run;
SELECT is(
    (SELECT t.did FROM pulse.tick() AS t WHERE t.step = 'backstop'), 1::bigint,
    'the backstop finds it'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'bug')), 1::bigint, 'and the job still runs'
);

SELECT * FROM finish();
