-- What has ended once more, as a new job; a schedule's job out of turn; and what has ended,
-- removed by a filter.

CREATE FUNCTION pulse.rerun(job_id bigint, reason text DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_rerun(pulse._sign(), rerun.job_id, rerun.reason)
$$;

COMMENT ON FUNCTION pulse.rerun(bigint, text) IS
'Enqueue a job that has ended once more and return the id of the new one, whose rerun_of names the old one: same kind, payload, headers, lane, priority and options, same owner, without its unique key and start_by; where the old one needed approval so does the new one. The old one stays as it is (retry puts a dead or cancelled job itself back in line). PU004 no such job; PU105 it has not ended; PU107 it kept moving. Writes what enqueue writes, and audit_entry.';

CREATE FUNCTION pulse._do_rerun(signature pulse._signature, job_id bigint, reason text)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_rerun.signature);
    v_done record;
BEGIN
    PERFORM pulse._require_read_committed('rerun');
    PERFORM pulse._require_reason(_do_rerun.reason);

    SELECT r.* INTO v_done
    FROM pulse._rerun(_do_rerun.job_id) AS r;

    IF v_done.new_job IS NULL THEN
        PERFORM pulse._raise_wrong_state(
            _do_rerun.job_id, v_done.was, 'rerun',
            'Only a job that has ended can be; it will run, or call run_now.'
        );
    END IF;

    PERFORM pulse._audit(
        v_who, 'rerun', _do_rerun.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('rerun_as', v_done.new_job::text),
        _do_rerun.reason
    );
    RETURN v_done.new_job;
END;
$$;

COMMENT ON FUNCTION pulse._do_rerun(pulse._signature, bigint, text) IS
'rerun for the role that signed. Writes the same.';

-- The row in finished is locked, so that body is there. new_job stays NULL for a job that has
-- not ended.
CREATE FUNCTION pulse._rerun(job_id bigint, OUT was text, OUT lane text, OUT new_job bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
    v_body pulse.body;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(_rerun.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was NOT IN ('completed', 'dead', 'cancelled') THEN
        RETURN;
    END IF;

    SELECT b.* INTO v_body
    FROM pulse.body AS b
    WHERE b.job = _rerun.job_id;

    INSERT INTO pulse._request AS r (kind, payload, lane, priority, options, owner)
    VALUES (
        v_body.kind, v_body.payload, v_was.lane, - v_was.rank,
        ROW(
            NULL, NULL, NULL, NULL, NULL, NULL, v_body.max_attempts, NULL, NULL, 'skip',
            v_body.group_key, v_body.needed_approval, v_body.tags, v_body.max_runtime,
            v_body.headers, NULL, NULL, NULL, NULL, v_body.flow, v_body.name
        )::pulse._item,
        v_body.owner
    )
    RETURNING r.job_id INTO new_job;

    UPDATE pulse.body AS b
    SET rerun_of = _rerun.job_id
    WHERE b.job = new_job;
END;
$$;

COMMENT ON FUNCTION pulse._rerun(bigint) IS
'Enqueue a job that has ended once more; says what it was and the id of the new one.';

CREATE FUNCTION pulse.rerun_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse._do_rerun_where(
        pulse._sign(), rerun_where.filter, rerun_where.max_jobs, rerun_where.dry_run,
        rerun_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.rerun_where(jsonb, integer, boolean, text) IS
'Rerun every job that has ended and that the filter matches (name the state to have only some), except those that were rerun before. Filter, limits and answer as in cancel_where. Writes what rerun writes, with one audit_entry.';

CREATE FUNCTION pulse._do_rerun_where(
    signature pulse._signature,
    filter jsonb,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'rerun', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse._do_rerun_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'rerun_where for the role that signed. Writes the same.';

CREATE FUNCTION pulse.discard_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse._do_discard_where(
        pulse._sign(), discard_where.filter, discard_where.max_jobs,
        discard_where.dry_run, discard_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.discard_where(jsonb, integer, boolean, text) IS
'Remove every job that has ended and that the filter matches, as delete_job does (name the state to have only some, e.g. {"state": "dead", "kind": "send-email"}). Filter, limits and answer as in cancel_where. Writes what delete_job writes, with one audit_entry.';

CREATE FUNCTION pulse._do_discard_where(
    signature pulse._signature,
    filter jsonb,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'discard', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse._do_discard_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'discard_where for the role that signed. Writes the same.';

CREATE FUNCTION pulse.run_schedule_now(name text, reason text DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_run_schedule_now(
        pulse._sign(), run_schedule_now.name, run_schedule_now.reason
    )
$$;

COMMENT ON FUNCTION pulse.run_schedule_now(text, text) IS
'Enqueue the job of a schedule now, paused or not, and return its id; when it fires next stays as it is. PU005 no such schedule; PU102 its unique key is taken. Writes what enqueue writes, schedule_run and audit_entry.';

CREATE FUNCTION pulse._do_run_schedule_now(
    signature pulse._signature, name text, reason text
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_run_schedule_now.signature);
    v_schedule pulse.schedule;
    v_job pulse._enqueued;
BEGIN
    PERFORM pulse._require_read_committed('run_schedule_now');
    PERFORM pulse._require_reason(_do_run_schedule_now.reason);
    v_schedule := pulse._require_schedule(_do_run_schedule_now.name);
    v_job := pulse._enqueue_scheduled(v_schedule);

    IF NOT v_job.created THEN
        PERFORM pulse._raise_key_taken(
            coalesce(v_schedule.options ->> 'lane', (pulse._kind_settings(v_schedule.kind)).lane),
            v_schedule.options ->> 'unique_key', v_job.job_id
        );
    END IF;

    INSERT INTO pulse.schedule_run (name, occurrence, job)
    VALUES (v_schedule.name, clock_timestamp(), v_job.job_id);

    PERFORM pulse._audit(
        v_who, 'run_schedule_now', v_job.job_id, NULL,
        NULL, jsonb_build_object('name', v_schedule.name), _do_run_schedule_now.reason
    );
    RETURN v_job.job_id;
END;
$$;

COMMENT ON FUNCTION pulse._do_run_schedule_now(pulse._signature, text, text) IS
'run_schedule_now for the role that signed. Writes the same.';
