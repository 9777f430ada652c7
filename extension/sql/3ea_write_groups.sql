-- A group that never had a row and has nothing to tell gets none. One that had keeps its last
-- one when it goes idle: else the next look would meet all its dead versions.
CREATE FUNCTION pulse._write_groups(lane pulse.lane, groups pulse.group_state [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    INSERT INTO pulse.group_state (
        lane, group_key, rank, place, kind, more, rest, leases, turn, credit, starts, wake_at,
        lasting
    )
    SELECT
        g.lane, g.group_key, g.rank, g.place, g.kind, g.more, g.rest,
        CASE WHEN l.slots IS NOT NULL THEN g.leases END,
        CASE
            WHEN g.rank IS NOT NULL
                AND q.enabled IS NOT FALSE
                AND f.free_at IS NULL
                AND (l.slots IS NULL OR coalesce(cardinality(g.leases), 0) < l.slots)
                THEN coalesce(g.turn, nextval('pulse.version'))
        END,
        g.credit,
        g.starts,
        CASE WHEN g.rank IS NOT NULL THEN f.free_at END,
        g.version IS NOT NULL OR random() < 0.0625
    FROM unnest(_write_groups.groups) AS g
    LEFT JOIN LATERAL (
        SELECT r.*
        FROM pulse.group_rule AS r
        WHERE r.lane = g.lane
            AND r.group_key = g.group_key
        OFFSET 0
    ) AS q ON true
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN g.group_key = '' THEN NULL
                WHEN (_write_groups.lane).in_order THEN 1
                ELSE coalesce(q.max_slots, (_write_groups.lane).group_slots)
            END AS slots,
            coalesce(q.rate, (_write_groups.lane).group_rate) AS rate,
            coalesce(q.rate_per, (_write_groups.lane).group_rate_per) AS rate_per
    ) AS l
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.rate IS NOT NULL AND g.group_key <> ''
                    THEN (
                        SELECT o.free_at
                        FROM pulse._free_starts(
                            g.starts, l.rate, l.rate_per, clock_timestamp()
                        ) AS o
                    )
            END AS free_at
        OFFSET 0
    ) AS f
    WHERE g.rank IS NOT NULL OR g.version IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse._write_groups(pulse.lane, pulse.group_state []) IS
'Write states of groups; those that can run get a turn at the end of the round, unless they have one.';
