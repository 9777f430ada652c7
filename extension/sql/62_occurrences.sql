-- When a recurrence (cron, every or at) occurs.

CREATE FUNCTION pulse._occurrence_after(recurrence pulse.recurrence, after timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_recurrence pulse.recurrence := _occurrence_after.recurrence;
BEGIN
    IF v_recurrence.at IS NOT NULL THEN
        RETURN CASE WHEN v_recurrence.at > _occurrence_after.after THEN v_recurrence.at END;
    END IF;
    IF v_recurrence.every IS NOT NULL THEN
        RETURN pulse._interval_occurrence(
            v_recurrence, pulse._interval_count(v_recurrence, _occurrence_after.after) + 1
        );
    END IF;
    RETURN pulse._cron_next(v_recurrence.cron, v_recurrence.timezone, _occurrence_after.after);
END;
$$;

COMMENT ON FUNCTION pulse._occurrence_after(pulse.recurrence, timestamptz) IS
'The first occurrence after a moment; NULL when there is none.';

-- A cron expression is looked for further and further back, then followed.
CREATE FUNCTION pulse._occurrence_until(
    recurrence pulse.recurrence, since timestamptz, until timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_recurrence pulse.recurrence := _occurrence_until.recurrence;
    v_back interval := interval '1 minute';
    v_number bigint;
    v_found timestamptz;
    v_next timestamptz;
BEGIN
    IF v_recurrence.at IS NOT NULL THEN
        RETURN _occurrence_until.since;
    END IF;
    IF v_recurrence.every IS NOT NULL THEN
        v_number := pulse._interval_count(v_recurrence, _occurrence_until.until);
        IF v_number > 0 THEN
            v_found := pulse._interval_occurrence(v_recurrence, v_number);
        END IF;
        RETURN greatest(v_found, _occurrence_until.since);
    END IF;

    LOOP
        v_next := pulse._cron_next(
            v_recurrence.cron, v_recurrence.timezone,
            greatest(_occurrence_until.since, _occurrence_until.until - v_back)
        );
        EXIT WHEN v_next <= _occurrence_until.until
            OR _occurrence_until.until - v_back <= _occurrence_until.since;
        v_back := v_back * 2;
    END LOOP;
    v_found := _occurrence_until.since;
    WHILE v_next <= _occurrence_until.until LOOP
        v_found := v_next;
        v_next := pulse._cron_next(v_recurrence.cron, v_recurrence.timezone, v_next);
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse._occurrence_until(pulse.recurrence, timestamptz, timestamptz) IS
'The newest occurrence up to a moment, given one that is known.';

CREATE FUNCTION pulse._recurrence(
    cron text, every interval, at timestamptz, anchor timestamptz, timezone text
)
RETURNS pulse.recurrence
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ROW(
        CASE WHEN _recurrence.cron IS NOT NULL THEN pulse._cron_parse(_recurrence.cron) END,
        _recurrence.every,
        _recurrence.at,
        _recurrence.anchor,
        _recurrence.timezone
    )::pulse.recurrence
$$;

COMMENT ON FUNCTION pulse._recurrence(text, interval, timestamptz, timestamptz, text) IS
'What says when a schedule is due, with its cron expression read.';
