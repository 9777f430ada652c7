-- The marks of a grouped lane, written by whoever has the roster lock.

CREATE FUNCTION pulse._newest_group_mark(lane text)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse.group_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse.group_mark AS m
    WHERE m.lane = _newest_group_mark.lane
    ORDER BY m.version DESC
    LIMIT 1;

    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse._newest_group_mark(text) IS
'The marks of a grouped lane.';

-- Whoever writes turns holds the roster lock, so the first one left is the mark, or the last
-- one drawn. Notices come from every session: their mark moves in two steps (52_marks.sql), and
-- not at each time, since the horizon is not cheap to see.
CREATE FUNCTION pulse._advance_groups(
    mark pulse.group_mark,
    ranks integer [],
    woken_until timestamptz DEFAULT NULL,
    notices boolean DEFAULT true
)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse.horizon;
    v_first bigint;
    v_new pulse.group_mark := _advance_groups.mark;
BEGIN
    IF _advance_groups.notices THEN
        v_horizon := pulse._see_horizon();
        SELECT n.seq INTO v_first
        FROM pulse.group_notice AS n
        WHERE n.lane = v_new.lane
            AND n.seq >= v_new.notice_from
        ORDER BY n.seq
        LIMIT 1;
        v_new.notice_from := greatest(
            v_new.notice_from,
            least(coalesce(v_first, 9223372036854775807), v_horizon.ready_q + 1)
        );
    END IF;

    v_new.woken_until := coalesce(_advance_groups.woken_until, v_new.woken_until);

    -- At most 100 levels are recorded; one that is not is found between those that are.
    SELECT
        coalesce(array_agg(l.rank ORDER BY l.rank), '{}'),
        coalesce(array_agg(coalesce(h.turn, v.last_value) ORDER BY l.rank), '{}')
    INTO v_new.ranks, v_new.turns
    FROM (
        SELECT u.rank, max(u.turn) AS turn
        FROM (
            SELECT o.rank, o.turn
            FROM unnest(v_new.ranks, v_new.turns) AS o (rank, turn)
            UNION ALL
            SELECT o.rank, 0
            FROM unnest(_advance_groups.ranks) AS o (rank)
        ) AS u
        GROUP BY u.rank
        ORDER BY u.rank
        LIMIT 100
    ) AS l
    CROSS JOIN pulse.version AS v
    LEFT JOIN LATERAL (
        SELECT s.turn
        FROM pulse.group_state AS s
        WHERE s.lane = v_new.lane
            AND s.turn IS NOT NULL
            AND s.version > 0
            AND s.rank = l.rank
            AND s.turn >= l.turn
        ORDER BY s.turn
        LIMIT 1
    ) AS h ON true;

    IF v_new IS DISTINCT FROM _advance_groups.mark THEN
        v_new := pulse._write_group_mark(_advance_groups.mark, v_new);
    END IF;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse._advance_groups(pulse.group_mark, integer [], timestamptz, boolean) IS
'Move the marks of a grouped lane up to the first unread notice, where asked, and the first live turn of each level; returns what was written.';

CREATE FUNCTION pulse._write_group_mark(old pulse.group_mark, new pulse.group_mark)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_new pulse.group_mark := _write_group_mark.new;
BEGIN
    v_new.version := nextval('pulse.version');
    INSERT INTO pulse.group_mark
    SELECT (v_new).*;

    DELETE FROM pulse.group_mark AS m
    WHERE m.lane = (_write_group_mark.old).lane
        AND m.version = (_write_group_mark.old).version;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse._write_group_mark(pulse.group_mark, pulse.group_mark) IS
'Write the marks of a grouped lane in place of older ones; returns them.';
