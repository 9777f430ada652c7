-- How a follower comes by the unique key of the job before it (3a_follow.sql).

-- The key was free, and we took it.
CREATE FUNCTION pulse._hand_key_on(job bigint)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_key pulse.job_key;
BEGIN
    SELECT k.* INTO v_key
    FROM pulse.job_key AS k
    WHERE k.job = _hand_key_on.job;

    IF NOT EXISTS (
        SELECT
        FROM pulse.job_key AS f
        WHERE f.lane = v_key.lane
            AND f.unique_key = v_key.unique_key
            AND f.follows
    ) THEN
        RETURN false;
    END IF;

    DELETE FROM pulse.job_key AS k
    WHERE k.job = _hand_key_on.job;

    -- Waits for a transaction that is just cancelling it.
    UPDATE pulse.job_key AS k
    SET follows = false
    WHERE k.lane = v_key.lane
        AND k.unique_key = v_key.unique_key
        AND k.follows;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._hand_key_on(bigint) IS
'Give the unique key of a job to the one that waits for it; false when none does.';

-- tids are blocked jobs that could go, locked by us.
CREATE FUNCTION pulse._inherit_keys(tids tid [])
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_free tid [] := _inherit_keys.tids;
    v_job record;
    v_holder bigint;
BEGIN
    FOR v_job IN
        SELECT b.ctid AS tid, b.job, b.waits_for
        FROM pulse.blocked AS b
        WHERE b.ctid = ANY (_inherit_keys.tids)
            AND b.keyed
            AND (SELECT k.follows FROM pulse.job_key AS k WHERE k.job = b.job)
    LOOP
        -- After one wait in vain no other, as in _try_rekey.
        IF v_holder IS DISTINCT FROM 0 THEN
            v_holder := pulse._inherit_key(v_job.job);
            CONTINUE WHEN v_holder IS NULL;
        END IF;

        v_free := array_remove(v_free, v_job.tid);
        IF v_holder > 0 THEN
            INSERT INTO pulse.dependency AS d (job, after)
            VALUES (v_job.job, v_holder)
            ON CONFLICT ON CONSTRAINT dependency_is_one_per_pair DO UPDATE
            SET met = false;

            UPDATE pulse.blocked AS b
            SET waits_for = v_holder,
                alone = false
            WHERE b.job = v_job.job;
        END IF;

        INSERT INTO pulse.doubt (job)
        VALUES (CASE WHEN v_holder > 0 THEN v_holder ELSE v_job.waits_for END);
    END LOOP;
    RETURN v_free;
END;
$$;

COMMENT ON FUNCTION pulse._inherit_keys(tid []) IS
'Give followers their key; returns those of the jobs that may go. Where another job has it, the follower waits for that one.';

CREATE FUNCTION pulse._inherit_key(job bigint)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_key pulse.job_key;
    v_holder bigint;
BEGIN
    BEGIN
        DELETE FROM pulse.job_key AS k
        WHERE k.job = _inherit_key.job
        RETURNING k.* INTO v_key;

        -- What the job before it left behind for its unique_for.
        DELETE FROM pulse.job_key AS k
        WHERE k.lane = v_key.lane
            AND k.unique_key = v_key.unique_key
            AND num_nonnulls(k.expires_at) = 1;

        INSERT INTO pulse.job_key (lane, unique_key, job, unique_for)
        VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for)
        ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING;

        IF FOUND THEN
            RETURN NULL;
        END IF;

        INSERT INTO pulse.job_key (lane, unique_key, job, unique_for, follows)
        VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for, true);
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN 0;
    END;

    SELECT k.job INTO v_holder
    FROM pulse.job_key AS k
    WHERE k.lane = v_key.lane
        AND k.unique_key = v_key.unique_key
        AND NOT k.follows;

    RETURN coalesce(v_holder, 0);
END;
$$;

COMMENT ON FUNCTION pulse._inherit_key(bigint) IS
'Give a follower its unique key: NULL when it has it, else the job that has it, 0 when an open transaction does.';
