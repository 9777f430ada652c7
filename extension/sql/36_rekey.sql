-- The unique key of a job that goes to another lane or back in line.

-- The key row is locked after the job's own row, here as in every report. The INSERT
-- waits for an open transaction that takes or frees the same key.
CREATE FUNCTION pulse._rekey(job_id bigint, lane text)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_key text := pulse._key_of(_rekey.job_id);
    v_own pulse.job_key;
    v_holder bigint;
BEGIN
    FOR v_round IN 1 .. 10 LOOP
        DELETE FROM pulse.job_key AS k
        WHERE k.job = _rekey.job_id
        RETURNING k.* INTO v_own;

        -- What another job left behind for its unique_for, and that is over.
        DELETE FROM pulse.job_key AS k
        WHERE k.lane = _rekey.lane
            AND k.unique_key = v_key
            AND k.expires_at <= clock_timestamp();

        -- Not before one that waits for it.
        INSERT INTO pulse.job_key (lane, unique_key, job, unique_for)
        SELECT _rekey.lane, v_key, b.job, b.unique_for
        FROM pulse.body AS b
        WHERE b.job = _rekey.job_id
            AND NOT EXISTS (
                SELECT
                FROM pulse.job_key AS f
                WHERE f.lane = _rekey.lane
                    AND f.unique_key = v_key
                    AND f.follows
            )
        ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING;

        IF FOUND THEN
            RETURN NULL;
        END IF;

        -- Taken: leave our own key as it was. Nobody can have it, we freed it just now.
        INSERT INTO pulse.job_key (lane, unique_key, job, unique_for, expires_at, follows)
        SELECT (v_own).*
        WHERE v_own.job IS NOT NULL;

        SELECT k.job INTO v_holder
        FROM pulse.job_key AS k
        WHERE k.lane = _rekey.lane
            AND k.unique_key = v_key
            AND k.job <> _rekey.job_id
        ORDER BY k.follows
        LIMIT 1;

        IF FOUND THEN
            RETURN v_holder;
        END IF;
    END LOOP;

    PERFORM pulse._raise_kept_moving(_rekey.job_id);
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse._rekey(bigint, text) IS
'Give a job its unique key in a lane; returns the job that has it already, else NULL.';

-- Keys are met in the order of the jobs, not of the keys, so this waits for an open
-- transaction that takes or frees the same key for a moment only. NULL says that it
-- waited in vain; then the caller leaves every job with a key alone, since waiting again
-- and again would amount to a wait that can be part of a deadlock.
CREATE FUNCTION pulse._try_rekey(job_id bigint, lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
BEGIN
    IF pulse._key_of(_try_rekey.job_id) IS NULL THEN
        RETURN true;
    END IF;

    BEGIN
        RETURN pulse._rekey(_try_rekey.job_id, _try_rekey.lane) IS NULL;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN NULL;
    END;
END;
$$;

COMMENT ON FUNCTION pulse._try_rekey(bigint, text) IS
'Give a job its unique key in a lane, if it has one and it can be had at once; NULL when an open transaction has it.';

CREATE FUNCTION pulse._key_is_free(job_id bigint, lane text)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (
        SELECT
        FROM pulse.job_key AS k
        WHERE k.lane = _key_is_free.lane
            AND k.unique_key = pulse._key_of(_key_is_free.job_id)
            AND k.job <> _key_is_free.job_id
            AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    )
$$;

COMMENT ON FUNCTION pulse._key_is_free(bigint, text) IS
'Whether a job could have its unique key in a lane; only a look, _rekey decides.';

CREATE FUNCTION pulse._key_of(job_id bigint)
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT b.unique_key
    FROM pulse.body AS b
    WHERE b.job = _key_of.job_id
$$;

COMMENT ON FUNCTION pulse._key_of(bigint) IS
'The unique key of a job, if it has one.';
