-- The starts of a lane that count against its rate (2e_rates.sql), kept and explained.

CREATE FUNCTION pulse._newest_quota(lane text, kind text)
RETURNS pulse.quota
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_quota pulse.quota;
BEGIN
    SELECT q.* INTO v_quota
    FROM pulse.quota AS q
    WHERE q.lane = _newest_quota.lane
        AND q.kind = _newest_quota.kind
    ORDER BY q.version DESC
    LIMIT 1;

    RETURN v_quota;
END;
$$;

COMMENT ON FUNCTION pulse._newest_quota(text, text) IS
'The starts of a lane (kind empty) or of a kind (lane empty) with a rate, as of the last claim.';

-- Under the roster lock, or the lock of the kind.
CREATE FUNCTION pulse._spend_quota(
    old pulse.quota, lane text, kind text, n integer, per interval, now timestamptz
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO pulse.quota (lane, kind, starts)
    VALUES (
        _spend_quota.lane,
        _spend_quota.kind,
        pulse._add_starts(
            (_spend_quota.old).starts, _spend_quota.n, _spend_quota.per, _spend_quota.now
        )
    );

    DELETE FROM pulse.quota AS q
    WHERE q.lane = (_spend_quota.old).lane
        AND q.kind = (_spend_quota.old).kind
        AND q.version = (_spend_quota.old).version;
END;
$$;

COMMENT ON FUNCTION pulse._spend_quota(
    pulse.quota, text, text, integer, interval, timestamptz
) IS
'Count starts against the rate of a lane or of a kind.';

CREATE FUNCTION pulse._rate_obstacle(lane text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        format(
            'the rate of lane %s is used up until %s: %s starts in %s',
            l.lane, to_char(f.free_at, 'YYYY-MM-DD HH24:MI:SS.MS TZ'), l.rate,
            pulse._duration(l.rate_per)
        )
    FROM pulse.lane AS l
    CROSS JOIN LATERAL pulse._free_starts(
        (pulse._newest_quota(l.lane, '')).starts, l.rate, l.rate_per, clock_timestamp()
    ) AS f
    WHERE l.lane = _rate_obstacle.lane
        AND f.free_at IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse._rate_obstacle(text) IS
'In words: that the rate of a lane is used up, and until when.';
