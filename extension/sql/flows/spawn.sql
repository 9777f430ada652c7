-- What a running job adds to its flow.

CREATE FUNCTION pulse.spawn(lease bigint, step text, jobs jsonb)
RETURNS SETOF bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint;
    v_step pulse_internal.job_step;
    v_body pulse_internal.body;
    v_waiting bigint [];
    v_ids bigint [];
    v_new bigint [];
BEGIN
    PERFORM pulse_internal.require_read_committed('spawn');
    PERFORM pulse_internal.require_name('step', spawn.step);
    PERFORM pulse_internal.require_json('jobs', spawn.jobs, 'array', '[{"kind": "parse"}]');
    v_job := pulse_internal.job_of(spawn.lease);

    -- Waits for another call with the same step of the same run.
    INSERT INTO pulse_internal.job_step (job, step, saved_at)
    VALUES (v_job, spawn.step, clock_timestamp())
    ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING;

    IF NOT FOUND THEN
        v_step := pulse_internal.step_of(v_job, spawn.step, 'spawn');
        RETURN QUERY SELECT unnest(v_step.jobs);
        RETURN;
    END IF;

    -- The jobs that wait for the running one. A follower (enqueue/follow.sql) is none of
    -- them: it waits for the end of the run alone. A job that begins to wait later does not
    -- wait for the spawned jobs. The lock is shared, so that several runs may spawn for one
    -- job at once. It waits for a session that holds the row, and no session unblocks the
    -- job until this transaction commits.
    v_waiting := array(
        SELECT b.job
        FROM pulse_internal.blocked AS b
        WHERE b.job = ANY (array(
                SELECT d.job FROM pulse_internal.dependency AS d WHERE d.after = v_job
            ))
            AND (
                NOT b.keyed
                OR (
                    SELECT k.follows FROM pulse_internal.job_key AS k WHERE k.job = b.job
                ) IS NOT TRUE
            )
        ORDER BY b.job
        FOR KEY SHARE
    );

    SELECT b.* INTO v_body
    FROM pulse_internal.body AS b
    WHERE b.job = v_job;

    SELECT array_agg(e.job_id), array_agg(DISTINCT e.job_id) FILTER (WHERE e.created)
    INTO v_ids, v_new
    FROM pulse_internal.enqueue_jobs(spawn.jobs, v_body.owner, v_body.flow) AS e;
    PERFORM pulse_internal.require_spawnable(spawn.jobs, v_new);

    PERFORM pulse_internal.require_flow_options(
        NULL, NULL, NULL, NULL, cardinality(v_waiting)::bigint * cardinality(v_new)
    );
    INSERT INTO pulse_internal.dependency (job, after)
    SELECT w.job, n.job
    FROM unnest(v_waiting) AS w (job)
    CROSS JOIN unnest(v_new) AS n (job);

    UPDATE pulse_internal.job_step AS s
    SET jobs = coalesce(v_ids, '{}')
    WHERE s.job = v_job
        AND s.step = spawn.step;

    RETURN QUERY SELECT unnest(v_ids);
END;
$$;

COMMENT ON FUNCTION pulse.spawn(bigint, text, jsonb) IS
'Enqueue a list of jobs (as enqueue_many takes it) from inside a running one, for the role that enqueued it and into its flow: the jobs that depend on the running one at that moment depend on these too, but a job that follows it by its unique key does not. Once for each step: a later attempt that spawns it again gets the same ids. Errors as in enqueue_many; PU101 the lease was lost, PU002 the step is of another sort, PU105 one of after is blocked or has failed. Writes what enqueue_many writes, and dependency and job_step.';

-- A job that waits for the running one is blocked. If a spawned job waited for it, both would
-- wait for ever; and what has failed may be blocked when it is retried. Asked of what was
-- written: a name in the list can stand for a job that has its unique key.
CREATE FUNCTION pulse_internal.require_spawnable(jobs jsonb, ids bigint [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_wrong record;
BEGIN
    SELECT e.job ->> 'on_conflict' AS on_conflict INTO v_wrong
    FROM jsonb_array_elements(require_spawnable.jobs) AS e (job)
    WHERE e.job ->> 'on_conflict' IN ('follow', 'cancel')
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('a spawned job cannot have on_conflict %L', v_wrong.on_conflict),
            'It could wait for a job that waits for the running one.',
            'Use skip, replace or error, or enqueue it without spawn.'
        );
    END IF;

    SELECT p.job, p.state INTO v_wrong
    FROM (
        SELECT d.after AS job
        FROM pulse_internal.dependency AS d
        WHERE d.job = ANY (require_spawnable.ids)
        EXCEPT
        SELECT unnest(require_spawnable.ids)
    ) AS u
    CROSS JOIN LATERAL (
        SELECT o.job, o.state FROM pulse_internal.place AS o WHERE o.job = u.job OFFSET 0
    ) AS p
    WHERE p.state IN ('blocked', 'dead', 'cancelled')
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse_internal.raise_wrong_state(
            v_wrong.job, v_wrong.state, 'spawn a job after',
            'It may wait for the running job. Let spawned jobs wait for each other, by name, or for jobs that run or have completed.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_spawnable(jsonb, bigint []) IS
'Raise PU105 when a spawned job waits for one that may wait for the running job, PU002 when it could come to.';

CREATE FUNCTION pulse.upstream(lease bigint)
RETURNS TABLE (job_id bigint, name text, kind text, state text, result jsonb)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint := (SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = upstream.lease);
BEGIN
    IF v_job IS NULL THEN
        PERFORM pulse_internal.raise_lease_lost(upstream.lease);
    END IF;

    RETURN QUERY
    SELECT d.after, b.name, b.kind, p.state, p.result
    FROM (
        SELECT o.after
        FROM pulse_internal.dependency AS o
        WHERE o.job = v_job
        ORDER BY o.after
        OFFSET 0
    ) AS d
    CROSS JOIN LATERAL (
        SELECT o.name, o.kind FROM pulse_internal.body AS o WHERE o.job = d.after OFFSET 0
    ) AS b
    CROSS JOIN LATERAL (
        SELECT o.state, o.result FROM pulse_internal.place AS o WHERE o.job = d.after OFFSET 0
    ) AS p;
END;
$$;

COMMENT ON FUNCTION pulse.upstream(bigint) IS
'The jobs that the one of this lease depends on, in the order of their ids, with how they ended and what they returned. PU101 when the lease was lost. Writes nothing.';
