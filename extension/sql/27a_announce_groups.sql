-- Grouped lanes after a restore: the notices are written anew.

-- Announces every level of every group anew, in the order of the keys, at most so many; the
-- place is left to be looked up. Under the roster lock.
CREATE FUNCTION pulse._announce_groups(
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
    v_mark pulse.group_mark := _announce_groups.mark;
    v_line record;
    v_n integer := 0;
BEGIN
    IF v_mark.lane IS NULL THEN
        v_mark := ROW(
            (_announce_groups.lane).lane, NULL, 0, '{}', '{}', '', -2147483648, '-infinity'
        )::pulse.group_mark;
        PERFORM pulse._recount_groups(_announce_groups.lane);
    END IF;

    LOOP
        SELECT r.group_key, r.rank INTO v_line
        FROM pulse.group_ready AS r
        WHERE r.lane = (_announce_groups.lane).lane
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
        EXIT WHEN v_n >= _announce_groups.max_levels;

        INSERT INTO pulse.group_notice (lane, group_key, rank, place)
        VALUES ((_announce_groups.lane).lane, v_line.group_key, v_line.rank, 0);
        v_mark.roll_rank := v_line.rank + 1;
        v_n := v_n + 1;
    END LOOP;

    RETURN pulse._write_group_mark(_announce_groups.mark, v_mark);
END;
$$;

COMMENT ON FUNCTION pulse._announce_groups(pulse.lane, pulse.group_mark, integer) IS
'Announce groups of a lane from where the last call stopped, at most so many levels; returns the marks of the lane.';
