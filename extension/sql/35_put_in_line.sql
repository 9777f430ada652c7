-- The one place that puts a job into ready or waiting and rings. run_at NULL or past
-- means ready: in a grouped lane, into the line of its group, with a notice in the same
-- transaction; place is the one it keeps there, and then its group waited for it. The
-- clock is read inside the INSERT, after the table lock: time marks rest on that
-- (52_marks.sql).
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
    last_verb text DEFAULT NULL,
    group_key text DEFAULT NULL,
    place bigint DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _put_in_line.run_at > clock_timestamp() THEN
        INSERT INTO pulse.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb, place
        )
        VALUES (
            _put_in_line.lane,
            CASE
                -- Where no floor can be: it counts up to a minute from now.
                WHEN _put_in_line.run_at > clock_timestamp() + interval '1 minute'
                    THEN _put_in_line.run_at
                ELSE greatest(_put_in_line.run_at, clock_timestamp(), pulse._due_floor())
            END,
            _put_in_line.job, _put_in_line.kind, _put_in_line.rank, _put_in_line.attempts,
            _put_in_line.failures, _put_in_line.keyed, _put_in_line.retrying,
            _put_in_line.last_lease, _put_in_line.last_verb, _put_in_line.place
        );
        RETURN false;
    END IF;

    IF _put_in_line.group_key <> '' AND pulse._is_grouped(_put_in_line.lane) THEN
        IF _put_in_line.place IS NOT NULL THEN
            PERFORM pulse._put_back_in_group(ROW(
                _put_in_line.lane, pulse._group_of(_put_in_line.group_key),
                _put_in_line.rank, _put_in_line.place, _put_in_line.kind, _put_in_line.job,
                _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
                clock_timestamp(), _put_in_line.last_lease, _put_in_line.last_verb
            )::pulse.group_ready);
            RETURN pulse._ring(_put_in_line.lane);
        END IF;

        WITH placed AS (
            INSERT INTO pulse.group_ready AS r (
                lane, group_key, rank, kind, job, attempts, failures, keyed,
                last_lease, last_verb
            )
            VALUES (
                _put_in_line.lane, pulse._group_of(_put_in_line.group_key),
                _put_in_line.rank, _put_in_line.kind, _put_in_line.job,
                _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
                _put_in_line.last_lease, _put_in_line.last_verb
            )
            RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
        )

        INSERT INTO pulse.group_notice (lane, group_key, rank, place, kind)
        SELECT p.lane, p.group_key, p.rank, p.seq, p.kind
        FROM placed AS p;
    ELSE
        INSERT INTO pulse.ready (
            lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
        )
        VALUES (
            _put_in_line.lane, _put_in_line.rank, _put_in_line.kind, _put_in_line.job,
            _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
            _put_in_line.last_lease, _put_in_line.last_verb
        );
    END IF;
    RETURN pulse._ring(_put_in_line.lane);
END;
$$;

COMMENT ON FUNCTION pulse._put_in_line(
    bigint, text, text, integer, timestamptz, integer, integer, boolean, boolean, bigint, text,
    text, bigint
) IS
'Put a job into ready, or the line of its group, and ring, or into waiting when it is not due yet; returns whether it rang.';
