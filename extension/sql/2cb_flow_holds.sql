-- Pauses of flows, looked up.

CREATE FUNCTION pulse._flow_holds(flow text)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        format(
            'flow %s is paused by %s%s since %s (%s), held by role %s',
            h.flow, h.holder, coalesce(': ' || nullif(h.reason, '') || ',', ''),
            to_char(h.held_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
            pulse._duration(clock_timestamp() - h.held_at), h.held_by
        )
    FROM pulse.flow_hold AS h
    WHERE h.flow = _flow_holds.flow
    ORDER BY h.held_at, h.holder
$$;

COMMENT ON FUNCTION pulse._flow_holds(text) IS
'In words: every pause of a flow.';

CREATE FUNCTION pulse._flow_number(job bigint)
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT min(h.number)
        FROM pulse.flow_hold AS h
        WHERE h.flow = (SELECT b.flow FROM pulse.body AS b WHERE b.job = _flow_number.job)
    );
END;
$$;

COMMENT ON FUNCTION pulse._flow_number(bigint) IS
'The number of the first pause of the flow of a job; NULL when it is not paused.';

CREATE FUNCTION pulse._require_flow(flow text, new boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM pulse._require_name('flow', _require_flow.flow);
    IF (
        _require_flow.new
        OR EXISTS (SELECT FROM pulse.body AS b WHERE b.flow = _require_flow.flow)
        OR EXISTS (SELECT FROM pulse.flow_hold AS h WHERE h.flow = _require_flow.flow)
    ) IS NOT TRUE THEN
        PERFORM pulse._raise(
            'PU013',
            format('there is no flow %L', _require_flow.flow),
            'No job is in it.',
            'SELECT flow FROM pulse.jobs; to hold a flow before it is enqueued: new => true.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_flow(text, boolean) IS
'Raise PU002 unless the value can be a flow, and PU013 unless a job is in it or it may be new.';

CREATE FUNCTION pulse._require_lane_or_flow(lane text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_lane_or_flow.lane IS NOT NULL THEN
        PERFORM pulse._raise(
            'PU002',
            'lane and flow cannot be held together',
            format('The lane is %L.', _require_lane_or_flow.lane),
            'Pause one of them, or each in a call of its own.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_lane_or_flow(text) IS
'Raise PU002 when a lane is named beside a flow.';
