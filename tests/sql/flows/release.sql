-- The look for an upstream that has not ended, where there are many: by pages, near and far.
BEGIN;

SELECT plan(26);

\o /dev/null
CREATE FUNCTION pg_temp.enqueue_parts(jobs integer) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT array_agg(m) FROM pulse.enqueue_many('part', array_fill('{}'::jsonb, ARRAY[jobs]), 'f') AS m
$$;
CREATE FUNCTION pg_temp.claim_part(part bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pulse_internal.ready AS r SET rank = -1000 WHERE r.job = part;
    RETURN (SELECT c.lease FROM pulse.claim_batch('w', 'f') AS c);
END $$;
-- A job behind 250 parts, which end ten at a time in the order that is asked for: how often it
-- was released before the last ten had ended, and its state in the end. With gaps there are
-- jobs between the parts that are none of its upstreams.
CREATE FUNCTION pg_temp.fan_in(
    first_by text, gaps boolean, how text DEFAULT 'complete', after_failed text DEFAULT NULL
)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_parts bigint [] := pg_temp.enqueue_parts(500);
    v_leases bigint [];
    v_child bigint;
    v_early integer := 0;
BEGIN
    v_parts := array(
        SELECT p.part FROM unnest(v_parts) WITH ORDINALITY AS p (part, nth)
        WHERE CASE WHEN gaps THEN p.nth % 2 = 0 ELSE p.nth <= 250 END
    );
    v_child := pulse.enqueue(
        'child', lane => 'child', after => v_parts, after_failed => fan_in.after_failed
    );
    PERFORM pulse.claim_batch('w', 'f', 100) FROM generate_series(1, 5);
    v_leases := array(
        SELECT l.lease
        FROM unnest(v_parts) WITH ORDINALITY AS p (part, nth)
        INNER JOIN pulse_internal.lease AS l ON l.job = p.part
        ORDER BY
            CASE first_by
                WHEN 'first' THEN p.nth WHEN 'last' THEN -p.nth
                WHEN 'second' THEN (p.nth + 248) % 250
                WHEN 'middle' THEN abs(p.nth - 125)
                WHEN 'ends' THEN -abs(p.nth - 125)
                WHEN 'any' THEN p.nth * 7919 % 250
            END
    );
    FOR v_ten IN 0..24 LOOP
        v_early := v_early + (pg_temp.state(v_child) <> 'blocked')::integer;
        IF how = 'complete' THEN
            PERFORM pulse.complete_batch(v_leases [10 * v_ten + 1:10 * v_ten + 10]);
        ELSE
            PERFORM pulse.fail_batch(
                v_leases [10 * v_ten + 1:10 * v_ten + 10], fatal => array_fill(true, ARRAY[10])
            );
        END IF;
    END LOOP;
    RETURN format('%s early, %s', v_early, pg_temp.state(v_child));
END $$;
\o

SELECT is(pg_temp.fan_in(o, false), '0 early, ready', format('of neighbours, the %s first', o))
FROM unnest('{first,last,second,middle,ends,any}'::text []) AS o;
SELECT is(pg_temp.fan_in(o, true), '0 early, ready', format('with others between them, the %s first', o))
FROM unnest('{first,last,second,middle,ends,any}'::text []) AS o;
SELECT is(pg_temp.fan_in('second', false, 'fail', 'run'), '0 early, ready', 'of neighbours, where any end counts');

-- Ten small ones, which a report looks at together. Each waits for a lower and an upper job. How
-- many are released when ten of these have ended, all but the tenth of the others, and that.
\o /dev/null
CREATE FUNCTION pg_temp.end_all(jobs bigint []) RETURNS void LANGUAGE sql AS $$
    SELECT pulse.complete_batch(array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.job = ANY (jobs)))
$$;
CREATE FUNCTION pg_temp.ten_small(
    first_end text, dies boolean DEFAULT false, after_failed text DEFAULT NULL
)
RETURNS integer [] LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint [] := pg_temp.enqueue_parts(10);
    v_last bigint [] := pg_temp.enqueue_parts(10);
    v_children bigint [] := array(
        SELECT pulse.enqueue(
            'child', lane => 'child', after => ARRAY[v_first[n], v_last[n]],
            after_failed => ten_small.after_failed
        )
        FROM generate_series(1, 10) AS n
    );
    v_released integer [];
BEGIN
    PERFORM pulse.claim_batch('w', 'f', 100);
    IF first_end = 'upper' THEN
        SELECT v_first, v_last INTO v_last, v_first;
    END IF;
    IF dies THEN
        PERFORM pulse.fail(l.lease, fatal => true) FROM pulse_internal.lease AS l WHERE l.job = v_first[2];
    END IF;
    FOREACH v_first SLICE 1 IN ARRAY ARRAY[
        v_first, v_last[1:9] || v_last[9], array_fill(v_last[10], ARRAY[10])
    ] LOOP
        PERFORM pg_temp.end_all(v_first);
        v_released := v_released
            || (SELECT count(*) FROM pulse_internal.ready AS r WHERE r.job = ANY (v_children))::integer;
    END LOOP;
    RETURN v_released;
END $$;
\o
SELECT is(pg_temp.ten_small('lower'), '{0,9,10}', 'small ones, the lower jobs first: none is early');
SELECT is(pg_temp.ten_small('upper'), '{0,9,10}', 'the upper jobs first');
SELECT is(pg_temp.ten_small('lower', true), '{0,8,9}', 'one of them died');
SELECT is(pg_temp.ten_small('lower', true, 'hold'), '{0,8,9}', 'and is waited for');
SELECT is(pg_temp.ten_small('lower', true, 'run'), '{0,9,10}', 'or any end counts');

-- The last of them in order has more edges than such a look reads, and what has not ended is
-- behind those.
SELECT pg_temp.enqueue_parts(200) AS many \gset
SELECT pulse.enqueue('child', lane => 'child', after => (:'many'::bigint []) [n:n + 1])
FROM generate_series(1, 11, 2) AS n \g /dev/null
SELECT pulse.enqueue('child', lane => 'child', after => :'many') AS child \gset
\o /dev/null
SELECT pulse.claim_batch('w', 'f', 100) FROM generate_series(1, 2);
SELECT pg_temp.end_all((:'many'::bigint []) [13:150]);
SELECT pg_temp.end_all((:'many'::bigint []) [1:12] || (:'many'::bigint []) [200]);
\o
SELECT is(pg_temp.state(:child), 'blocked', 'beside one that waits for many: those are looked at, too');
\o /dev/null
SELECT pg_temp.end_all((:'many'::bigint []) [151:199]);
\o
SELECT is(pg_temp.state(:child), 'ready', 'and when they have ended, it is released');
SELECT pulse.cancel_where('{"state": "blocked"}', max_jobs => 100) \g /dev/null

-- What was spawned stands above all that it waited for.
\o /dev/null
SELECT pulse.cancel_where('{"state": "ready"}', max_jobs => 100000);
\o
SELECT pg_temp.enqueue_parts(30) AS parts \gset
SELECT pulse.enqueue('child', lane => 'child', after => :'parts') AS child \gset
SELECT pg_temp.claim_part((:'parts'::bigint [])[15]) AS spawner \gset
SELECT s AS spawned FROM pulse.spawn(:spawner, 's', '[{"kind": "more", "lane": "f"}]') AS s \gset
SELECT is(count(*), 30::bigint, 'all parts complete')
FROM pulse.complete_batch(array(
    SELECT c.lease FROM pulse.claim_batch('w', 'f', 100, kinds => '{part}') AS c
    UNION ALL SELECT :spawner::bigint
));
SELECT is(
    (SELECT b.waits_for FROM pulse_internal.blocked AS b WHERE b.job = :child), :spawned::bigint,
    'behind many, too: what was spawned is waited for'
);
SELECT pg_temp.claim_part(:spawned) AS lease \gset
\o /dev/null
SELECT pulse.complete(:lease);
\o
SELECT is(pg_temp.state(:child), 'ready', 'and then it is released');

-- Whoever had one upstream has more, once that has spawned.
SELECT (pg_temp.enqueue_parts(1))[1] AS only \gset
SELECT pulse.enqueue('child', lane => 'child', after => ARRAY[:only]::bigint []) AS child \gset
SELECT pg_temp.claim_part(:only) AS spawner \gset
SELECT min(s) AS first, max(s) AS last
FROM pulse.spawn(:spawner, 's', '[{"kind": "more", "lane": "f"}, {"kind": "most", "lane": "f"}]') AS s \gset
\o /dev/null
SELECT pulse.complete(:spawner);
SELECT pulse.complete(pg_temp.claim_part(:last));
\o
SELECT is(pg_temp.state(:child), 'blocked', 'a watch that moves is no longer alone');
\o /dev/null
SELECT pulse.complete(pg_temp.claim_part(:first));
\o
SELECT is(pg_temp.state(:child), 'ready', 'all that was spawned has ended');
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing');

SELECT * FROM finish();
ROLLBACK;
