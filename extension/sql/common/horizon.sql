-- Up to where everything is decided: what the marks rest on (common/marks.sql).

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

-- Both steps for all these tables, with one look at pg_locks. A look that is younger
-- than 20 ms is good enough for all.
CREATE FUNCTION pulse_internal.see_horizon()
RETURNS pulse_internal.horizon
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_old pulse_internal.horizon;
    v_new pulse_internal.horizon;
    v_now_ready_q bigint;
    v_now_lease_q bigint;
    v_now_tally_q bigint;
    v_now_note_q bigint;
    v_ready text [];
    v_waiting text [];
    v_lease text [];
    v_tally text [];
    v_note text [];
    v_prepared boolean;
BEGIN
    SELECT h.* INTO v_old
    FROM pulse_internal.horizon AS h
    ORDER BY h.version DESC
    LIMIT 1;

    IF v_old.seen_at BETWEEN clock_timestamp() - interval '20 milliseconds'
        AND clock_timestamp()
    THEN
        RETURN v_old;
    END IF;

    v_now_ready_q := pulse_internal.last_drawn_ready();
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_now_lease_q
    FROM pulse_internal.lease_seq AS s;
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_now_tally_q
    FROM pulse_internal.tally_seq AS s;
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_now_note_q
    FROM pulse_internal.note_seq AS s;
    v_new.seen_at := clock_timestamp();

    -- After the sequences and the clock. Our own transaction counts like any other.
    SELECT
        coalesce(
            array_agg(l.virtualtransaction) FILTER (
                WHERE l.relation IN (
                    'pulse_internal.ready'::regclass, 'pulse_internal.group_notice'::regclass
                )
            ),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (WHERE l.relation = 'pulse_internal.waiting'::regclass),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (WHERE l.relation = 'pulse_internal.lease'::regclass),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (WHERE l.relation = 'pulse_internal.tally'::regclass),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (
                WHERE l.relation IN ('pulse_internal.doubt'::regclass, 'pulse_internal.wake'::regclass)
            ),
            '{}'
        ),
        coalesce(bool_or(l.pid IS NULL), false)
    INTO v_ready, v_waiting, v_lease, v_tally, v_note, v_prepared
    FROM pg_locks AS l
    WHERE l.locktype = 'relation'
        AND l.mode = 'RowExclusiveLock'
        AND l.database = (
            SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
        )
        AND l.relation IN (
            'pulse_internal.ready'::regclass, 'pulse_internal.waiting'::regclass, 'pulse_internal.lease'::regclass,
            'pulse_internal.group_notice'::regclass,
            'pulse_internal.tally'::regclass, 'pulse_internal.doubt'::regclass, 'pulse_internal.wake'::regclass
        );

    IF v_old.version IS NULL THEN
        v_old.ready_q := 0;
        v_old.waiting_t := '-infinity';
        v_old.lease_q := 0;
        v_old.tally_q := 0;
        v_old.note_q := 0;
    END IF;
    v_new.ready_q := v_old.ready_q;
    v_new.waiting_t := v_old.waiting_t;
    v_new.lease_q := v_old.lease_q;
    v_new.tally_q := v_old.tally_q;
    v_new.note_q := v_old.note_q;
    v_new.next_ready_q := v_old.next_ready_q;
    v_new.next_waiting_t := v_old.next_waiting_t;
    v_new.next_lease_q := v_old.next_lease_q;
    v_new.next_tally_q := v_old.next_tally_q;
    v_new.next_note_q := v_old.next_note_q;
    v_new.ready_holders := v_old.ready_holders;
    v_new.waiting_holders := v_old.waiting_holders;
    v_new.lease_holders := v_old.lease_holders;
    v_new.tally_holders := v_old.tally_holders;
    v_new.note_holders := v_old.note_holders;

    -- What was remembered stays until its last holder has ended: replaced by a newer set
    -- at each look, it would never be decided under steady load.
    IF v_old.version IS NULL OR NOT (v_prepared OR v_old.ready_holders && v_ready) THEN
        v_new.ready_q := coalesce(v_old.next_ready_q, 0);
        v_new.next_ready_q := v_now_ready_q;
        v_new.ready_holders := v_ready;
    END IF;
    IF v_old.version IS NULL OR NOT (v_prepared OR v_old.waiting_holders && v_waiting) THEN
        v_new.waiting_t := coalesce(v_old.next_waiting_t, '-infinity');
        v_new.next_waiting_t := v_new.seen_at;
        v_new.waiting_holders := v_waiting;
    END IF;
    IF v_old.version IS NULL OR NOT (v_prepared OR v_old.lease_holders && v_lease) THEN
        v_new.lease_q := coalesce(v_old.next_lease_q, 0);
        v_new.next_lease_q := v_now_lease_q;
        v_new.lease_holders := v_lease;
    END IF;
    IF v_old.version IS NULL OR NOT (v_prepared OR v_old.tally_holders && v_tally) THEN
        v_new.tally_q := coalesce(v_old.next_tally_q, 0);
        v_new.next_tally_q := v_now_tally_q;
        v_new.tally_holders := v_tally;
    END IF;
    IF v_old.version IS NULL OR NOT (v_prepared OR v_old.note_holders && v_note) THEN
        v_new.note_q := coalesce(v_old.next_note_q, 0);
        v_new.next_note_q := v_now_note_q;
        v_new.note_holders := v_note;
    END IF;

    -- The clock stepped back: what was decided in its future is not.
    IF v_new.seen_at < v_old.seen_at THEN
        v_new.waiting_t := least(v_new.waiting_t, v_new.seen_at - interval '1 minute');
        v_new.next_waiting_t := least(
            v_new.next_waiting_t, v_new.seen_at - interval '1 minute'
        );
        -- A clock that is kept right by slewing or by small steps is not worth a note.
        IF v_new.seen_at < v_old.seen_at - interval '1 second' THEN
            PERFORM pulse_internal.note_clock(v_old.seen_at - v_new.seen_at);
        END IF;
    END IF;

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
'Find out up to where everything is decided, and remember what to wait for next.';

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
