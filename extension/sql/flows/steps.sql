-- What a job remembers from one attempt to the next. What it waits for while it holds no
-- slot, a time or a signal from the world, is beside it (flows/signals.sql, flows/signals.sql).

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
'Remember that a step of a running job is done, with its result (at most 1 MB), for all later attempts. The first write wins; returns what is remembered. In the transaction of the step''s own writes it commits with them. PU101 the lease was lost, PU002 the name is a step of another sort, PU003 the result is too large. Writes job_step.';

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
'The steps that the job of a lease has done, in this attempt or earlier ones, oldest first: what save_step kept, the ids that spawn returned, what wait_for received. PU101 when the lease was lost. Writes nothing.';

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
'A step of a job, NULL when it was not begun; PU002 when its name is one of another sort.';
