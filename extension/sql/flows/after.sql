-- Jobs that are enqueued after others. Part of the caller's transaction at every isolation
-- level: what its snapshot does not show, a doubt makes good (flows/release.sql).

-- Their bodies are written; the row is what they have in common, its job is not used.
-- The states of the upstreams are read after the first write: whoever ends one badly after
-- that finds the edges, or the doubt, or this transaction open.
CREATE FUNCTION pulse_internal.put_after(
    jobs bigint [], after bigint [], place pulse_internal.blocked, owner integer
)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_place pulse_internal.blocked := put_after.place;
    v_after bigint [];
    v_strange bigint [];
    v_ended bigint [];
    v_leaving bigint [];
    v_failed bigint;
    v_job bigint;
    v_state text;
BEGIN
    SELECT array_agg(u.job ORDER BY u.job) INTO v_after
    FROM (SELECT DISTINCT d.job FROM unnest(put_after.after) AS d (job)) AS u;

    -- Whoever guessed the id of the job itself would have it wait for ever.
    IF v_after && put_after.jobs THEN
        PERFORM pulse_internal.raise_no_such_job(u.job)
        FROM unnest(v_after) AS u (job)
        WHERE u.job = ANY (put_after.jobs);
    END IF;

    -- Those of this transaction and role may be named, and cannot end before it does. A
    -- number of 32 bits comes again, but not within an hour.
    v_strange := array(
        SELECT u.job
        FROM unnest(v_after) AS u (job)
        WHERE (
            SELECT
                b.xmin = pg_current_xact_id()::xid
                AND b.enqueued_at > clock_timestamp() - interval '1 hour'
                AND b.owner = put_after.owner
            FROM pulse_internal.body AS b
            WHERE b.job = u.job
        ) IS NOT TRUE
    );
    IF v_strange <> '{}' THEN
        PERFORM pulse_internal.require_upstreams(v_strange, put_after.owner);
    END IF;

    INSERT INTO pulse_internal.dependency (job, after)
    SELECT j.job, u.job
    FROM unnest(put_after.jobs) AS j (job)
    CROSS JOIN unnest(v_after) AS u (job);

    -- KEY SHARE: retention leaves them, and a retry waits. One that cannot be had is just
    -- being retried or pruned: it counts as not ended, and the doubt finds out. One that has
    -- completed is never retried, so it is being removed: it counts, and the edge says so,
    -- since there will be nothing else that does.
    SELECT array_agg(f.job), min(f.job) FILTER (WHERE f.state <> 'completed')
    INTO v_ended, v_failed
    FROM (
        SELECT o.job, o.state
        FROM pulse_internal.finished AS o
        WHERE o.job = ANY (v_after)
        FOR KEY SHARE SKIP LOCKED
    ) AS f
    WHERE f.state = 'completed' OR v_place.after_failed <> 'hold';

    IF coalesce(cardinality(v_ended), 0) < cardinality(v_after) THEN
        v_leaving := array(
            SELECT o.job
            FROM (
                SELECT f.job, f.state
                FROM pulse_internal.finished AS f
                WHERE f.job = ANY (v_after)
                OFFSET 0
            ) AS o
            WHERE o.job <> ALL (coalesce(v_ended, '{}'))
                AND o.state = 'completed'
        );
        IF v_leaving <> '{}' THEN
            UPDATE pulse_internal.dependency AS d
            SET met = true
            WHERE d.job = ANY (put_after.jobs)
                AND d.after = ANY (v_leaving);
            v_ended := v_ended || v_leaving;
        END IF;
    END IF;

    IF v_failed IS NOT NULL AND v_place.after_failed = 'cancel' THEN
        INSERT INTO pulse_internal.finished (
            job, lane, kind, rank, state, ended_by, attempts, failures, keyed, error
        )
        SELECT
            j.job, v_place.lane, v_place.kind, v_place.rank, 'cancelled', 'upstream', 0, 0,
            v_place.keyed, pulse_internal.upstream_error(v_failed)
        FROM unnest(put_after.jobs) AS j (job);

        INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
        VALUES (v_place.lane, v_place.kind, 'cancelled', cardinality(put_after.jobs));

        IF v_place.keyed THEN
            PERFORM pulse_internal.release_keys(put_after.jobs);
        END IF;
        RETURN 'cancelled';
    END IF;

    v_place.waits_for := CASE
        WHEN v_ended IS NULL THEN v_after[cardinality(v_after)]
        ELSE (
            SELECT max(u.job)
            FROM (
                SELECT unnest(v_after) AS job
                EXCEPT
                SELECT unnest(v_ended)
            ) AS u
        )
    END;

    IF v_place.waits_for IS NULL THEN
        FOREACH v_job IN ARRAY put_after.jobs LOOP
            v_place.job := v_job;
            v_state := pulse_internal.put_unblocked(v_place);
        END LOOP;
        RETURN v_state;
    END IF;

    INSERT INTO pulse_internal.blocked (
        job, waits_for, lane, kind, rank, run_at, delay, expires_in, attempts, failures,
        keyed, alone, after_failed, needs_approval
    )
    SELECT
        j.job, v_place.waits_for, v_place.lane, v_place.kind, v_place.rank, v_place.run_at,
        v_place.delay, v_place.expires_in, 0, 0, v_place.keyed, cardinality(v_after) = 1,
        v_place.after_failed, v_place.needs_approval
    FROM unnest(put_after.jobs) AS j (job)
    ORDER BY j.job;

    -- About what it watches; and, since a bad end of any must reach it, about the others.
    IF v_strange <> '{}' THEN
        INSERT INTO pulse_internal.doubt (job)
        (
            SELECT v_place.waits_for
            WHERE v_place.waits_for = ANY (v_strange)
            UNION
            SELECT unnest(v_strange [1:1000])
            WHERE v_place.after_failed = 'cancel'
        )
        EXCEPT
        SELECT unnest(v_ended);
    END IF;
    RETURN 'blocked';
END;
$$;

COMMENT ON FUNCTION pulse_internal.put_after(
    bigint [], bigint [], pulse_internal.blocked, integer
) IS
'Write for jobs on which others they depend, and put them where they belong: blocked, or as if the others had just ended; returns their state.';

-- What an enqueue may say of other jobs.

-- What an enqueue may say of other jobs; pairs is how many edges it would write.
CREATE FUNCTION pulse_internal.require_flow_options(
    after bigint [], after_failed text, flow text, name text, pairs bigint
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF require_flow_options.after_failed IS NOT NULL THEN
        PERFORM pulse_internal.require_choice(
            require_flow_options.after_failed, pulse_internal.range_of('*', 'after_failed')
        );
    END IF;
    IF length(require_flow_options.flow)
        NOT BETWEEN 1 AND pulse_internal.longest_name()
    THEN
        PERFORM pulse_internal.require_name('flow', require_flow_options.flow);
    END IF;
    IF require_flow_options.name IS NOT NULL THEN
        IF length(require_flow_options.name)
            NOT BETWEEN 1 AND pulse_internal.longest_name()
        THEN
            PERFORM pulse_internal.require_name('name', require_flow_options.name);
        END IF;
        IF require_flow_options.name ~ '^[0-9]+$' THEN
            PERFORM pulse_internal.raise(
                'PU002',
                'name must not be a number',
                format('It is %L, and in after that is the id of a job.', require_flow_options.name),
                'Pass a name with a letter in it.'
            );
        END IF;
    END IF;
    IF require_flow_options.after IS NOT NULL THEN
        IF EXISTS (
            SELECT FROM unnest(require_flow_options.after) AS u (job) WHERE u.job IS NULL
        ) THEN
            PERFORM pulse_internal.raise(
                'PU002',
                'after must be ids of jobs',
                'One of them is NULL.',
                'Pass after => ARRAY[…] with the ids that enqueue returned.'
            );
        END IF;
    END IF;
    IF require_flow_options.pairs > 1000000 THEN
        PERFORM pulse_internal.raise(
            'PU003',
            'more than 1000000 dependencies in one call',
            format('It would write %s.', require_flow_options.pairs),
            'Let the many wait for one job between them, which waits for the others.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_flow_options(bigint [], text, text, text, bigint) IS
'Raise PU002 for a bad after, after_failed, flow or name, PU003 for too many dependencies.';

CREATE FUNCTION pulse_internal.require_upstreams(jobs bigint [], owner integer)
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
        FROM unnest(require_upstreams.jobs) AS u (job)
        WHERE (
            SELECT b.owner = require_upstreams.owner
            FROM pulse_internal.body AS b
            WHERE b.job = u.job
        ) IS NOT TRUE
    );
    IF v_strange = '{}' THEN
        RETURN;
    END IF;

    v_roles := pulse_internal.numbers_of(require_upstreams.owner);
    v_sees_all := pulse_internal.sees_all(require_upstreams.owner);
    SELECT u.job INTO v_unseen
    FROM unnest(v_strange) AS u (job)
    WHERE (
        SELECT v_sees_all OR b.owner = ANY (v_roles)
        FROM pulse_internal.body AS b
        WHERE b.job = u.job
    ) IS NOT TRUE
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse_internal.raise_no_such_job(v_unseen);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_upstreams(bigint [], integer) IS
'Raise PU004 unless all these jobs exist and the role may see them.';
