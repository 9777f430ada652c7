-- What a change of a lane means for its groups. Under the exclusive lane lock, or the roster
-- lock of a grouped lane, taken in an earlier statement.

-- For each group that runs jobs, waits for one that keeps its place, or has jobs and no turn:
-- what counts against its slots, and whether it can run. A group without a turn may run nothing
-- any more: while the lane has no groups, claims drop the notices of ends. With only_group:
-- that one, whatever it does.
CREATE FUNCTION pulse_internal.recount_groups(
    lane pulse_internal.lane, only_group text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_groups pulse_internal.group_state [];
BEGIN
    WITH to_count AS MATERIALIZED (
        SELECT o.group_key, array_remove(array_agg(o.job ORDER BY o.job), NULL) AS running
        FROM (
            SELECT l.group_key, l.job
            FROM pulse_internal.lease AS l
            WHERE l.lane = (recount_groups.lane).lane
                AND l.group_key IS NOT NULL
            UNION ALL
            SELECT w.group_key, NULL
            FROM pulse_internal.waiting AS w
            WHERE w.lane = (recount_groups.lane).lane
                AND w.group_key IS NOT NULL
            UNION ALL
            SELECT s.group_key, NULL
            FROM pulse_internal.group_state AS s
            WHERE s.lane = (recount_groups.lane).lane
                AND s.turn IS NULL
                AND s.rank IS NOT NULL
            UNION ALL
            SELECT recount_groups.only_group, NULL
            WHERE recount_groups.only_group IS NOT NULL
        ) AS o
        WHERE recount_groups.only_group IS NULL
            OR o.group_key = recount_groups.only_group
        GROUP BY o.group_key
    ),

    counted AS MATERIALIZED (
        SELECT c.group_key, c.running, s.*
        FROM to_count AS c
        LEFT JOIN LATERAL (
            SELECT
                o.ctid AS tid, o.version, o.rank, o.place, o.kind, o.turn, o.starts, o.lasting
            FROM pulse_internal.group_state AS o
            WHERE o.lane = (recount_groups.lane).lane
                AND o.group_key = c.group_key
            ORDER BY o.version DESC
            LIMIT 1
        ) AS s ON true
    ),

    gone AS (
        DELETE FROM pulse_internal.group_state AS s
        WHERE s.ctid = ANY (array(SELECT c.tid FROM counted AS c WHERE c.tid IS NOT NULL))
    )

    SELECT
        array_agg(
            ROW(
                (recount_groups.lane).lane, c.group_key, c.version, c.rank, c.place, c.kind,
                c.running, c.turn, c.starts, NULL, NULL, c.lasting
            )::pulse_internal.group_state
        )
    INTO v_groups
    FROM counted AS c;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.write_groups(recount_groups.lane, v_groups);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.recount_groups(pulse_internal.lane, text) IS
'Write what the groups of a lane run, or one of them, and a turn for those that can run more.';

-- From when on ends of these runs leave notices. Waits for whoever reports one of them.
CREATE FUNCTION pulse_internal.name_groups_of_leases(
    lane text,
    only_group text DEFAULT NULL,
    verb text DEFAULT 'set_lane',
    in_order boolean DEFAULT false
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM
    FROM pulse_internal.lease AS l
    WHERE l.lane = name_groups_of_leases.lane
        AND (l.group_key IS NULL OR name_groups_of_leases.in_order AND l.place IS NULL)
        AND (
            name_groups_of_leases.only_group IS NULL
            OR pulse_internal.group_of(
                pulse_internal.group_key(l.job)
            ) = name_groups_of_leases.only_group
        )
    ORDER BY l.lease
    FOR NO KEY UPDATE;

    UPDATE pulse_internal.lease AS l
    SET group_key = pulse_internal.group_of(b.group_key)
    FROM pulse_internal.body AS b
    WHERE l.lane = name_groups_of_leases.lane
        AND l.group_key IS NULL
        AND b.job = l.job
        AND b.group_key <> ''
        AND (
            name_groups_of_leases.only_group IS NULL
            OR pulse_internal.group_of(b.group_key) = name_groups_of_leases.only_group
        );

    -- Jobs that run when the order is switched on come before all that stand in line: places
    -- there are drawn from a sequence, one for each job that was ever ready.
    IF name_groups_of_leases.in_order THEN
        UPDATE pulse_internal.lease AS l
        SET place = p.place
        FROM (
            SELECT
                o.lease,
                row_number() OVER (PARTITION BY o.group_key ORDER BY o.lease) AS place
            FROM pulse_internal.lease AS o
            WHERE o.lane = name_groups_of_leases.lane
                AND o.group_key IS NOT NULL
                AND o.place IS NULL
        ) AS p
        WHERE l.lease = p.lease;
    END IF;
EXCEPTION
    WHEN lock_not_available THEN
        PERFORM pulse_internal.raise(
            'PU106',
            format(
                '%s could not count the running jobs of lane %L within 10 seconds',
                name_groups_of_leases.verb, name_groups_of_leases.lane
            ),
            'A transaction that reports one of them stays open.',
            'End that transaction (a report belongs in a short transaction of its own) and try again.'
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.name_groups_of_leases(text, text, text, boolean) IS
'Write into the leases of a lane which groups they belong to, all or those of one group, with in_order also the place that each keeps, or raise PU106.';

-- grouped is what the lane was before and is now (schema/settings.sql).
CREATE FUNCTION pulse_internal.regroup(before pulse_internal.lane, after pulse_internal.lane)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (regroup.after).group_slots IS NOT NULL AND (regroup.before).group_slots IS NULL
        OR (regroup.after).in_order AND (regroup.before).in_order IS NOT TRUE
    THEN
        PERFORM pulse_internal.name_groups_of_leases(
            (regroup.after).lane, in_order => (regroup.after).in_order IS TRUE
        );
    END IF;

    -- Switched on or off: the roll is taken anew, or the lines are emptied from the start.
    IF (regroup.after).grouped IS DISTINCT FROM (regroup.before).grouped THEN
        DELETE FROM pulse_internal.group_mark AS m
        WHERE m.lane = (regroup.after).lane;

        INSERT INTO pulse_internal.group_mark (lane, notice_from, ranks, turns, roll_from)
        VALUES ((regroup.after).lane, 0, '{}', '{}', '');
    END IF;

    IF (regroup.after).grouped THEN
        PERFORM pulse_internal.recount_groups(regroup.after);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.regroup(pulse_internal.lane, pulse_internal.lane) IS
'Make the groups of a lane what its new settings say.';

-- Grouped lanes after a restore: the notices are written anew.

-- Announces every group anew, in the order of the keys, at most so many; which job is its
-- first is left to be looked up. Under the roster lock.
CREATE FUNCTION pulse_internal.announce_groups(
    lane pulse_internal.lane, mark pulse_internal.group_mark, max_groups integer
)
RETURNS pulse_internal.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse_internal.group_mark := announce_groups.mark;
    v_group text;
    v_rank integer := -2147483648;
    v_n integer := 0;
BEGIN
    IF v_mark.lane IS NULL THEN
        v_mark := ROW(
            (announce_groups.lane).lane, NULL, 0, '{}', '{}', '', '-infinity'
        )::pulse_internal.group_mark;
        PERFORM pulse_internal.recount_groups(announce_groups.lane);
    END IF;

    LOOP
        v_group := (
            SELECT r.group_key
            FROM pulse_internal.ready AS r
            WHERE r.lane = (announce_groups.lane).lane
                AND r.group_key IS NOT NULL
                AND (r.group_key, r.rank) >= (v_mark.roll_from, v_rank)
            ORDER BY r.group_key, r.rank, r.seq
            LIMIT 1
        );
        v_mark.roll_from := v_group;
        EXIT WHEN v_group IS NULL OR v_n >= announce_groups.max_groups;

        INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place)
        VALUES ((announce_groups.lane).lane, v_group, -2147483648, 0);
        -- Behind all jobs of this group.
        v_rank := 2147483647;
        v_n := v_n + 1;
    END LOOP;

    RETURN pulse_internal.write_group_mark(announce_groups.mark, v_mark);
END;
$$;

COMMENT ON FUNCTION pulse_internal.announce_groups(
    pulse_internal.lane, pulse_internal.group_mark, integer
) IS
'Announce groups of a lane from where the last call stopped, at most so many; returns the marks of the lane.';

-- The way back out of groups.

-- After grouping was switched off: to the end of the line of the lane, group by group, from
-- where the last call stopped. Notices go when nothing is left that they could announce:
-- those that were there before the look.
CREATE FUNCTION pulse_internal.leave_groups(lane text, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse_internal.group_mark;
    v_new pulse_internal.group_mark;
    v_from text COLLATE "C";
    v_notices tid [];
    v_tids tid [];
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        'pulse_internal.roster'::regclass::oid::integer, hashtext(leave_groups.lane)
    ) THEN
        RETURN 0;
    END IF;

    v_mark := pulse_internal.newest_group_mark(leave_groups.lane);
    v_from := coalesce(v_mark.roll_from, '');
    v_notices := array(
        SELECT n.ctid
        FROM pulse_internal.group_notice AS n
        WHERE n.lane = leave_groups.lane
        ORDER BY n.seq
        LIMIT leave_groups.max_jobs
    );
    v_tids := array(
        SELECT r.ctid
        FROM pulse_internal.ready AS r
        WHERE r.lane = leave_groups.lane
            AND r.group_key IS NOT NULL
            AND r.group_key >= v_from
        ORDER BY r.group_key, r.rank, r.seq
        LIMIT leave_groups.max_jobs
        FOR UPDATE SKIP LOCKED
    );

    v_new := ROW(
        leave_groups.lane, NULL, 0, '{}', '{}',
        CASE
            WHEN cardinality(v_tids) = leave_groups.max_jobs
                THEN (
                    SELECT max(r.group_key)
                    FROM pulse_internal.ready AS r
                    WHERE r.ctid = ANY (v_tids)
                )
            ELSE ''
        END,
        '-infinity'
    )::pulse_internal.group_mark;

    IF v_tids = '{}' AND v_from = '' THEN
        DELETE FROM pulse_internal.group_notice AS n
        WHERE n.ctid = ANY (v_notices)
            AND NOT EXISTS (
                SELECT FROM pulse_internal.ready AS r
                WHERE r.lane = leave_groups.lane
                    AND r.group_key IS NOT NULL
            );
        RETURN 0;
    END IF;

    IF v_new.roll_from IS DISTINCT FROM v_mark.roll_from THEN
        PERFORM pulse_internal.write_group_mark(v_mark, v_new);
    END IF;

    PERFORM pulse_internal.enter_lane(leave_groups.lane);
    WITH taken AS (
        DELETE FROM pulse_internal.ready AS r
        WHERE r.ctid = ANY (v_tids)
        RETURNING r.*
    )

    INSERT INTO pulse_internal.ready (
        lane, rank, kind, job, attempts, failures, keyed, ready_at, last_lease, last_verb
    )
    SELECT
        t.lane, t.rank, t.kind, t.job, t.attempts, t.failures, t.keyed, t.ready_at,
        t.last_lease, t.last_verb
    FROM taken AS t
    ORDER BY t.rank, t.seq;

    RETURN cardinality(v_tids);
END;
$$;

COMMENT ON FUNCTION pulse_internal.leave_groups(text, integer) IS
'Move jobs of a lane that is no longer grouped back into ready, at most so many; returns how many.';
