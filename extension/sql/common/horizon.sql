-- Up to where everything is decided: what low-water marks rest on.
--
-- A number is decided when the transaction that drew it has ended. see_horizon() finds out which
-- numbers are: it reads the last number drawn and *then* the locks of the open transactions.
-- Every transaction takes its lock before it draws, so the owner of a number up to the last one
-- has ended or is among the holders. What another transaction draws later is above it.
--
-- A holder keeps its floor: what was drawn at the look before the first one that met it.
-- All its numbers are above that. So the part of a counter is decided up to its lowest floor.
--
-- A job that joins ready or waiting is announced by an advisory lock of its lane, shared and held
-- until the transaction ends (enter_lane). A session that enqueues into one lane and stays open
-- therefore holds back the marks of that lane alone. Notices of groups, leases, tallies and notes
-- of flows are announced by the RowExclusiveLock that INSERT takes.
--
-- It writes horizon and waits for no lock. The proof is in docs/decisions/low-water-marks.md.

-- Producers, retries, promotions and unblocked jobs call this, or take the same lock in place,
-- in a statement before the one that inserts. No call takes the lock exclusively, so it is free.
-- 256 parts: a transaction that enters 10,000 lanes takes 256 locks and not 10,000, which the
-- lock table (max_locks_per_transaction) does not hold. Two lanes of one part wait for the
-- producers of both.
CREATE FUNCTION pulse_internal.enter_lane(lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(
        'pulse_internal.ready_seq'::regclass::oid::integer, hashtext(enter_lane.lane) & 255
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.enter_lane(text) IS
'Announce that this transaction puts jobs into ready or waiting of a lane; true.';

CREATE FUNCTION pulse_internal.see_horizon()
RETURNS pulse_internal.horizon
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_old pulse_internal.horizon;
    v_new pulse_internal.horizon;
BEGIN
    SELECT h.* INTO v_old
    FROM pulse_internal.horizon AS h
    ORDER BY h.version DESC
    LIMIT 1;

    -- A look that is younger than 20 ms is good enough.
    IF v_old.seen_at BETWEEN clock_timestamp() - interval '20 milliseconds'
        AND clock_timestamp()
    THEN
        RETURN v_old;
    END IF;

    -- No look before this one: nothing is known about those who are open.
    IF v_old.version IS NULL THEN
        v_old.next_ready_q := 0;
        v_old.next_waiting_t := '-infinity';
        v_old.next_lease_q := 0;
        v_old.next_tally_q := 0;
        v_old.next_note_q := 0;
        v_old.writers := '{}';
    END IF;

    -- 1. What was drawn, and the clock.
    v_new.next_ready_q := pulse_internal.last_drawn_ready();
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_new.next_lease_q
    FROM pulse_internal.lease_seq AS s;
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_new.next_tally_q
    FROM pulse_internal.tally_seq AS s;
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_new.next_note_q
    FROM pulse_internal.note_seq AS s;
    v_new.seen_at := clock_timestamp();
    v_new.next_waiting_t := v_new.seen_at;
    -- Not the clock of this look: due_floor() must have seen what marks go by (due_floor).
    v_new.waiting_t := v_old.next_waiting_t;

    -- 2. After that the open transactions, this one too, each with its floor. A prepared
    -- transaction may have had another name, of which a restart of the server is one cause: it
    -- gets the lowest floor of its part.
    WITH known AS MATERIALIZED (
        SELECT w.*
        FROM unnest(v_old.writers) AS w
    ),

    lowest AS MATERIALIZED (
        SELECT k.counter, k.part, min(k.floor_q) AS floor_q, min(k.floor_t) AS floor_t
        FROM known AS k
        GROUP BY k.counter, k.part
    ),

    open AS MATERIALIZED (
        SELECT DISTINCT
            CASE
                WHEN l.locktype = 'advisory' THEN 'lane'
                WHEN l.relation = 'pulse_internal.lease'::regclass THEN 'lease'
                WHEN l.relation = 'pulse_internal.tally'::regclass THEN 'tally'
                WHEN l.relation = 'pulse_internal.group_notice'::regclass THEN 'group'
                ELSE 'note'
            END AS counter,
            CASE WHEN l.locktype = 'advisory' THEN l.objid::bigint::integer ELSE 0 END AS part,
            l.virtualtransaction AS virtual_transaction,
            l.pid IS NULL AS is_prepared
        FROM pg_locks AS l
        WHERE l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
            AND l.granted
            AND (
                l.locktype = 'advisory'
                AND l.classid = 'pulse_internal.ready_seq'::regclass
                AND l.objsubid = 2
                AND l.objid::bigint < 256
                OR l.locktype = 'relation'
                AND l.mode = 'RowExclusiveLock'
                AND l.relation IN (
                    'pulse_internal.lease'::regclass, 'pulse_internal.tally'::regclass,
                    'pulse_internal.group_notice'::regclass,
                    'pulse_internal.doubt'::regclass, 'pulse_internal.wake'::regclass
                )
            )
    )

    SELECT
        coalesce(
            array_agg(ROW(
                o.counter, o.part, o.virtual_transaction,
                coalesce(
                    CASE WHEN o.is_prepared THEN p.floor_q ELSE k.floor_q END,
                    CASE o.counter
                        WHEN 'lease' THEN v_old.next_lease_q
                        WHEN 'tally' THEN v_old.next_tally_q
                        WHEN 'note' THEN v_old.next_note_q
                        ELSE v_old.next_ready_q
                    END
                ),
                coalesce(
                    CASE WHEN o.is_prepared THEN p.floor_t ELSE k.floor_t END,
                    v_old.next_waiting_t
                )
            )::pulse_internal.open_writer),
            '{}'
        )
    INTO v_new.writers
    FROM open AS o
    LEFT JOIN known AS k
        ON k.counter = o.counter
        AND k.part = o.part
        AND k.virtual_transaction = o.virtual_transaction
    LEFT JOIN lowest AS p
        ON p.counter = o.counter
        AND p.part = o.part;

    -- 3. The clock stepped back: what was decided in its future is not.
    IF v_new.seen_at < v_old.seen_at THEN
        v_new.next_waiting_t := v_new.seen_at - interval '1 minute';
        v_new.waiting_t := least(v_new.waiting_t, v_new.next_waiting_t);
        v_new.writers := array(
            SELECT ROW(
                w.counter, w.part, w.virtual_transaction, w.floor_q,
                least(w.floor_t, v_new.next_waiting_t)
            )::pulse_internal.open_writer
            FROM unnest(v_new.writers) AS w
        );
        -- A clock that is kept right by slewing or by small steps is not worth a note.
        IF v_new.seen_at < v_old.seen_at - interval '1 second' THEN
            PERFORM pulse_internal.note_clock(v_old.seen_at - v_new.seen_at);
        END IF;
    END IF;

    -- 4. What is decided in every lane.
    SELECT
        least(v_new.next_ready_q, min(w.floor_q) FILTER (WHERE w.counter IN ('lane', 'group'))),
        least(v_new.next_lease_q, min(w.floor_q) FILTER (WHERE w.counter = 'lease')),
        least(v_new.next_tally_q, min(w.floor_q) FILTER (WHERE w.counter = 'tally')),
        least(v_new.next_note_q, min(w.floor_q) FILTER (WHERE w.counter = 'note'))
    INTO v_new.ready_q, v_new.lease_q, v_new.tally_q, v_new.note_q
    FROM unnest(v_new.writers) AS w;

    v_new.version := nextval('pulse_internal.version');
    INSERT INTO pulse_internal.horizon
    SELECT (v_new).*;

    DELETE FROM pulse_internal.horizon AS h
    WHERE h.version = (
        SELECT o.version
        FROM pulse_internal.horizon AS o
        WHERE o.version = v_old.version
        FOR UPDATE SKIP LOCKED
    );

    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse_internal.see_horizon() IS
'Find out up to where everything is decided, and remember who is open and since when.';

CREATE FUNCTION pulse_internal.decided_in_lane(
    horizon pulse_internal.horizon,
    lane text,
    OUT seq bigint,
    OUT due_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT
        least((decided_in_lane.horizon).next_ready_q, min(w.floor_q)),
        least((decided_in_lane.horizon).waiting_t, min(w.floor_t))
    INTO decided_in_lane.seq, decided_in_lane.due_at
    FROM unnest((decided_in_lane.horizon).writers) AS w
    WHERE w.counter = 'lane'
        AND w.part = hashtext(decided_in_lane.lane) & 255;
END;
$$;

COMMENT ON FUNCTION pulse_internal.decided_in_lane(pulse_internal.horizon, text) IS
'The last place and the last due time of a lane up to which every transaction has ended.';

CREATE FUNCTION pulse_internal.last_drawn_ready()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END
        FROM pulse_internal.ready_seq AS s
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.last_drawn_ready() IS
'The last place in line that was drawn.';
