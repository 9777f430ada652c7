-- What all bulk verbs have in common: check, pick, do, count, audit.

CREATE FUNCTION pulse._do_where(
    who integer,
    verb text,
    filter jsonb,
    to_lane text,
    to_rank integer,
    force boolean,
    max_jobs integer,
    dry_run boolean,
    reason text,
    to_time timestamptz DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_max_jobs integer := coalesce(_do_where.max_jobs, 10000);
    v_filter pulse._job_filter;
    v_locked pulse._job_filter;
    v_job bigint;
    v_first bigint;
    v_last bigint;
    v_state text;
    v_lane text;
    v_rekeyed boolean;
    v_keys_in_use boolean := false;
BEGIN
    PERFORM pulse._require_read_committed(_do_where.verb || '_where');
    v_filter := pulse._parse_filter(_do_where.verb, _do_where.filter);
    PERFORM pulse._require_between('max_jobs', v_max_jobs, 1, 100000);
    PERFORM pulse._require_reason(_do_where.reason);
    done := 0;

    -- A producer has its own jobs and no others.
    IF _do_where.verb = 'cancel' AND NOT pulse._operates(_do_where.who) THEN
        IF _do_where.force THEN
            PERFORM pulse._raise_force();
        END IF;
        v_filter.owners := array(
            SELECT o.role
            FROM unnest(pulse._numbers_of(_do_where.who)) AS o (role)
            WHERE v_filter.owners IS NULL OR o.role = ANY (v_filter.owners)
        );
        v_filter.asks_body := true;
    END IF;

    -- NULL is no order to act.
    IF coalesce(_do_where.dry_run, true) THEN
        SELECT least(count(*), v_max_jobs), greatest(count(*) - v_max_jobs, 0)
        INTO done, remaining
        FROM pulse._matching(
            _do_where.verb, v_filter, _do_where.to_lane, _do_where.to_rank,
            _do_where.force, v_max_jobs + 100000, _do_where.to_time
        );
        RETURN NEXT;
        RETURN;
    END IF;

    v_locked := v_filter;
    v_locked.jobs := array(
        SELECT p.job
        FROM pulse._pick_matching(
            _do_where.verb, v_filter, _do_where.to_lane, _do_where.to_rank,
            _do_where.force, v_max_jobs, _do_where.to_time
        ) AS p (job)
    );
    -- In a later statement than the locks: another verb may have come before them.
    FOR v_job IN
        SELECT m.job
        FROM pulse._matching(
            _do_where.verb, v_locked, _do_where.to_lane, _do_where.to_rank,
            _do_where.force, v_max_jobs, _do_where.to_time
        ) AS m
        ORDER BY CASE WHEN _do_where.verb <> 'discard' THEN m.job END, m.job DESC
    LOOP
        CASE _do_where.verb
            WHEN 'cancel' THEN
                SELECT c.state INTO v_state
                FROM pulse._cancel(v_job, _do_where.reason, _do_where.force) AS c;

            WHEN 'approve' THEN
                SELECT a.state INTO v_state
                FROM pulse._approve(v_job) AS a;

            WHEN 'reject' THEN
                SELECT r.state INTO v_state
                FROM pulse._reject(v_job, _do_where.reason) AS r;

            WHEN 'retry' THEN
                SELECT f.lane INTO v_lane
                FROM pulse.finished AS f
                WHERE f.job = v_job;

                -- Else it came back with a job that it depends on.
                IF FOUND THEN
                    CONTINUE WHEN v_keys_in_use AND pulse._key_of(v_job) IS NOT NULL;
                    v_rekeyed := pulse._try_rekey(v_job, v_lane);
                    v_keys_in_use := v_keys_in_use OR v_rekeyed IS NULL;
                    CONTINUE WHEN v_rekeyed IS NOT TRUE;

                    SELECT r.state INTO v_state
                    FROM pulse._retry(v_job) AS r;
                ELSE
                    v_state := 'blocked';
                END IF;

            WHEN 'run_now' THEN
                SELECT r.state INTO v_state
                FROM pulse._reschedule(v_job, '-infinity') AS r;

            WHEN 'reschedule' THEN
                SELECT r.state INTO v_state
                FROM pulse._reschedule(v_job, _do_where.to_time) AS r;

            WHEN 'rerun' THEN
                SELECT r.was INTO v_state
                FROM pulse._rerun(v_job) AS r;

            WHEN 'discard' THEN
                SELECT d.state INTO v_state
                FROM pulse._discard(v_job) AS d;

            WHEN 'reprioritize' THEN
                SELECT s.state INTO v_state
                FROM pulse._shift(v_job, NULL, _do_where.to_rank) AS s;

            WHEN 'move' THEN
                -- The key first: a job that cannot move keeps its place in line.
                CONTINUE WHEN v_keys_in_use AND pulse._key_of(v_job) IS NOT NULL;
                v_rekeyed := pulse._try_rekey(v_job, _do_where.to_lane);
                v_keys_in_use := v_keys_in_use OR v_rekeyed IS NULL;
                CONTINUE WHEN v_rekeyed IS NOT TRUE;

                SELECT s.state INTO v_state
                FROM pulse._shift(v_job, _do_where.to_lane, NULL) AS s;
        END CASE;

        CONTINUE WHEN v_state IS NULL;

        done := done + 1;
        v_first := least(v_first, v_job);
        v_last := greatest(v_last, v_job);
    END LOOP;

    SELECT count(*) INTO remaining
    FROM pulse._matching(
        _do_where.verb, v_filter, _do_where.to_lane, _do_where.to_rank,
        _do_where.force, 100000, _do_where.to_time
    );

    PERFORM pulse._audit(
        _do_where.who, _do_where.verb || '_where', NULL,
        CASE WHEN jsonb_typeof(_do_where.filter -> 'lane') = 'string' THEN _do_where.filter ->> 'lane' END,
        jsonb_build_object(
            'filter',
            _do_where.filter || jsonb_strip_nulls(
                jsonb_build_object('job_ids', v_filter.jobs::text [])
            )
        ),
        jsonb_strip_nulls(
            jsonb_build_object(
                'done', done,
                'remaining', remaining,
                'first_job', v_first::text,
                'last_job', v_last::text,
                'lane', _do_where.to_lane,
                'priority', - _do_where.to_rank,
                'run_at', _do_where.to_time,
                'force', nullif(_do_where.force, false)
            )
        ),
        _do_where.reason
    );
    RETURN NEXT;
END;
$$;

COMMENT ON FUNCTION pulse._do_where(
    integer, text, jsonb, text, integer, boolean, integer, boolean, text, timestamptz
) IS
'What all bulk verbs have in common: check, pick, do, count, audit.';
