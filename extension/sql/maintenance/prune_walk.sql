-- How tick finds what retention does not keep (maintenance/prune.sql) among very many lanes, and
-- among very many jobs that are kept for their unique keys, at a cost that grows with
-- neither: only with what is to be removed.
--
-- A walk goes over the lanes and final states, the last first. It ends a tick after 100 of
-- them that had nothing, and the next tick goes on from there; so a lane with a few jobs
-- comes round in minutes where there are ten thousand. Those that had something are looked
-- at again by the next tick, wherever the walk is. So are the lanes that finished jobs
-- lately: they are few, and mostly have old jobs too.
--
-- In a lane whose jobs are kept for their keys, the look begins behind them (kept: in
-- upkeep_run): each goes when its key expires. Once an hour it begins at the oldest job, for
-- those that committed late or whose key was taken over.

-- Rounds of 10,000 jobs.
CREATE FUNCTION pulse_internal.tick_prune(until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('prune');
    v_place record;
    v_since timestamptz := (v_old.state ->> 'since')::timestamptz;
    v_looks integer := 100;
    v_walks boolean := true;
    v_busy jsonb := coalesce(v_old.state -> 'busy', '[]');
    v_lately jsonb := pulse_internal.finished_lately();
    v_had_some jsonb := '[]'::jsonb;
    v_round record;
    v_pair record;
    v_keys record;
    v_all bigint := 0;
    v_next jsonb;
BEGIN
    LOOP
        SELECT k.* INTO v_keys
        FROM pulse_internal.prune_keys(1000) AS k;
        v_all := v_all + v_keys.jobs;
        EXIT WHEN v_keys.keys < 1000 OR pulse_internal.time_is_over(tick_prune.until);
    END LOOP;
    PERFORM pulse_internal.prune_rows('pulse_internal.worker', 'seen_at', '1 day', 1000);
    v_busy := v_busy || (
        SELECT coalesce(jsonb_agg(e.pair), '[]')
        FROM jsonb_array_elements(v_lately) AS e (pair)
        WHERE NOT v_busy @> jsonb_build_array(e.pair)
    );

    SELECT v_old.state ->> 'lane' AS lane, (v_old.state ->> 'state')::pulse_internal.outcome AS state
    INTO v_place;
    LOOP
        IF v_walks AND v_since IS NULL THEN
            SELECT n.* INTO v_pair
            FROM pulse_internal.next_finished(
                v_place.lane, v_place.state, v_looks, tick_prune.until
            ) AS n;
            v_looks := v_pair.looks;
            v_place := v_pair;
            v_walks := v_pair.is_due;
        ELSIF v_walks THEN
            -- Where the last tick stopped inside a lane.
            v_pair := v_place;
        END IF;
        IF NOT v_walks THEN
            -- The walk is over for this time.
            EXIT WHEN v_busy = '[]';
            SELECT v_busy -> 0 ->> 0 AS lane, (v_busy -> 0 ->> 1)::pulse_internal.outcome AS state
            INTO v_pair;
            v_busy := v_busy - 0;
        END IF;

        SELECT t.* INTO v_round
        FROM pulse_internal.prune_round(v_pair.lane, v_pair.state, v_since, tick_prune.until) AS t;
        v_all := v_all + v_round.removed;
        v_since := NULL;
        IF v_round.removed > 0 THEN
            -- More than a round: again in this tick. Otherwise in the next.
            IF v_round.next IS NOT NULL THEN
                v_busy := v_busy || jsonb_build_array(jsonb_build_array(v_pair.lane, v_pair.state));
            ELSE
                v_had_some := v_had_some
                    || jsonb_build_array(jsonb_build_array(v_pair.lane, v_pair.state));
            END IF;
        END IF;
        IF pulse_internal.time_is_over(tick_prune.until) THEN
            v_since := CASE WHEN v_walks THEN v_round.next END;
            EXIT;
        END IF;
    END LOOP;

    v_next := jsonb_strip_nulls(jsonb_build_object(
        'lane', v_place.lane, 'state', v_place.state, 'since', v_since,
        'busy', nullif(
            (
                SELECT coalesce(jsonb_agg(b.pair), '[]')
                FROM (
                    SELECT DISTINCT e.pair
                    FROM jsonb_array_elements(v_busy || v_had_some) AS e (pair)
                    LIMIT 100
                ) AS b
            ),
            '[]'
        )
    ));
    IF v_next <> coalesce(v_old.state, '{}') THEN
        PERFORM pulse_internal.write_upkeep_run(v_old, 'prune', v_next);
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_prune(timestamptz) IS
'Remove what retention does not keep until it is done or the time is over; returns how many jobs.';

-- What was counted within the last minutes names the lanes, so those of no more than 100 totals
-- are looked at, each state by one look at its oldest job.
CREATE FUNCTION pulse_internal.finished_lately()
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_lanes text [];
BEGIN
    v_lanes := array(
        SELECT DISTINCT n.lane
        FROM (
            SELECT s.lane
            FROM pulse_internal.stat AS s
            WHERE s.at > (SELECT clock_timestamp() - interval '10 minutes')
                AND s.total
                AND s.lane > ''
                AND s.completed + s.dead + s.cancelled > 0
            ORDER BY s.at DESC
            LIMIT 100
        ) AS n
    );
    RETURN (
        SELECT coalesce(jsonb_agg(jsonb_build_array(o.lane, o.state)), '[]')
        FROM (
            SELECT
                p.lane,
                p.state,
                (
                    SELECT true
                    FROM pulse_internal.finished AS f
                    WHERE f.lane = p.lane
                        AND f.state = p.state
                        AND f.finished_at < p.before
                    ORDER BY f.finished_at
                    LIMIT 1
                ) AS has_old
            FROM unnest(v_lanes) AS l (lane)
            CROSS JOIN unnest(
                enum_range(NULL::pulse_internal.outcome)
            ) AS e (state)
            CROSS JOIN LATERAL pulse_internal.retention_cutoffs(
                ARRAY[l.lane], ARRAY[e.state]
            ) AS p
            OFFSET 0
        ) AS o
        WHERE o.has_old
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.finished_lately() IS
'Lanes and final states with jobs that are older than their retention, in lanes that finished jobs in the last ten minutes, as a list of pairs.';

-- In the order of finished_lanes, after the given lane and state, or from the first: one
-- that has a job to remove; else where the walk ended, NULL after the last one.
CREATE FUNCTION pulse_internal.next_finished(
    after_lane text,
    after_state pulse_internal.outcome,
    INOUT looks integer,
    until timestamptz,
    OUT lane text,
    OUT state pulse_internal.outcome,
    OUT is_due boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    -- Few at first, since what is walked behind one that is due is walked again.
    v_page integer := 5;
    v_pair record;
    v_since timestamptz;
BEGIN
    lane := next_finished.after_lane;
    state := next_finished.after_state;
    is_due := false;
    WHILE looks > 0 LOOP
        v_page := least(4 * v_page, looks);
        -- Those with a job that is old enough, and the last of a full page.
        FOR v_pair IN
            SELECT o.*
            FROM (
                SELECT
                    p.*,
                    (
                        SELECT true
                        FROM pulse_internal.finished AS f
                        WHERE f.lane = p.lane
                            AND f.state = p.state
                            AND f.finished_at < p.before
                        ORDER BY f.finished_at
                        LIMIT 1
                    ) AS has_old
                FROM pulse_internal.finished_lanes(
                    next_finished.lane, next_finished.state, v_page
                ) WITH ORDINALITY AS p (lane, state, before, place)
                OFFSET 0
            ) AS o
            WHERE o.has_old OR o.place = v_page
        LOOP
            lane := v_pair.lane;
            state := v_pair.state;
            -- Mostly the oldest is young, and nobody needs to know which are kept.
            IF v_pair.has_old THEN
                v_since := pulse_internal.kept_until(lane, state);
                PERFORM
                FROM pulse_internal.finished AS f
                WHERE f.lane = v_pair.lane
                    AND f.state = v_pair.state
                    AND f.finished_at >= v_since
                    AND f.finished_at < v_pair.before
                ORDER BY f.finished_at
                LIMIT 1;
                IF FOUND THEN
                    looks := looks - v_pair.place + 1;
                    is_due := true;
                    RETURN;
                END IF;
            END IF;
        END LOOP;

        looks := looks - v_page;
        IF v_pair.place IS DISTINCT FROM v_page THEN
            lane := NULL;
            state := NULL;
            EXIT;
        END IF;
        EXIT WHEN pulse_internal.time_is_over(next_finished.until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.next_finished(
    text, pulse_internal.outcome, integer, timestamptz
) IS
'The next lane and final state with a job that may go, after at most so many that have none.';

CREATE FUNCTION pulse_internal.prune_round(
    lane text,
    state pulse_internal.outcome,
    since timestamptz,
    until timestamptz,
    OUT removed integer,
    OUT next timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kept_until timestamptz := pulse_internal.kept_until(prune_round.lane, prune_round.state);
    v_before timestamptz := (
        SELECT r.before
        FROM pulse_internal.retention_cutoffs(
            ARRAY[prune_round.lane], ARRAY[prune_round.state]
        ) AS r
    );
    v_page record;
    v_kept integer := 0;
    v_passed integer := 0;
BEGIN
    removed := 0;
    next := coalesce(prune_round.since, v_kept_until);
    LOOP
        SELECT p.* INTO v_page
        FROM pulse_internal.prune_jobs(
            prune_round.lane, prune_round.state, v_before, next, 1000
        ) AS p;
        removed := removed + v_page.removed;
        v_kept := v_kept + v_page.kept;
        v_passed := v_passed + v_page.passed;
        next := v_page.next;
        EXIT WHEN next IS NULL
            OR removed >= 10000
            OR pulse_internal.time_is_over(prune_round.until);
    END LOOP;

    -- All of it was looked at, and what is left waits for its keys.
    IF next IS NULL
        AND v_passed = 0
        AND (v_kept > 0 OR prune_round.since IS NOT NULL OR v_kept_until > '-infinity')
    THEN
        PERFORM pulse_internal.note_kept(prune_round.lane, prune_round.state, v_before);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_round(
    text, pulse_internal.outcome, timestamptz, timestamptz
) IS
'Remove up to about 10,000 jobs of a lane that ended so; next says where to go on, NULL at the end.';

CREATE FUNCTION pulse_internal.kept_until(lane text, state pulse_internal.outcome)
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_note pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run(
        'kept:' || kept_until.state || ':' || kept_until.lane
    );
BEGIN
    IF (v_note.state ->> 'from_start_at')::timestamptz
        BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp()
    THEN
        RETURN (v_note.state ->> 'until')::timestamptz;
    END IF;
    RETURN '-infinity'::timestamptz;
END;
$$;

COMMENT ON FUNCTION pulse_internal.kept_until(text, pulse_internal.outcome) IS
'Up to when jobs of this lane that ended so are there for their unique keys alone.';

CREATE FUNCTION pulse_internal.note_kept(lane text, state pulse_internal.outcome, until timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_step text := 'kept:' || note_kept.state || ':' || note_kept.lane;
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run(v_step);
BEGIN
    PERFORM pulse_internal.write_upkeep_run(
        v_old, v_step,
        jsonb_build_object(
            'until', note_kept.until,
            'from_start_at', CASE
                WHEN pulse_internal.kept_until(note_kept.lane, note_kept.state) > '-infinity'
                    THEN (v_old.state ->> 'from_start_at')::timestamptz
                ELSE clock_timestamp()
            END
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_kept(text, pulse_internal.outcome, timestamptz) IS
'Note that jobs of this lane which ended so before that time go with their unique keys.';
