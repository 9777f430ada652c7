-- put_after: enqueue jobs that depend on others.
--
-- It runs in the caller's transaction, at every isolation level. The bodies of the jobs are
-- written. The steps, numbered as in the function:
--   1. Check that the upstreams exist and that the role may see them.
--   2. Write the edges, then read how the upstreams stand. In this order: a session that ends one
--      of them after that finds the edges or a doubt, or finds this transaction open.
--   3. An upstream has failed and after_failed is cancel: the jobs end cancelled.
--   4. All upstreams have ended well enough: the jobs go where they would have gone at once.
--   5. Else they are blocked, and wait for the upstream with the highest id that has not ended.
--
-- It writes dependency, blocked and doubt, or finished and tally. Locks: the upstreams' rows of
-- finished, FOR KEY SHARE SKIP LOCKED: retention, which skips locked rows, does not delete them.

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
    v_row pulse_internal.blocked := put_after.place;
    v_after bigint [];
    v_foreign bigint [];
    v_ended bigint [];
    v_being_deleted bigint [];
    v_failed bigint;
    v_job bigint;
    v_state text;
BEGIN
    -- 1. Check. A job cannot wait for itself: its id could be guessed.
    SELECT array_agg(u.job ORDER BY u.job) INTO v_after
    FROM (SELECT DISTINCT d.job FROM unnest(put_after.after) AS d (job)) AS u;

    IF v_after && put_after.jobs THEN
        PERFORM pulse_internal.raise_no_such_job(u.job)
        FROM unnest(v_after) AS u (job)
        WHERE u.job = ANY (put_after.jobs);
    END IF;

    -- Upstreams of this transaction and role need no check, and cannot end before it does. xmin
    -- has 32 bits: the same number comes again, but not within an hour.
    v_foreign := array(
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
    IF v_foreign <> '{}' THEN
        PERFORM pulse_internal.require_upstreams(v_foreign, put_after.owner);
    END IF;

    -- 2. Write the edges.
    INSERT INTO pulse_internal.dependency (job, after)
    SELECT j.job, u.job
    FROM unnest(put_after.jobs) AS j (job)
    CROSS JOIN unnest(v_after) AS u (job);

    -- Read how the upstreams stand. One that is locked is just being retried or pruned: it counts
    -- as not ended, and its doubt is settled later. But a completed job is never retried, so it is
    -- being deleted: it counts as ended, and its edge is marked as met, because no other trace of
    -- it will be left.
    SELECT array_agg(f.job), min(f.job) FILTER (WHERE f.state <> 'completed')
    INTO v_ended, v_failed
    FROM (
        SELECT o.job, o.state
        FROM pulse_internal.finished AS o
        WHERE o.job = ANY (v_after)
        FOR KEY SHARE SKIP LOCKED
    ) AS f
    WHERE f.state = 'completed' OR v_row.after_failed <> 'hold';

    IF coalesce(cardinality(v_ended), 0) < cardinality(v_after) THEN
        v_being_deleted := array(
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
        IF v_being_deleted <> '{}' THEN
            UPDATE pulse_internal.dependency AS d
            SET met = true
            WHERE d.job = ANY (put_after.jobs)
                AND d.after = ANY (v_being_deleted);
            v_ended := v_ended || v_being_deleted;
        END IF;
    END IF;

    -- 3. An upstream has failed.
    IF v_failed IS NOT NULL AND v_row.after_failed = 'cancel' THEN
        INSERT INTO pulse_internal.finished (
            job, lane, kind, rank, state, ended_by, attempts, failures, keyed, error
        )
        SELECT
            j.job, v_row.lane, v_row.kind, v_row.rank, 'cancelled', 'upstream', 0, 0,
            v_row.keyed, pulse_internal.upstream_error(v_failed)
        FROM unnest(put_after.jobs) AS j (job);

        INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
        VALUES (v_row.lane, v_row.kind, 'cancelled', cardinality(put_after.jobs));

        IF v_row.keyed THEN
            PERFORM pulse_internal.release_keys(put_after.jobs);
        END IF;
        RETURN 'cancelled';
    END IF;

    -- 4. All have ended well enough?
    v_row.waits_for := CASE
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

    IF v_row.waits_for IS NULL THEN
        FOREACH v_job IN ARRAY put_after.jobs LOOP
            v_row.job := v_job;
            v_state := pulse_internal.put_unblocked(v_row);
        END LOOP;
        RETURN v_state;
    END IF;

    -- 5. Block them.
    INSERT INTO pulse_internal.blocked (
        job, waits_for, lane, kind, rank, run_at, delay, expires_in, attempts, failures,
        keyed, alone, after_failed, needs_approval
    )
    SELECT
        j.job, v_row.waits_for, v_row.lane, v_row.kind, v_row.rank, v_row.run_at,
        v_row.delay, v_row.expires_in, 0, 0, v_row.keyed, cardinality(v_after) = 1,
        v_row.after_failed, v_row.needs_approval
    FROM unnest(put_after.jobs) AS j (job)
    ORDER BY j.job;

    -- A doubt about the upstream that they wait for. With after_failed = cancel the bad end of any
    -- upstream must reach them: doubts about the first 1,000 (the hourly backstop finds the rest).
    IF v_foreign <> '{}' THEN
        INSERT INTO pulse_internal.doubt (job)
        (
            SELECT v_row.waits_for
            WHERE v_row.waits_for = ANY (v_foreign)
            UNION
            SELECT unnest(v_foreign [1:1000])
            WHERE v_row.after_failed = 'cancel'
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
'Store on which jobs these new ones depend, and put them where they belong: blocked, or as if their upstreams had just ended. place has what their rows of blocked have in common. Returns their state.';

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
'Raise PU002 for a bad after, after_failed, flow or name, PU003 for more than a million dependencies (pairs).';

CREATE FUNCTION pulse_internal.require_upstreams(jobs bigint [], owner integer)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_foreign bigint [];
    v_roles integer [];
    v_sees_all boolean;
    v_unseen bigint;
BEGIN
    -- Usually they are its own, and its rights need no check.
    v_foreign := array(
        SELECT u.job
        FROM unnest(require_upstreams.jobs) AS u (job)
        WHERE (
            SELECT b.owner = require_upstreams.owner
            FROM pulse_internal.body AS b
            WHERE b.job = u.job
        ) IS NOT TRUE
    );
    IF v_foreign = '{}' THEN
        RETURN;
    END IF;

    v_roles := pulse_internal.numbers_of(require_upstreams.owner);
    v_sees_all := pulse_internal.sees_all(require_upstreams.owner);
    SELECT u.job INTO v_unseen
    FROM unnest(v_foreign) AS u (job)
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
