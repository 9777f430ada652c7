-- Up to where everything is decided: what the marks rest on (common/marks.sql).

-- Both steps for all these tables, with one look at pg_locks. A look that is younger
-- than 20 ms is good enough for all.
CREATE FUNCTION pulse._see_horizon()
RETURNS pulse.horizon
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_old pulse.horizon;
    v_new pulse.horizon;
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
    FROM pulse.horizon AS h
    ORDER BY h.version DESC
    LIMIT 1;

    IF v_old.seen_at BETWEEN clock_timestamp() - interval '20 milliseconds'
        AND clock_timestamp()
    THEN
        RETURN v_old;
    END IF;

    v_now_ready_q := pulse._last_drawn_ready();
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_now_lease_q
    FROM pulse.lease_seq AS s;
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_now_tally_q
    FROM pulse.tally_seq AS s;
    SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END INTO v_now_note_q
    FROM pulse.note_seq AS s;
    v_new.seen_at := clock_timestamp();

    -- After the sequences and the clock. Our own transaction counts like any other.
    SELECT
        coalesce(
            array_agg(l.virtualtransaction) FILTER (
                WHERE l.relation IN (
                    'pulse.ready'::regclass, 'pulse.group_ready'::regclass,
                    'pulse.group_notice'::regclass
                )
            ),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (WHERE l.relation = 'pulse.waiting'::regclass),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (WHERE l.relation = 'pulse.lease'::regclass),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (WHERE l.relation = 'pulse.tally'::regclass),
            '{}'
        ),
        coalesce(
            array_agg(l.virtualtransaction) FILTER (
                WHERE l.relation IN ('pulse.doubt'::regclass, 'pulse.wake'::regclass)
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
            'pulse.ready'::regclass, 'pulse.waiting'::regclass, 'pulse.lease'::regclass,
            'pulse.group_ready'::regclass, 'pulse.group_notice'::regclass,
            'pulse.tally'::regclass, 'pulse.doubt'::regclass, 'pulse.wake'::regclass
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
    END IF;

    v_new.version := nextval('pulse.version');
    INSERT INTO pulse.horizon
    SELECT (v_new).*;

    DELETE FROM pulse.horizon AS h
    WHERE h.version = (
        SELECT o.version
        FROM pulse.horizon AS o
        WHERE o.version = v_old.version
        FOR UPDATE SKIP LOCKED
    );

    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse._see_horizon() IS
'Find out up to where everything is decided, and remember what to wait for next.';

CREATE FUNCTION pulse._last_drawn_ready()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT s.last_value - CASE WHEN s.is_called THEN 0 ELSE 1 END
        FROM pulse.ready_seq AS s
    );
END;
$$;

COMMENT ON FUNCTION pulse._last_drawn_ready() IS
'The last place in line that was drawn.';
