-- What an enqueue may say of other jobs.

-- What an enqueue may say of other jobs; pairs is how many edges it would write.
CREATE FUNCTION pulse._require_flow_options(
    after bigint [], after_failed text, flow text, name text, pairs bigint
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_flow_options.after_failed IS NOT NULL THEN
        PERFORM pulse._require_one_of(
            'after_failed', _require_flow_options.after_failed, '{cancel,hold,run}'
        );
    END IF;
    IF length(_require_flow_options.flow) NOT BETWEEN 1 AND 200 THEN
        PERFORM pulse._require_name('flow', _require_flow_options.flow);
    END IF;
    IF _require_flow_options.name IS NOT NULL THEN
        IF length(_require_flow_options.name) NOT BETWEEN 1 AND 200 THEN
            PERFORM pulse._require_name('name', _require_flow_options.name);
        END IF;
        IF _require_flow_options.name ~ '^[0-9]+$' THEN
            PERFORM pulse._raise(
                'PU002',
                'name must not be a number',
                format('It is %L, and in after that is the id of a job.', _require_flow_options.name),
                'Pass a name with a letter in it.'
            );
        END IF;
    END IF;
    IF _require_flow_options.after IS NOT NULL THEN
        IF EXISTS (
            SELECT FROM unnest(_require_flow_options.after) AS u (job) WHERE u.job IS NULL
        ) THEN
            PERFORM pulse._raise(
                'PU002',
                'after must be ids of jobs',
                'One of them is NULL.',
                'Pass after => ARRAY[…] with the ids that enqueue returned.'
            );
        END IF;
    END IF;
    IF _require_flow_options.pairs > 1000000 THEN
        PERFORM pulse._raise(
            'PU003',
            'more than 1000000 dependencies in one call',
            format('It would write %s.', _require_flow_options.pairs),
            'Let the many wait for one job between them, which waits for the others.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_flow_options(bigint [], text, text, text, bigint) IS
'Raise PU002 for a bad after, after_failed, flow or name, PU003 for too many dependencies.';

CREATE FUNCTION pulse._require_upstreams(jobs bigint [], owner integer)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_strange bigint [];
    v_roles integer [];
    v_sees_all boolean;
    v_unseen bigint;
BEGIN
    -- Mostly they are its own, and no rights need to be asked for.
    v_strange := array(
        SELECT u.job
        FROM unnest(_require_upstreams.jobs) AS u (job)
        WHERE (
            SELECT b.owner = _require_upstreams.owner
            FROM pulse.body AS b
            WHERE b.job = u.job
        ) IS NOT TRUE
    );
    IF v_strange = '{}' THEN
        RETURN;
    END IF;

    v_roles := pulse._numbers_of(_require_upstreams.owner);
    v_sees_all := pulse._sees_all(_require_upstreams.owner);
    SELECT u.job INTO v_unseen
    FROM unnest(v_strange) AS u (job)
    WHERE (
        SELECT v_sees_all OR b.owner = ANY (v_roles)
        FROM pulse.body AS b
        WHERE b.job = u.job
    ) IS NOT TRUE
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse._raise_no_such_job(v_unseen);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_upstreams(bigint [], integer) IS
'Raise PU004 unless all these jobs exist and the role may see them.';
