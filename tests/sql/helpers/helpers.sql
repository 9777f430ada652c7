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

-- A job whose payload says what it is, in a group.
CREATE FUNCTION pg_temp.put_job(
    lane text, group_key text, name text, priority integer DEFAULT 0, kind text DEFAULT 'k',
    delay interval DEFAULT NULL
)
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT pulse.enqueue(
        put_job.kind, jsonb_build_object('name', put_job.name), put_job.lane, put_job.priority,
        delay => put_job.delay, group_key => put_job.group_key
    )
$$;

-- What a claim takes, in order.
CREATE FUNCTION pg_temp.take_jobs(lane text, max_jobs integer, kinds text [] DEFAULT NULL)
RETURNS text
LANGUAGE sql
AS $$
    SELECT coalesce(string_agg(c.payload ->> 'name', ' '), '')
    FROM pulse.claim_batch('w', take_jobs.lane, take_jobs.max_jobs, kinds => take_jobs.kinds) AS c
$$;

CREATE FUNCTION pg_temp.lease_of(name text)
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT l.lease
    FROM pulse_internal.lease AS l
    INNER JOIN pulse_internal.body AS b ON b.job = l.job
    WHERE b.payload ->> 'name' = lease_of.name
$$;

CREATE FUNCTION pg_temp.done_with(name text)
RETURNS void
LANGUAGE sql
AS $$ SELECT pulse.complete(pg_temp.lease_of(done_with.name)) $$;

CREATE FUNCTION pg_temp.job_of(name text)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT b.job FROM pulse_internal.body AS b WHERE b.payload ->> 'name' = job_of.name $$;
