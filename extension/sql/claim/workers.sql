-- A worker's hello is information for people: no claim depends on it.

CREATE FUNCTION pulse.hello(
    worker text,
    lanes text [] DEFAULT '{default}',
    kinds text [] DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS TABLE (
    lane text, poll_interval interval, lease_for interval, max_batch integer, rated boolean
)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(hello.signature);
BEGIN
    PERFORM pulse_internal.require_name('worker', hello.worker);
    PERFORM pulse_internal.require_between(
        cardinality(hello.lanes), pulse_internal.range_of('hello', 'lanes', 'items')
    );
    PERFORM pulse_internal.require_name('lanes', u.lane)
    FROM unnest(hello.lanes) AS u (lane);
    PERFORM pulse_internal.require_between(
        cardinality(hello.kinds), pulse_internal.range_of('hello', 'kinds', 'items')
    );
    PERFORM pulse_internal.require_name('kinds', u.kind)
    FROM unnest(hello.kinds) AS u (kind);

    INSERT INTO pulse_internal.worker AS w (worker, lanes, kinds, seen_by, seen_at)
    VALUES (
        hello.worker, coalesce(hello.lanes, '{}'), hello.kinds, pulse_internal.role_name(v_who),
        clock_timestamp()
    )
    ON CONFLICT ON CONSTRAINT worker_says_hello_once DO UPDATE SET
        lanes = excluded.lanes,
        kinds = excluded.kinds,
        seen_by = excluded.seen_by,
        seen_at = excluded.seen_at
    WHERE w.seen_at NOT BETWEEN clock_timestamp() - interval '30 seconds' AND clock_timestamp()
        OR w.lanes <> excluded.lanes
        OR w.kinds IS DISTINCT FROM excluded.kinds;

    RETURN QUERY
    SELECT
        s.lane, s.poll_interval, s.lease_for, s.max_batch,
        num_nonnulls(s.rate, s.group_rate) > 0
        OR EXISTS (
            SELECT FROM pulse_internal.group_rule AS q
            WHERE q.lane = u.lane
                AND q.rate IS NOT NULL
        )
        OR EXISTS (
            SELECT FROM pulse_internal.kind AS k
            WHERE k.rate IS NOT NULL
                AND (hello.kinds IS NULL OR k.kind = ANY (hello.kinds))
        )
    FROM unnest(hello.lanes) WITH ORDINALITY AS u (lane, place)
    CROSS JOIN LATERAL pulse_internal.lane_settings(u.lane) AS s
    ORDER BY u.place;
END;
$$;

COMMENT ON FUNCTION pulse.hello(
    text, text [], text [], pulse_internal.caller_signature
) IS
'Report that a worker is running and which lanes and kinds (NULL: all) it takes, so that health can name kinds nobody handles; returns how these lanes want to be polled, and whether a rate may hold them (rated: next_at knows until when). Writes worker, at most once in 30 seconds.';

-- A worker that never says hello is known by what it runs. A heartbeat moves
-- lease_until to lease_for from now, so the difference is when it was last seen.
-- Hello comes every thirty seconds: a worker that missed four of them is not counted
-- on, unless it runs a job whose lease still has time (and so needs no heartbeat yet).
CREATE VIEW pulse.workers
WITH (security_barrier)
AS
SELECT
    coalesce(w.worker, r.worker) AS worker,
    coalesce(w.lanes, r.lanes) AS lanes,
    w.kinds,
    greatest(w.seen_at, r.seen_at) AS seen_at,
    coalesce(r.running, 0) AS running,
    w.seen_by,
    greatest(w.seen_at + interval '2 minutes', r.seen_at + interval '2 minutes', r.lease_until)
    > clock_timestamp() AS live
FROM pulse_internal.worker AS w
FULL JOIN (
    SELECT
        l.worker,
        array_agg(DISTINCT l.lane ORDER BY l.lane)::text [] AS lanes,
        max(greatest(l.claimed_at, l.lease_until - l.lease_for)) AS seen_at,
        max(l.lease_until) AS lease_until,
        count(*) AS running
    FROM pulse_internal.lease AS l
    GROUP BY l.worker
) AS r ON r.worker = w.worker;

COMMENT ON VIEW pulse.workers IS
'Workers that said hello or run jobs: their lanes, their kinds (NULL is every kind), when they were last seen, how many jobs they run, as which role, whether they are live.';

COMMENT ON COLUMN pulse.workers.worker IS
'The name it gave.';

COMMENT ON COLUMN pulse.workers.lanes IS
'The lanes it said it takes, or those of the jobs it runs.';

COMMENT ON COLUMN pulse.workers.kinds IS
'The kinds it said it takes; NULL is every kind.';

COMMENT ON COLUMN pulse.workers.seen_at IS
'When it last said hello, claimed or sent a heartbeat.';

COMMENT ON COLUMN pulse.workers.running IS
'How many jobs it runs.';

COMMENT ON COLUMN pulse.workers.seen_by IS
'The role it said hello as.';

COMMENT ON COLUMN pulse.workers.live IS
'Whether it was seen in the last two minutes or has a lease that has not lapsed.';
