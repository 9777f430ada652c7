-- Rates: never more than so many starts in any window of a period.
--
-- A window of starts has at most 101 entries, one for each hundredth of the period, dated by
-- its latest start. An entry counts while that is younger than the period, so what it
-- lets through is exact upward, and at most a hundredth below. A start is never dated before
-- the one before it.
--
-- A start that is dated after now comes from a clock that was ahead (common/clock.sql). It
-- happened before now and counts as a start of this moment: the rate waits one period at
-- most. A claim writes the window with that date, under the lock, so that the start ages.

CREATE FUNCTION pulse_internal.free_starts(
    starts pulse_internal.rate_window,
    rate integer,
    per interval,
    now timestamptz,
    OUT free integer,
    OUT free_at timestamptz
)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_place integer := coalesce(cardinality((free_starts.starts).times), 0);
BEGIN
    free := free_starts.rate;
    -- From the newest back: the entry that uses the last start up has to grow old.
    WHILE v_place > 0
        AND (free_starts.starts).times[v_place] > free_starts.now - free_starts.per
    LOOP
        free := free - (free_starts.starts).counts[v_place];
        IF free <= 0 THEN
            free := 0;
            free_at := pulse_internal.by_clock(
                (free_starts.starts).times[v_place], free_starts.now
            ) + free_starts.per;
            RETURN;
        END IF;
        v_place := v_place - 1;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.free_starts(
    pulse_internal.rate_window, integer, interval, timestamptz
) IS
'How many starts a rate has left at a time, and if none when the next one comes.';

CREATE FUNCTION pulse_internal.dated_ahead(starts pulse_internal.rate_window, now timestamptz)
RETURNS boolean
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(
        (dated_ahead.starts).times[cardinality((dated_ahead.starts).times)] > dated_ahead.now, false
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.dated_ahead(pulse_internal.rate_window, timestamptz) IS
'Whether the last start of a window is dated after now.';

CREATE FUNCTION pulse_internal.date_starts(starts pulse_internal.rate_window, now timestamptz)
RETURNS pulse_internal.rate_window
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_starts pulse_internal.rate_window := date_starts.starts;
BEGIN
    IF pulse_internal.dated_ahead(v_starts, date_starts.now) THEN
        SELECT array_agg(d.at ORDER BY d.at), array_agg(d.n ORDER BY d.at)
        INTO v_starts.times, v_starts.counts
        FROM (
            SELECT
                pulse_internal.by_clock(u.at, date_starts.now) AS at,
                sum(u.n)::integer AS n
            FROM unnest((date_starts.starts).times, (date_starts.starts).counts) AS u (at, n)
            GROUP BY 1
        ) AS d;
    END IF;
    RETURN v_starts;
END;
$$;

COMMENT ON FUNCTION pulse_internal.date_starts(pulse_internal.rate_window, timestamptz) IS
'A window of starts in which those that are dated after now are starts of now.';

CREATE FUNCTION pulse_internal.add_starts(
    starts pulse_internal.rate_window, n integer, per interval, now timestamptz
)
RETURNS pulse_internal.rate_window
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_piece double precision := date_part('epoch', add_starts.per) / 100;
    v_starts pulse_internal.rate_window;
    v_times timestamptz [];
    v_counts integer [];
    v_last timestamptz;
    v_at timestamptz;
    v_places integer;
BEGIN
    v_starts := pulse_internal.date_starts(add_starts.starts, add_starts.now);
    IF add_starts.n = 0 THEN
        RETURN v_starts;
    END IF;

    v_last := v_starts.times[cardinality(v_starts.times)];
    v_at := add_starts.now;

    SELECT
        coalesce(array_agg(u.at ORDER BY u.place), '{}'),
        coalesce(array_agg(u.n ORDER BY u.place), '{}')
    INTO v_times, v_counts
    FROM unnest(v_starts.times, v_starts.counts)
    WITH ORDINALITY AS u (at, n, place)
    WHERE u.at > v_at - add_starts.per;

    v_places := cardinality(v_times);
    IF v_places > 0
        AND floor(date_part('epoch', v_at) / v_piece) = floor(date_part('epoch', v_last) / v_piece)
    THEN
        v_times[v_places] := v_at;
        v_counts[v_places] := v_counts[v_places] + add_starts.n;
    ELSE
        v_times := v_times || v_at;
        v_counts := v_counts || add_starts.n;
    END IF;
    RETURN ROW(v_times, v_counts)::pulse_internal.rate_window;
END;
$$;

COMMENT ON FUNCTION pulse_internal.add_starts(
    pulse_internal.rate_window, integer, interval, timestamptz
) IS
'A window of starts with so many more, without those that are older than the period.';

-- What set_lane and set_group are given, and what was before: 0 takes the rate away.
CREATE FUNCTION pulse_internal.rate_given(
    name text,
    old_rate integer,
    old_per interval,
    new_rate integer,
    new_per interval,
    OUT rate integer,
    OUT per interval
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A lane has both rates.
    PERFORM pulse_internal.require_range('set_lane', rate_given.name, rate_given.new_rate);
    PERFORM pulse_internal.require_range(
        'set_lane', rate_given.name || '_per', rate_given.new_per
    );
    rate := nullif(coalesce(rate_given.new_rate, rate_given.old_rate), 0);
    per := CASE WHEN rate IS NOT NULL THEN coalesce(rate_given.new_per, rate_given.old_per) END;

    IF rate IS NOT NULL AND per IS NULL OR rate IS NULL AND rate_given.new_per IS NOT NULL THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('%1$s and %1$s_per belong together', rate_given.name),
            format(
                '%s%s is given without the other one.', rate_given.name,
                CASE WHEN rate IS NULL THEN '_per' ELSE '' END
            ),
            format(
                'Pass %1$s => 100, %1$s_per => ''1 minute''; %1$s => 0 takes the limit away.',
                rate_given.name
            )
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rate_given(text, integer, interval, integer, interval) IS
'The rate that a call asks for, by what it gives and what was before; PU002 for half of one.';

-- The starts of a lane that count against its rate (claim/rates.sql), kept and explained.

CREATE FUNCTION pulse_internal.newest_quota(lane text, kind text)
RETURNS pulse_internal.quota
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_quota pulse_internal.quota;
BEGIN
    SELECT q.* INTO v_quota
    FROM pulse_internal.quota AS q
    WHERE q.lane = newest_quota.lane
        AND q.kind = newest_quota.kind
    ORDER BY q.version DESC
    LIMIT 1;

    RETURN v_quota;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_quota(text, text) IS
'The starts of a lane (kind empty) or of a kind (lane empty) with a rate, as of the last claim.';

-- Under the roster lock, or the lock of the kind.
CREATE FUNCTION pulse_internal.current_quota(lane text, kind text)
RETURNS pulse_internal.quota
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_quota pulse_internal.quota := pulse_internal.newest_quota(
        current_quota.lane, current_quota.kind
    );
    v_now timestamptz := clock_timestamp();
BEGIN
    IF pulse_internal.dated_ahead(v_quota.starts, v_now) THEN
        PERFORM pulse_internal.spend_quota(
            v_quota, current_quota.lane, current_quota.kind, 0, NULL, v_now
        );
        v_quota := pulse_internal.newest_quota(current_quota.lane, current_quota.kind);
    END IF;
    RETURN v_quota;
END;
$$;

COMMENT ON FUNCTION pulse_internal.current_quota(text, text) IS
'Like newest_quota; starts that are dated after now are written as starts of now.';

-- Under the roster lock, or the lock of the kind.
CREATE FUNCTION pulse_internal.spend_quota(
    old pulse_internal.quota, lane text, kind text, n integer, per interval, now timestamptz
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO pulse_internal.quota (lane, kind, starts)
    VALUES (
        spend_quota.lane,
        spend_quota.kind,
        pulse_internal.add_starts(
            (spend_quota.old).starts, spend_quota.n, spend_quota.per, spend_quota.now
        )
    );

    DELETE FROM pulse_internal.quota AS q
    WHERE q.lane = (spend_quota.old).lane
        AND q.kind = (spend_quota.old).kind
        AND q.version = (spend_quota.old).version;
END;
$$;

COMMENT ON FUNCTION pulse_internal.spend_quota(
    pulse_internal.quota, text, text, integer, interval, timestamptz
) IS
'Count starts against the rate of a lane or of a kind.';

CREATE FUNCTION pulse_internal.rate_obstacle(lane text)
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
            pulse_internal.duration(l.rate_per)
        )
    FROM pulse_internal.lane AS l
    CROSS JOIN LATERAL pulse_internal.free_starts(
        (pulse_internal.newest_quota(l.lane, '')).starts, l.rate, l.rate_per, clock_timestamp()
    ) AS f
    WHERE l.lane = rate_obstacle.lane
        AND f.free_at IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rate_obstacle(text) IS
'In words: that the rate of a lane is used up, and until when.';
