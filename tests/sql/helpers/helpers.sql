-- What many pgTAP files need. tests/tap.py runs this before each of them, in the same
-- session: everything here is in pg_temp and gone with it. What one file alone needs
-- stays in that file.

CREATE FUNCTION pg_temp.state(job_id bigint)
RETURNS text
LANGUAGE sql
AS $$ SELECT j.state FROM pulse.jobs AS j WHERE j.job_id = state.job_id $$;

-- So many ready jobs.
CREATE FUNCTION pg_temp.fill(
    jobs integer, lane text, kind text DEFAULT 'k', priority integer DEFAULT 0
)
RETURNS void
LANGUAGE sql
AS $$
    SELECT FROM pulse.enqueue_many(
        fill.kind, array_fill('{}'::jsonb, ARRAY[fill.jobs]), fill.lane, fill.priority
    )
$$;

-- A job of a lane that was empty, enqueued and claimed: its lease.
CREATE FUNCTION pg_temp.claim(
    lane text, unique_key text DEFAULT NULL, max_attempts integer DEFAULT 3,
    max_runtime interval DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_lease bigint;
BEGIN
    PERFORM pulse.enqueue(
        'k', lane => claim.lane, unique_key => claim.unique_key,
        max_attempts => claim.max_attempts, max_runtime => claim.max_runtime
    );
    SELECT c.lease INTO v_lease
    FROM pulse.claim_batch('w', claim.lane) AS c;
    RETURN v_lease;
END;
$$;
