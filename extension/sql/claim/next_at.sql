-- When time alone makes a job claimable.

CREATE FUNCTION pulse.next_at(lane text, kinds text [] DEFAULT NULL)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lane pulse_internal.lane;
    v_due timestamptz;
    v_woken timestamptz;
    v_wake timestamptz;
    v_free timestamptz;
    v_kind timestamptz;
BEGIN
    PERFORM pulse_internal.require_name('lane', next_at.lane);
    SELECT l.* INTO v_lane
    FROM pulse_internal.lane AS l
    WHERE l.lane = next_at.lane;

    SELECT w.run_at INTO v_due
    FROM pulse_internal.waiting AS w
    WHERE w.lane = next_at.lane
        AND w.attempts >= 0
        AND w.run_at >= (pulse_internal.newest_due_mark(next_at.lane)).run_at
        AND w.run_at < 'infinity'
    ORDER BY w.run_at
    LIMIT 1;

    IF v_lane.grouped THEN
        -- A mark after now is of a clock that was ahead: the next claim looks from the start.
        v_woken := (pulse_internal.newest_group_mark(next_at.lane)).woken_until;
        IF v_woken IS NULL OR v_woken > v_now THEN
            v_woken := '-infinity';
        END IF;
        SELECT s.wake_at INTO v_wake
        FROM pulse_internal.group_state AS s
        WHERE s.lane = next_at.lane
            AND s.wake_at IS NOT NULL
            AND s.rank IS NOT NULL
            AND s.wake_at >= v_woken
            AND (next_at.kinds IS NULL OR s.kind = ANY (next_at.kinds))
        ORDER BY s.wake_at
        LIMIT 1;
    END IF;

    IF v_lane.rate IS NOT NULL THEN
        SELECT f.free_at INTO v_free
        FROM pulse_internal.free_starts(
            (pulse_internal.newest_quota(next_at.lane, '')).starts, v_lane.rate, v_lane.rate_per, v_now
        ) AS f;
    END IF;

    -- Of a kind with a rate that stands in line: when it has a start again, or now.
    SELECT min(coalesce(f.free_at, v_now)) INTO v_kind
    FROM pulse_internal.kind AS k
    CROSS JOIN LATERAL pulse_internal.free_starts(
        (pulse_internal.newest_quota('', k.kind)).starts, k.rate, k.rate_per, v_now
    ) AS f
    WHERE k.rate IS NOT NULL
        AND (next_at.kinds IS NULL OR k.kind = ANY (next_at.kinds))
        AND (
            pulse_internal.stands_in_line(next_at.lane, k.kind)
            OR EXISTS (
                SELECT FROM pulse_internal.group_state AS s
                WHERE s.lane = next_at.lane
                    AND s.kind = k.kind
                    AND s.turn IS NOT NULL
                    AND s.place >= 0
            )
        );

    -- Nothing starts before the lane has a start again; what stands in line does then, or
    -- now, if one has come since a claim found nothing.
    IF v_lane.rate IS NOT NULL THEN
        IF pulse_internal.stands_in_line(next_at.lane)
            OR EXISTS (
                SELECT FROM pulse_internal.group_state AS s
                WHERE s.lane = next_at.lane AND s.turn IS NOT NULL AND s.version > 0
            )
            OR EXISTS (SELECT FROM pulse_internal.group_notice AS n WHERE n.lane = next_at.lane)
        THEN
            v_due := least(v_due, v_now);
        END IF;
        v_due := greatest(v_due, CASE WHEN v_due IS NOT NULL THEN v_free END);
        v_wake := greatest(v_wake, CASE WHEN v_wake IS NOT NULL THEN v_free END);
        v_kind := greatest(v_kind, CASE WHEN v_kind IS NOT NULL THEN v_free END);
    END IF;
    RETURN least(v_due, v_wake, v_kind);
END;
$$;

COMMENT ON FUNCTION pulse.next_at(text, text []) IS
'When the passing of time alone will make a job of a lane claimable: the next job that is due, or the next start that a rate of the lane, of a kind or of a group allows (now, or before, if there is one by now). With kinds, of groups whose first job is of one of these. NULL: nothing is known that waits for time. A claim may find nothing then all the same, and something before: slots, pauses and new jobs are not foreseen. PU002 not a lane name. Writes nothing.';

-- From the marks of the lane on, which no job that stands in line is below.
CREATE FUNCTION pulse_internal.stands_in_line(lane text, kind text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse_internal.mark := pulse_internal.newest_mark(stands_in_line.lane, '');
    v_rank integer;
    v_to integer;
    v_seq bigint;
BEGIN
    FOR v_level IN 0..coalesce(cardinality(v_mark.ranks), 0) LOOP
        v_rank := coalesce(v_mark.ranks[nullif(v_level, 0)], -2147483648);
        v_seq := coalesce(v_mark.seqs[nullif(v_level, 0)], 0);
        v_to := coalesce(v_mark.ranks[v_level + 1], 2147483647);
        IF stands_in_line.kind IS NULL THEN
            PERFORM
            FROM pulse_internal.ready AS r
            WHERE r.lane = stands_in_line.lane
                AND r.failures >= 0
                AND r.group_key IS NULL
                AND (r.rank, r.seq) >= (v_rank, v_seq)
                AND r.rank < v_to
            ORDER BY r.rank, r.seq
            LIMIT 1;
        ELSE
            PERFORM
            FROM pulse_internal.ready AS r
            WHERE r.lane = stands_in_line.lane
                AND r.kind = stands_in_line.kind
                AND r.attempts >= 0
                AND r.group_key IS NULL
                AND (r.rank, r.seq) >= (v_rank, v_seq)
                AND r.rank < v_to
            ORDER BY r.rank, r.seq
            LIMIT 1;
        END IF;
        IF FOUND THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END;
$$;

COMMENT ON FUNCTION pulse_internal.stands_in_line(text, text) IS
'Whether a job, or one of a kind, stands in the line of a lane, outside of groups.';
