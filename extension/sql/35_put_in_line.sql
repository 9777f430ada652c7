-- The one place that puts a job into ready or waiting and rings. run_at NULL or past
-- means ready. The clock is read inside the INSERT, after the table lock: time
-- marks rest on that (52_marks.sql).
CREATE FUNCTION pulse._put_in_line(
    job bigint,
    lane text,
    kind text,
    rank integer,
    run_at timestamptz,
    attempts integer,
    failures integer,
    keyed boolean,
    retrying boolean,
    last_lease bigint DEFAULT NULL,
    last_verb text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _put_in_line.run_at > clock_timestamp() THEN
        INSERT INTO pulse.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb
        )
        VALUES (
            _put_in_line.lane,
            greatest(_put_in_line.run_at, clock_timestamp(), pulse._due_floor()),
            _put_in_line.job, _put_in_line.kind, _put_in_line.rank, _put_in_line.attempts,
            _put_in_line.failures, _put_in_line.keyed, _put_in_line.retrying,
            _put_in_line.last_lease, _put_in_line.last_verb
        );
        RETURN false;
    END IF;

    INSERT INTO pulse.ready (
        lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
    )
    VALUES (
        _put_in_line.lane, _put_in_line.rank, _put_in_line.kind, _put_in_line.job,
        _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
        _put_in_line.last_lease, _put_in_line.last_verb
    );
    RETURN pulse._ring(_put_in_line.lane);
END;
$$;

COMMENT ON FUNCTION pulse._put_in_line(
    bigint, text, text, integer, timestamptz, integer, integer, boolean, boolean, bigint, text
) IS
'Put a job into ready and ring, or into waiting when it is not due yet; returns whether it rang.';
