-- What a change of a lane means for its groups. Under the exclusive lane lock, or the roster
-- lock of a grouped lane, taken in an earlier statement.

-- For each group that runs jobs: its leases, and whether it can run. A group that waits for a
-- slot runs something, so this finds all that a change can wake.
CREATE FUNCTION pulse._recount_groups(lane text, slots integer)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    WITH running AS MATERIALIZED (
        SELECT l.group_key, array_agg(l.lease ORDER BY l.lease) AS leases
        FROM pulse.lease AS l
        WHERE l.lane = _recount_groups.lane
            AND l.group_key IS NOT NULL
        GROUP BY l.group_key
    ),

    counted AS MATERIALIZED (
        SELECT
            r.group_key, r.leases AS running, s.*
        FROM running AS r
        LEFT JOIN LATERAL (
            SELECT o.ctid AS tid, o.rank, o.place, o.kind, o.more, o.turn
            FROM pulse.group_state AS o
            WHERE o.lane = _recount_groups.lane
                AND o.group_key = r.group_key
            ORDER BY o.version DESC
            LIMIT 1
        ) AS s ON true
    ),

    gone AS (
        DELETE FROM pulse.group_state AS s
        WHERE s.ctid = ANY (array(SELECT c.tid FROM counted AS c WHERE c.tid IS NOT NULL))
    )

    INSERT INTO pulse.group_state (lane, group_key, rank, place, kind, more, leases, turn)
    SELECT
        _recount_groups.lane, c.group_key, c.rank, c.place, c.kind, c.more,
        CASE WHEN _recount_groups.slots IS NOT NULL THEN c.running END,
        CASE
            WHEN c.rank IS NOT NULL
                AND (
                    _recount_groups.slots IS NULL
                    OR cardinality(c.running) < _recount_groups.slots
                )
                THEN coalesce(c.turn, nextval('pulse.version'))
        END
    FROM counted AS c
    WHERE c.rank IS NOT NULL
        OR c.tid IS NOT NULL
        OR _recount_groups.slots IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse._recount_groups(text, integer) IS
'Write what the groups of a lane run, and a turn for those that can run more.';

-- From when on ends of these runs leave notices. Waits for whoever reports one of them.
CREATE FUNCTION pulse._name_groups_of_leases(lane text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM
    FROM pulse.lease AS l
    WHERE l.lane = _name_groups_of_leases.lane
        AND l.group_key IS NULL
    ORDER BY l.lease
    FOR NO KEY UPDATE;

    UPDATE pulse.lease AS l
    SET group_key = pulse._group_of(b.group_key)
    FROM pulse.body AS b
    WHERE l.lane = _name_groups_of_leases.lane
        AND l.group_key IS NULL
        AND b.job = l.job
        AND b.group_key <> '';
EXCEPTION
    WHEN lock_not_available THEN
        PERFORM pulse._raise(
            'PU106',
            format(
                'set_lane could not count the running jobs of lane %L within 10 seconds',
                _name_groups_of_leases.lane
            ),
            'A transaction that reports one of them stays open.',
            'End that transaction (a report belongs in a short transaction of its own) and try again.'
        );
END;
$$;

COMMENT ON FUNCTION pulse._name_groups_of_leases(text) IS
'Write into the leases of a lane which groups they belong to, or raise PU106.';

-- grouped is what the lane was before and is now (02_lanes.sql).
CREATE FUNCTION pulse._regroup(before pulse.lane, after pulse.lane)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (_regroup.after).group_slots IS NOT NULL AND (_regroup.before).group_slots IS NULL THEN
        PERFORM pulse._name_groups_of_leases((_regroup.after).lane);
    END IF;

    -- Switched on or off: the roll is taken anew, or the lines are emptied from the start.
    IF (_regroup.after).grouped IS DISTINCT FROM (_regroup.before).grouped THEN
        DELETE FROM pulse.group_mark AS m
        WHERE m.lane = (_regroup.after).lane;

        INSERT INTO pulse.group_mark (lane, notice_from, ranks, turns, roll_from)
        VALUES ((_regroup.after).lane, 0, '{}', '{}', '');
    END IF;

    IF (_regroup.after).grouped THEN
        PERFORM pulse._recount_groups((_regroup.after).lane, (_regroup.after).group_slots);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._regroup(pulse.lane, pulse.lane) IS
'Make the groups of a lane what its new settings say.';
