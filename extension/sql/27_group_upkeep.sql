-- The upkeep of grouped lanes: the roll after a restore, the way back out of groups, and what
-- tick does once a second.

-- Announces every level of every group anew, in the order of the keys, at most so many; the
-- place is left to be looked up. Under the roster lock.
CREATE FUNCTION pulse._take_roll(
    lane pulse.lane, mark pulse.group_mark, max_levels integer
)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse.group_mark := _take_roll.mark;
    v_line record;
    v_n integer := 0;
BEGIN
    IF v_mark.lane IS NULL THEN
        v_mark := ROW(
            (_take_roll.lane).lane, NULL, 0, '{}', '{}', '', -2147483648, '-infinity'
        )::pulse.group_mark;
        PERFORM pulse._recount_groups(_take_roll.lane);
    END IF;

    LOOP
        SELECT r.group_key, r.rank INTO v_line
        FROM pulse.group_ready AS r
        WHERE r.lane = (_take_roll.lane).lane
            AND r.failures >= 0
            AND (r.group_key, r.rank) >= (v_mark.roll_from, v_mark.roll_rank)
        ORDER BY r.group_key, r.rank, r.seq
        LIMIT 1;

        IF NOT FOUND THEN
            v_mark.roll_from := NULL;
            v_mark.roll_rank := -2147483648;
            EXIT;
        END IF;

        v_mark.roll_from := v_line.group_key;
        v_mark.roll_rank := v_line.rank;
        EXIT WHEN v_n >= _take_roll.max_levels;

        INSERT INTO pulse.group_notice (lane, group_key, rank, place)
        VALUES ((_take_roll.lane).lane, v_line.group_key, v_line.rank, 0);
        v_mark.roll_rank := v_line.rank + 1;
        v_n := v_n + 1;
    END LOOP;

    RETURN pulse._write_group_mark(_take_roll.mark, v_mark);
END;
$$;

COMMENT ON FUNCTION pulse._take_roll(pulse.lane, pulse.group_mark, integer) IS
'Announce groups of a lane from where the roll stopped, at most so many levels; returns the marks of the lane.';

-- After grouping was switched off: to the end of the line of the lane, group by group, from
-- where the last call stopped. Notices go when nothing is left that they could announce:
-- those that were there before the look.
CREATE FUNCTION pulse._leave_groups(lane text, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse.group_mark;
    v_new pulse.group_mark;
    v_from text COLLATE "C";
    v_notices tid [];
    v_tids tid [];
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        'pulse.roster'::regclass::oid::integer, hashtext(_leave_groups.lane)
    ) THEN
        RETURN 0;
    END IF;

    v_mark := pulse._newest_group_mark(_leave_groups.lane);
    v_from := coalesce(v_mark.roll_from, '');
    v_notices := array(
        SELECT n.ctid
        FROM pulse.group_notice AS n
        WHERE n.lane = _leave_groups.lane
        ORDER BY n.seq
        LIMIT _leave_groups.max_jobs
    );
    v_tids := array(
        SELECT r.ctid
        FROM pulse.group_ready AS r
        WHERE r.lane = _leave_groups.lane
            AND r.failures >= 0
            AND r.group_key >= v_from
        ORDER BY r.group_key, r.rank, r.seq
        LIMIT _leave_groups.max_jobs
        FOR UPDATE SKIP LOCKED
    );

    v_new := ROW(
        _leave_groups.lane, NULL, 0, '{}', '{}',
        CASE
            WHEN cardinality(v_tids) = _leave_groups.max_jobs
                THEN (
                    SELECT max(r.group_key)
                    FROM pulse.group_ready AS r
                    WHERE r.ctid = ANY (v_tids)
                )
            ELSE ''
        END,
        -2147483648, '-infinity'
    )::pulse.group_mark;

    IF v_tids = '{}' AND v_from = '' THEN
        DELETE FROM pulse.group_notice AS n
        WHERE n.ctid = ANY (v_notices)
            AND NOT EXISTS (
                SELECT FROM pulse.group_ready AS r
                WHERE r.lane = _leave_groups.lane
                    AND r.failures >= 0
            );
        RETURN 0;
    END IF;

    IF v_new.roll_from IS DISTINCT FROM v_mark.roll_from THEN
        PERFORM pulse._write_group_mark(v_mark, v_new);
    END IF;

    WITH taken AS (
        DELETE FROM pulse.group_ready AS r
        WHERE r.ctid = ANY (v_tids)
        RETURNING r.*
    )

    INSERT INTO pulse.ready (
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

COMMENT ON FUNCTION pulse._leave_groups(text, integer) IS
'Move jobs of a lane that is no longer grouped back into ready, at most so many; returns how many.';

-- A step of tick, its last one: the locks of the lanes are held until tick commits, and claims
-- are kept out meanwhile. So it does only what claims do not do soon enough by themselves, and
-- for no longer than a fifth of a second. Lanes take turns, five hundred a tick.
CREATE FUNCTION pulse._tick_groups(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_until timestamptz := least(
        _tick_groups.until, clock_timestamp() + interval '200 milliseconds'
    );
    v_old pulse.upkeep_run := pulse._newest_upkeep_run('groups_at');
    v_from jsonb := coalesce(v_old.state, '{}');
    v_to jsonb;
    v_after text;
    v_lane text;
    v_lanes bigint := 0;
BEGIN
    FOR v_lane IN
        SELECT pulse._group_lanes(coalesce(v_from ->> 'after', ''), 500)
    LOOP
        IF pulse._group_lane_waits(v_lane) THEN
            PERFORM pulse._tick_group_lane(v_lane);
        END IF;
        v_lanes := v_lanes + 1;
        IF v_lanes = 500 OR clock_timestamp() >= v_until THEN
            v_after := v_lane;
            EXIT;
        END IF;
    END LOOP;

    v_to := jsonb_strip_nulls(
        jsonb_build_object('after', v_after)
        || pulse._sweep_groups(v_from ->> 'lane', v_from ->> 'group')
    );
    IF v_to <> v_from THEN
        PERFORM pulse._write_upkeep_run(v_old, 'groups_at', v_to);
    END IF;
    RETURN v_lanes;
END;
$$;

COMMENT ON FUNCTION pulse._tick_groups(timestamptz) IS
'Read notices, sort jobs into groups or out of them and sweep idle groups; returns how many lanes it looked at.';

-- Lanes that are or were grouped, and between them those for which a notice was left since.
CREATE FUNCTION pulse._group_lanes(after text, max_lanes integer)
RETURNS SETOF text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_lane text COLLATE "C" := _group_lanes.after;
    v_known text COLLATE "C";
    v_new text COLLATE "C";
BEGIN
    FOR v_n IN 1.._group_lanes.max_lanes LOOP
        SELECT l.lane INTO v_known
        FROM pulse.lane AS l
        WHERE l.lane > v_lane
            AND l.grouped IS NOT NULL
        ORDER BY l.lane
        LIMIT 1;

        -- Two statements: an OR would not be a bound of the index.
        IF v_known IS NULL THEN
            SELECT n.lane INTO v_new
            FROM pulse.group_notice AS n
            WHERE n.lane > v_lane
            ORDER BY n.lane, n.seq
            LIMIT 1;
        ELSE
            SELECT n.lane INTO v_new
            FROM pulse.group_notice AS n
            WHERE n.lane > v_lane
                AND n.lane < v_known
            ORDER BY n.lane, n.seq
            LIMIT 1;
        END IF;

        v_lane := coalesce(v_new, v_known);
        EXIT WHEN v_lane IS NULL;
        RETURN NEXT v_lane;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._group_lanes(text, integer) IS
'The lanes after this one that tick has to look at for their groups, at most so many.';

-- Only a look, without a lock.
CREATE FUNCTION pulse._group_lane_waits(lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse.group_mark;
BEGIN
    IF NOT pulse._is_grouped(_group_lane_waits.lane) THEN
        RETURN true;
    END IF;

    v_mark := pulse._newest_group_mark(_group_lane_waits.lane);
    RETURN v_mark.lane IS NULL
        OR v_mark.roll_from IS NOT NULL
        OR pulse._count_ready(_group_lane_waits.lane, 501) > 500
        OR EXISTS (
            SELECT
            FROM pulse.group_notice AS n
            WHERE n.lane = _group_lane_waits.lane
                AND n.seq >= v_mark.notice_from
            ORDER BY n.seq
            OFFSET 1000
            LIMIT 1
        );
END;
$$;

COMMENT ON FUNCTION pulse._group_lane_waits(text) IS
'Whether there is more to do in a grouped lane than its next claim will.';

-- Waits for nobody: where a claim or set_lane is at work, it comes again in a second.
CREATE FUNCTION pulse._tick_group_lane(lane text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_lane pulse.lane;
    v_mark pulse.group_mark;
    v_read record;
    v_moved integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(
        'pulse.lane'::regclass::oid::integer, hashtext(_tick_group_lane.lane)
    )
        OR NOT pg_try_advisory_xact_lock(
            'pulse.roster'::regclass::oid::integer, hashtext(_tick_group_lane.lane)
        )
    THEN
        RETURN;
    END IF;

    SELECT l.* INTO v_lane
    FROM pulse.lane AS l
    WHERE l.lane = _tick_group_lane.lane;

    IF v_lane.grouped IS NOT TRUE THEN
        v_moved := pulse._leave_groups(_tick_group_lane.lane, 10000);
        IF v_moved > 0 THEN
            PERFORM pulse._ring(_tick_group_lane.lane);
        ELSE
            PERFORM pulse._forget_groups(_tick_group_lane.lane);
        END IF;
        RETURN;
    END IF;

    v_mark := pulse._newest_group_mark(_tick_group_lane.lane);
    IF v_mark.lane IS NULL OR v_mark.roll_from IS NOT NULL THEN
        v_mark := pulse._take_roll(v_lane, v_mark, 10000);
    END IF;

    PERFORM pulse._sort_into_groups(
        _tick_group_lane.lane, 10000, pulse._newest_mark(_tick_group_lane.lane, '')
    );
    SELECT n.* INTO v_read
    FROM pulse._read_notices(
        v_lane, v_mark.notice_from, 10000, v_mark.roll_from
    ) AS n;
    IF v_read.groups IS NOT NULL THEN
        PERFORM pulse._write_groups(v_lane, v_read.groups);
    END IF;

    PERFORM pulse._advance_groups(
        v_mark,
        array(
            SELECT DISTINCT g.rank
            FROM unnest(v_read.groups) AS g
            WHERE g.rank IS NOT NULL
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse._tick_group_lane(text) IS
'The upkeep of one grouped lane, if nobody is at work there.';
