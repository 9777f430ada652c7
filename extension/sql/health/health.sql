-- One row for each thing that can be wrong, with a figure and what to do about it. Each
-- group of checks is a function of its own; all of them answer, whatever they find.

CREATE FUNCTION pulse.health()
RETURNS TABLE (check_name text, status text, figure text, advice text, jobs jsonb)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT
        h.check_name,
        h.status,
        h.figure,
        CASE WHEN h.status <> 'ok' THEN h.advice END AS advice,
        CASE WHEN h.status <> 'ok' THEN h.jobs END AS jobs
    FROM (
        SELECT u.*, NULL::jsonb AS jobs FROM pulse_internal.health_upkeep() AS u
        UNION ALL
        SELECT l.* FROM pulse_internal.health_lanes() AS l
        UNION ALL
        SELECT s.*, NULL FROM pulse_internal.health_server() AS s
        UNION ALL
        SELECT
            'version', 'ok', format('%s (%s), build %s', v.version, v.product, v.build), NULL, NULL
        FROM pulse.version() AS v
    ) AS h
$$;

COMMENT ON FUNCTION pulse.health() IS
'One row for each check: its name, ok, warn or fail, a figure, and, where it is not ok, what to do and the jobs it is about: a JSON list of at most ten filters as find_jobs and the bulk verbs take them. Where more than 1,000 lanes have ready jobs, oldest_ready_job, held_lanes and stuck_lanes look at those whose jobs have waited longest, and their figures say so. Where the owner of pulse may not see other sessions it says so: grant it pg_read_all_stats. Writes nothing.';

-- A thousand names would hide the other checks.
CREATE FUNCTION pulse_internal.some_of(names text [])
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        array_to_string(some_of.names[1:10], ', ')
        || CASE
            WHEN cardinality(some_of.names) > 10
                THEN format(' and %s more', cardinality(some_of.names) - 10)
            ELSE ''
        END
$$;

COMMENT ON FUNCTION pulse_internal.some_of(text []) IS
'In words: the first ten of these, and how many more there are.';

CREATE FUNCTION pulse_internal.health_upkeep()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        'last_tick',
        CASE
            WHEN t.taken_at > clock_timestamp() - interval '30 seconds' THEN 'ok'
            WHEN t.taken_at > clock_timestamp() - interval '5 minutes' THEN 'warn'
            ELSE 'fail'
        END,
        coalesce(pulse_internal.duration(clock_timestamp() - t.taken_at) || ' ago', 'never'),
        'Delayed jobs, schedules and lost workers wait for tick: SELECT pulse.start_watchdog(), or run a worker, or call pulse.tick() every 10 seconds. If one of these runs and this stays, its tick does not come to its end: see the log of the caller and its statement_timeout.'
        || coalesce(' Little time: ' || pulse_internal.short_timeouts() || '.', '')
    FROM (
        SELECT max(n.taken_at) AS taken_at
        FROM (VALUES ('due'), ('sweep')) AS s (step)
        CROSS JOIN LATERAL (
            SELECT u.taken_at
            FROM pulse_internal.upkeep_run AS u
            WHERE u.step = s.step
            ORDER BY u.version DESC
            LIMIT 1
        ) AS n
    ) AS t;

    RETURN QUERY
    SELECT
        'clock',
        CASE WHEN n.ago <= interval '1 day' THEN 'warn' ELSE 'ok' END,
        CASE
            WHEN n.ago IS NULL THEN 'no step back'
            ELSE format(
                'set back%s, noticed %s ago', coalesce(' by ' || pulse_internal.duration(n.back), ''),
                pulse_internal.duration(n.ago)
            )
        END,
        'The clock of the server was set back: times that it wrote before are corrected by tick. Let it be slewed (chrony, ntpd) and not stepped while the server runs.'
    FROM (VALUES (true)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT
            greatest(clock_timestamp() - u.taken_at, '0') AS ago,
            make_interval(secs => (u.state ->> 'back')::double precision) AS back
        FROM pulse_internal.upkeep_run AS u
        WHERE u.step = 'clock'
        ORDER BY u.version DESC
        LIMIT 1
    ) AS n ON true;

    RETURN QUERY
    SELECT
        'tick_errors',
        CASE
            WHEN max(e.taken_at) > clock_timestamp() - interval '10 minutes' THEN 'fail'
            WHEN count(*) > 0 THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            string_agg(
                format(
                    '%s, %s ago: %s', substr(e.step, 7),
                    pulse_internal.duration(clock_timestamp() - e.taken_at), e.state ->> 'error'
                ),
                '; '
                ORDER BY e.version DESC
            ),
            'none in 24 h'
        ),
        'A step of tick failed; the others went on. The message says why.'
    FROM (
        SELECT DISTINCT ON (u.step) u.*
        FROM pulse_internal.upkeep_run AS u
        WHERE u.step LIKE 'error:%'
        ORDER BY u.step, u.version DESC
    ) AS e
    WHERE e.taken_at > clock_timestamp() - interval '24 hours';

    RETURN QUERY
    SELECT
        'tick_budget',
        CASE
            WHEN min(c.since) < clock_timestamp() - interval '10 minutes' THEN 'fail'
            WHEN min(c.since) < clock_timestamp() - interval '1 minute' THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            string_agg(
                format('%s for %s', c.step, pulse_internal.duration(clock_timestamp() - c.since)),
                ', '
                ORDER BY c.since
            ),
            'every step comes to its end'
        ),
        'These steps of tick run out of time at each call, or are skipped because every caller has a statement_timeout below 0.9 seconds (the backstop, over many dead rows: below 6 seconds), so their work piles up: call tick more often (run more workers, or pulse.start_watchdog(''1 second'')), raise the statement_timeout of the role that calls it to 10 seconds or more, or give the server more to work with.'
        || coalesce(' Little time: ' || pulse_internal.short_timeouts() || '.', '')
    FROM (
        SELECT s.step, min(s.since) AS since
        FROM pulse_internal.cut_steps() AS s
        WHERE s.noted_at > clock_timestamp() - interval '1 minute'
        GROUP BY s.step
    ) AS c;

    RETURN QUERY
    SELECT
        'upkeep_run',
        CASE
            WHEN max(clock_timestamp() - a.xact_start) > interval '1 minute' THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            string_agg(
                format(
                    'held by backend %s%s', l.pid,
                    coalesce(' for ' || pulse_internal.duration(clock_timestamp() - a.xact_start), '')
                ),
                ', '
            ),
            'free'
        ),
        'A transaction that called tick and stays open keeps all other callers from it: end it (pg_terminate_backend).'
    FROM pg_locks AS l
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory'
        AND l.granted
        AND l.classid = 'pulse_internal.upkeep_run'::regclass
        AND l.database = (
            SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
        );

    RETURN QUERY
    SELECT
        'watchdog',
        CASE WHEN w.present AND w.active THEN 'ok' ELSE 'warn' END,
        coalesce(w.detail, 'none'),
        'Without it only workers call tick, and nothing happens while none runs: SELECT pulse.start_watchdog(). Where pg_cron has an entry and does not run it, that makes pg_cron read its entries again; if it still does not, the log of the server says whether its launcher runs.'
    FROM pulse_internal.watchdog() AS w;

    RETURN QUERY
    SELECT
        'lapsed_leases',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        format('%s lapsed over a minute ago', count(*)),
        'Their workers are lost, and no tick or claim has ended these runs: see last_tick and tick_errors.'
    FROM pulse_internal.lease AS l
    WHERE l.lease_until < clock_timestamp() - interval '1 minute';

    RETURN QUERY
    SELECT
        'rows_below_marks',
        CASE WHEN coalesce(n.found, 0) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(
            n.found || ' found by the sweep '
            || pulse_internal.duration(clock_timestamp() - n.taken_at) || ' ago',
            'not swept yet'
        ),
        'A job stood where no claim looks; its mark was lowered and it runs. This is a bug in pulse: please report it with SELECT * FROM pulse.check().'
    FROM (VALUES (true)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT
            u.taken_at,
            coalesce((u.state ->> 'found')::bigint, 0) AS found
        FROM pulse_internal.upkeep_run AS u
        WHERE u.step = 'backstop'
        ORDER BY u.version DESC
        LIMIT 1
    ) AS n ON true;

    RETURN QUERY
    SELECT f.* FROM pulse_internal.health_flows() AS f;

    RETURN QUERY
    SELECT
        'schedules',
        CASE
            WHEN count(*) FILTER (WHERE s.last_error IS NOT NULL) > 0 THEN 'fail'
            WHEN count(*) FILTER (WHERE s.late) > 0 THEN 'warn'
            ELSE 'ok'
        END,
        format(
            '%s with an error%s, %s late',
            count(*) FILTER (WHERE s.last_error IS NOT NULL),
            coalesce(
                ' (' || pulse_internal.some_of(
                    array_agg(s.name ORDER BY s.name) FILTER (WHERE s.last_error IS NOT NULL)
                ) || ')',
                ''
            ),
            count(*) FILTER (WHERE s.late)
        ),
        'SELECT name, next_at, last_error FROM pulse.schedules says which and why.'
    FROM pulse.schedules AS s;
END;
$$;

COMMENT ON FUNCTION pulse_internal.health_upkeep() IS
'Checks of what tick has to do.';
