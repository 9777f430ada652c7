-- Stable, so that all of it is one picture of one moment. What it says of the job is what
-- the caller can read of it; only what it says of the lane is read with more rights.
CREATE FUNCTION pulse.why(job_id bigint)
RETURNS TABLE ("position" integer, reason text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job pulse.jobs;
    v_rank integer;
    v_seq bigint;
BEGIN
    SELECT j.* INTO v_job
    FROM pulse.jobs AS j
    WHERE j.job_id = why.job_id;

    SELECT p.rank, p.seq INTO v_rank, v_seq
    FROM pulse_internal.places AS p
    WHERE p.job_id = v_job.job_id;

    RETURN QUERY
    SELECT r.position::integer, r.reason
    FROM pulse_internal.reasons(
        why.job_id, v_job, v_rank, v_seq,
        CASE WHEN v_job.waits_for IS NOT NULL THEN pulse_internal.upstream_reason(v_job) END
    )
        WITH ORDINALITY AS r (reason, position)
    ORDER BY r.position;
END;
$$;

COMMENT ON FUNCTION pulse.why(bigint) IS
'Every reason, in order and in words, why a job is not running now; for one that runs or has finished, where and since when. Producers may ask about their own jobs. PU004 no such job, or not yours. Writes nothing.';

CREATE VIEW pulse_internal.places
WITH (security_barrier)
AS
SELECT
    r.job AS job_id,
    r.rank,
    r.seq
FROM pulse_internal.in_line AS r
INNER JOIN pulse_internal.body AS b ON b.job = r.job
WHERE
    (SELECT m.sees_all FROM pulse_internal.me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer []);

COMMENT ON VIEW pulse_internal.places IS
'The places in line of the jobs that the reader may see.';

COMMENT ON COLUMN pulse_internal.places.job_id IS
'The job.';

COMMENT ON COLUMN pulse_internal.places.rank IS
'Minus its priority.';

COMMENT ON COLUMN pulse_internal.places.seq IS
'Its place among those of the same rank.';

-- Callers may hand in what they like: it tells them of lanes, never of a job they did
-- not name the facts of.
CREATE FUNCTION pulse_internal.reasons(
    job_id bigint, job pulse.jobs, rank integer, seq bigint, upstreams text
)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ahead bigint;
    v_reasons text [] := ARRAY[]::text [];
    v_form CONSTANT text := 'YYYY-MM-DD HH24:MI:SS TZ';
BEGIN
    IF (reasons.job).job_id IS NULL THEN
        PERFORM pulse_internal.raise_no_such_job(reasons.job_id);
    END IF;

    IF (reasons.job).state IN ('completed', 'dead', 'cancelled') THEN
        v_reasons := ARRAY[
            format(
                'finished: %s at %s, after %s of %s failures allowed, ended by %s%s',
                (reasons.job).state, to_char((reasons.job).finished_at, v_form),
                (reasons.job).failures, (reasons.job).max_attempts, (reasons.job).ended_by,
                CASE
                    WHEN (reasons.job).state = 'completed' THEN ''
                    ELSE coalesce(': ' || left(nullif((reasons.job).last_error, ''), 500), '')
                END
            )
        ];
    ELSIF (reasons.job).state = 'running' THEN
        v_reasons := ARRAY[
            format(
                'running since %s (%s) at worker %s, attempt %s',
                to_char((reasons.job).started_at, v_form),
                pulse_internal.duration(clock_timestamp() - (reasons.job).started_at),
                (reasons.job).worker, (reasons.job).attempts
            )
        ];
        IF (reasons.job).cancel_by IS NOT NULL THEN
            v_reasons := v_reasons || format(
                'its worker was asked to cancel it and has until %s',
                to_char((reasons.job).cancel_by, v_form)
            );
        END IF;
        IF (reasons.job).lease_until < clock_timestamp() THEN
            v_reasons := v_reasons || format(
                'its lease lapsed %s ago: the next claim or tick takes it from the worker',
                pulse_internal.duration(clock_timestamp() - (reasons.job).lease_until)
            );
        END IF;
    ELSE
        IF reasons.upstreams IS NOT NULL THEN
            v_reasons := v_reasons || reasons.upstreams;
        END IF;
        IF (reasons.job).state = 'awaiting_approval' THEN
            v_reasons := v_reasons || format(
                'awaiting approval until %s (%s left), then it is cancelled',
                to_char((reasons.job).approval_until, v_form),
                pulse_internal.duration((reasons.job).approval_until - clock_timestamp())
            );
        END IF;
        IF (reasons.job).run_at > clock_timestamp() THEN
            v_reasons := v_reasons || format(
                'due in %s, at %s',
                pulse_internal.duration((reasons.job).run_at - clock_timestamp()),
                to_char((reasons.job).run_at, v_form)
            );
        END IF;
        IF (reasons.job).state = 'retrying' THEN
            v_reasons := v_reasons || format(
                'retrying after failure %s of %s: %s',
                (reasons.job).failures, (reasons.job).max_attempts,
                coalesce(left((reasons.job).last_error, 500), 'no error was kept')
            );
        END IF;

        v_reasons := v_reasons
            || array(SELECT pulse_internal.lane_obstacles((reasons.job).lane))
            || array(SELECT pulse_internal.signal_obstacle((reasons.job).job_id));

        IF (reasons.job).state = 'ready' THEN
            v_reasons := v_reasons
                || array(SELECT pulse_internal.slot_obstacle((reasons.job).lane))
                || array(SELECT pulse_internal.rate_obstacle((reasons.job).lane))
                || array(SELECT pulse_internal.kind_obstacle((reasons.job).kind));

            v_reasons := v_reasons || array(
                SELECT pulse_internal.group_obstacles(
                    (reasons.job).lane, (reasons.job).group_key, reasons.rank, reasons.seq
                )
            );

            SELECT count(*) INTO v_ahead
            FROM (
                SELECT
                FROM pulse_internal.ready AS r
                WHERE r.lane = (reasons.job).lane
                    AND r.failures >= 0
                    AND r.group_key IS NULL
                    AND (r.rank, r.seq) < (reasons.rank, reasons.seq)
                ORDER BY r.rank, r.seq
                LIMIT 1001
            ) AS ahead;

            IF v_ahead > 0 THEN
                v_reasons := v_reasons || format(
                    '%s ahead of it in lane %s',
                    CASE
                        WHEN v_ahead > 1000 THEN 'more than 1000 jobs are'
                        WHEN v_ahead = 1 THEN '1 job is'
                        ELSE format('%s jobs are', v_ahead)
                    END,
                    (reasons.job).lane
                );
            END IF;

            v_reasons := v_reasons
                || array(SELECT pulse_internal.due_obstacle((reasons.job).lane, reasons.rank));
        END IF;

        v_reasons := v_reasons || array(
            SELECT pulse_internal.worker_obstacle((reasons.job).lane, (reasons.job).kind)
        );

        IF v_reasons = '{}' THEN
            v_reasons := ARRAY[
                format(
                    CASE (reasons.job).state
                        WHEN 'ready' THEN 'runnable: it is first in lane %s and the next claim takes it'
                        ELSE 'due: the next claim of lane %s or tick puts it in line'
                    END,
                    (reasons.job).lane
                )
            ];
        END IF;

        v_reasons := v_reasons
            || array(SELECT pulse_internal.producer_notes((reasons.job).lane));

        IF (reasons.job).attempts = 0 AND (reasons.job).start_by IS NOT NULL THEN
            v_reasons := v_reasons || format(
                'cancelled unless it begins by %s (%s left)',
                to_char((reasons.job).start_by, v_form),
                pulse_internal.duration((reasons.job).start_by - clock_timestamp())
            );
        END IF;
    END IF;

    RETURN QUERY
    SELECT unnest(v_reasons);
END;
$$;

COMMENT ON FUNCTION pulse_internal.reasons(bigint, pulse.jobs, integer, bigint, text) IS
'In words: what why says of a job with these facts; PU004 when there are none.';

-- With the caller's rights. Above the one that it watches all have ended, but for spawned ones.
CREATE FUNCTION pulse_internal.upstream_reason(job pulse.jobs)
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        format(
            'waits for %s of %s: %s%s',
            CASE WHEN u.open > 1000 THEN 'more than 1000' ELSE u.open::text END,
            CASE
                WHEN n.jobs > 1000 THEN 'more than 1000 jobs'
                WHEN n.jobs = 1 THEN '1 job'
                ELSE n.jobs || ' jobs'
            END,
            coalesce(array_to_string(u.words [1:5], ', '), (upstream_reason.job).waits_for || ' (just ended)'),
            CASE WHEN u.open > 5 THEN ', …' ELSE '' END
        )
    FROM (
        SELECT
            count(*) AS open,
            array_agg(
                format(
                    '%s (%s%s)', o.after_job_id, o.follows,
                    CASE
                        WHEN o.state IS NULL THEN 'gone: cancel this one'
                        WHEN o.state IN ('dead', 'cancelled')
                            THEN o.state || ': retry it, or cancel this one'
                        ELSE concat_ws(' at ', o.state, CASE WHEN o.state = 'running' THEN o.worker END)
                    END
                )
                ORDER BY o.after_job_id
            ) AS words
        FROM (
            SELECT
                d.after_job_id,
                j.state,
                j.worker,
                CASE
                    WHEN (j.lane, j.unique_key)
                        = ((upstream_reason.job).lane, (upstream_reason.job).unique_key)
                        THEN 'which it follows: '
                END AS follows
            FROM (
                SELECT e.after_job_id
                FROM pulse.dependencies AS e
                WHERE e.job_id = (upstream_reason.job).job_id
                ORDER BY e.after_job_id DESC
                LIMIT 100000
            ) AS d
            LEFT JOIN LATERAL (
                SELECT j.state, j.worker, j.lane, j.unique_key
                FROM pulse.jobs AS j
                WHERE j.job_id = d.after_job_id
            ) AS j ON true
            WHERE j.state IS DISTINCT FROM 'completed'
                AND (
                    (upstream_reason.job).after_failed <> 'run'
                    OR (j.state IN ('dead', 'cancelled')) IS NOT TRUE
                )
            LIMIT 1001
        ) AS o
    ) AS u
    CROSS JOIN (
        SELECT count(*) AS jobs
        FROM (
            SELECT
            FROM pulse.dependencies AS e
            WHERE e.job_id = (upstream_reason.job).job_id
            LIMIT 1001
        ) AS capped
    ) AS n
$$;

COMMENT ON FUNCTION pulse_internal.upstream_reason(pulse.jobs) IS
'In words: which of the jobs that it depends on a blocked one still waits for.';
