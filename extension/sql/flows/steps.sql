-- save_step, steps: what a job stores in one attempt for the next ones.
--
-- A step is a row of job_step, named by the job. save_step stores that a step is done, with its
-- result; spawn (flows/spawn.sql) and wait_for (flows/signals.sql) have steps too. A name stands
-- for one step of one sort. save_step locks the lease FOR KEY SHARE (report/progress.sql).

CREATE FUNCTION pulse.save_step(lease bigint, step text, result jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job bigint;
BEGIN
    PERFORM pulse_internal.require_read_committed('save_step');
    PERFORM pulse_internal.require_name('step', save_step.step);
    PERFORM pulse_internal.require_size(
        pulse_internal.text_size(save_step.result), pulse_internal.range_of('save_step', 'result'),
        'Store the data elsewhere and keep a reference.'
    );
    v_job := pulse_internal.job_of(save_step.lease);

    INSERT INTO pulse_internal.job_step (job, step, result, saved_at)
    VALUES (v_job, save_step.step, coalesce(save_step.result, 'null'), clock_timestamp())
    ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING;

    RETURN (pulse_internal.step_of(v_job, save_step.step, 'save_step')).result;
END;
$$;

COMMENT ON FUNCTION pulse.save_step(bigint, text, jsonb) IS
'Store that a step of a running job is done, for all later attempts. Returns the stored result. The first call with a name counts; later ones change nothing. In the transaction of the step''s own writes it commits together with them.

- result: at most 1 MB.

Errors: PU001 above READ COMMITTED, PU002 the name belongs to a step of another sort, PU003 the result is too large, PU101 the lease was lost.';

CREATE FUNCTION pulse.steps(lease bigint)
RETURNS TABLE (step text, result jsonb, saved_at timestamptz)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_job bigint := (SELECT l.job FROM pulse_internal.lease AS l WHERE l.lease = steps.lease);
BEGIN
    IF v_job IS NULL THEN
        PERFORM pulse_internal.raise_lease_lost(steps.lease);
    END IF;

    RETURN QUERY
    SELECT s.step, coalesce(s.result, to_jsonb(s.jobs::text [])), s.saved_at
    FROM pulse_internal.job_step AS s
    WHERE s.job = v_job
        AND s.saved_at IS NOT NULL
    ORDER BY s.saved_at, s.step;
END;
$$;

COMMENT ON FUNCTION pulse.steps(bigint) IS
'The steps that the job of a lease has done, in this attempt or earlier ones, the oldest first. The result is what save_step has stored, the ids that spawn has returned, or what wait_for has received.

Errors: PU101 the lease was lost.';

CREATE FUNCTION pulse_internal.step_of(job bigint, step text, sort text)
RETURNS pulse_internal.job_step
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_step pulse_internal.job_step;
    v_sort text;
BEGIN
    SELECT s.* INTO v_step
    FROM pulse_internal.job_step AS s
    WHERE s.job = step_of.job
        AND s.step = step_of.step;

    v_sort := CASE
        WHEN v_step.until IS NOT NULL THEN 'wait_for'
        WHEN v_step.jobs IS NOT NULL THEN 'spawn'
        ELSE 'save_step'
    END;
    IF v_step.job IS NOT NULL AND v_sort <> step_of.sort THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('step %L of job %s is one of %s', step_of.step, step_of.job, v_sort),
            'A name stands for one step, in every attempt.',
            'Give each step a name of its own.'
        );
    END IF;
    RETURN v_step;
END;
$$;

COMMENT ON FUNCTION pulse_internal.step_of(bigint, text, text) IS
'The row of a step; NULL if the step was not begun. PU002 if its name belongs to a step of another sort.';
