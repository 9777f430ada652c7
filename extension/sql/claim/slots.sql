-- The slots of a lane with max_slots (docs/decisions/slots.md).
--
-- Which leases run is known by a list, the roster, that has one writer at a time: whoever
-- holds its lock. One list would let one claim of the lane run at a time, until its commit, so from
-- 200 slots on they are dealt out to banks of a hundred or more, at most eight: a claim takes
-- the first bank that nobody has, and further ones if that has too few slots free. Each
-- bank stays within its share, so the lane stays within max_slots.
--
-- A lane begins with one bank. The claim that finds no more leases on its roster than there are
-- slots deals them out; until then it alone has the lane, and afterwards no bank holds more than
-- its share. Only set_lane, which keeps all claims out, makes one bank of them again:
-- so a claim that has seen several banks may rely on them. Where max_slots was lowered below what
-- runs, there is one bank until enough of them have ended.

-- Which rosters a claim may add to, and how many slots they have free together; no rosters
-- when none could be had, or all are full.
CREATE FUNCTION pulse_internal.take_slots(
    lane text, max_slots integer, is_serial boolean, need integer,
    OUT rosters pulse_internal.roster [], OUT free integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_wanted integer := CASE
        WHEN take_slots.is_serial OR take_slots.max_slots < 200 THEN 1
        ELSE least(8, take_slots.max_slots / 100)
    END;
    v_banks integer := 1;
    v_first integer := 0;
    v_bank integer;
    v_taken_by_others integer;
    v_roster pulse_internal.roster;
    v_slots integer;
    v_free integer;
BEGIN
    free := 0;
    IF v_wanted > 1 THEN
        v_banks := coalesce((pulse_internal.newest_roster(take_slots.lane, 0)).banks, 1);
        v_first := floor(random() * v_banks);
    END IF;

    -- Once around, and then for one that others had, if nothing was free.
    FOR v_turn IN 0..v_banks LOOP
        IF v_turn < v_banks THEN
            v_bank := (v_first + v_turn) % v_banks;
            IF NOT pg_try_advisory_xact_lock(
                'pulse_internal.roster'::regclass::oid::integer, hashtext(take_slots.lane) # v_bank
            ) THEN
                v_taken_by_others := coalesce(v_taken_by_others, v_bank);
                CONTINUE;
            END IF;
        ELSE
            v_bank := v_taken_by_others;
            EXIT WHEN free > 0
                OR v_bank IS NULL
                OR NOT pulse_internal.take_turn(take_slots.lane, v_bank);
        END IF;

        -- In later statements than the lock.
        v_roster := pulse_internal.newest_roster(take_slots.lane, v_bank);
        IF v_roster.lane IS NULL AND v_bank = 0 THEN
            v_roster := pulse_internal.rebuild_roster(take_slots.lane);
        END IF;
        v_slots := pulse_internal.share(v_roster, take_slots.max_slots);

        -- Ends of leases do not touch the roster: who is gone is found out when the slots
        -- seem to be full. A long one costs each claim that reads and writes it, so it is
        -- looked through now and then: about as many leases a claim as it may take.
        IF cardinality(v_roster.leases) + take_slots.need - free > v_slots
            OR cardinality(v_roster.leases) > 100
            AND random() * cardinality(v_roster.leases) < take_slots.need
        THEN
            v_roster.leases := array(
                SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lease = ANY (v_roster.leases)
            );
        END IF;

        v_free := v_slots - cardinality(v_roster.leases);
        IF v_free > 0 THEN
            rosters := rosters || v_roster;
            free := free + v_free;
            IF v_roster.banks < v_wanted THEN
                rosters := pulse_internal.deal_out(v_roster, v_wanted);
            END IF;
        END IF;
        EXIT WHEN free >= take_slots.need;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_slots(text, integer, boolean, integer) IS
'Lock as many rosters of a lane as have the slots that are needed, and return them with the leases that run, and how many slots are free.';

CREATE FUNCTION pulse_internal.newest_roster(lane text, bank integer)
RETURNS pulse_internal.roster
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_roster pulse_internal.roster;
BEGIN
    SELECT r.* INTO v_roster
    FROM pulse_internal.roster AS r
    WHERE r.lane = newest_roster.lane
        AND r.bank = newest_roster.bank
    ORDER BY r.version DESC
    LIMIT 1;
    RETURN v_roster;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_roster(text, integer) IS
'The newest roster of a bank of a lane, or NULLs.';

-- Only under the exclusive lane lock, or the roster lock of a limited lane, taken in an
-- earlier statement.
CREATE FUNCTION pulse_internal.rebuild_roster(lane text)
RETURNS pulse_internal.roster
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_roster pulse_internal.roster;
BEGIN
    INSERT INTO pulse_internal.roster AS r (lane, leases)
    VALUES (
        rebuild_roster.lane,
        array(
            SELECT l.lease
            FROM pulse_internal.lease AS l
            WHERE l.lane = rebuild_roster.lane
            ORDER BY l.lease
        )
    )
    RETURNING r.* INTO v_roster;
    RETURN v_roster;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rebuild_roster(text) IS
'Write the roster of a lane from its leases, as one bank.';

CREATE FUNCTION pulse_internal.share(roster pulse_internal.roster, max_slots integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (max_slots + roster.banks - 1 - roster.bank) / roster.banks;
END;
$$;

COMMENT ON FUNCTION pulse_internal.share(pulse_internal.roster, integer) IS
'How many of the slots of a lane a bank has.';

-- Evenly: n leases of n slots or more fit into the shares.
CREATE FUNCTION pulse_internal.deal_out(roster pulse_internal.roster, banks integer)
RETURNS pulse_internal.roster []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN array(
        SELECT
            ROW(
                roster.lane, CASE b.bank WHEN 0 THEN roster.version END,
                array(
                    SELECT u.lease
                    FROM unnest(roster.leases) WITH ORDINALITY AS u (lease, place)
                    WHERE (u.place - 1) % deal_out.banks = b.bank
                ),
                b.bank, deal_out.banks
            )::pulse_internal.roster
        FROM generate_series(0, deal_out.banks - 1) AS b (bank)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.deal_out(pulse_internal.roster, integer) IS
'The rosters of so many banks, made of the one roster of a lane.';

-- The claim has written its leases into the first of these. What is beyond the share of that
-- bank goes to the others.
CREATE FUNCTION pulse_internal.replace_rosters(rosters pulse_internal.roster [], max_slots integer)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_first pulse_internal.roster := replace_rosters.rosters[1];
    v_written pulse_internal.roster;
    v_leases bigint [];
    v_roster pulse_internal.roster;
    v_free integer;
BEGIN
    DELETE FROM pulse_internal.roster AS r
    WHERE r.lane = v_first.lane
        AND r.bank = v_first.bank
        AND r.version = v_first.version;
    IF cardinality(replace_rosters.rosters) = 1 THEN
        RETURN;
    END IF;

    v_written := pulse_internal.newest_roster(v_first.lane, v_first.bank);
    v_leases := v_written.leases[cardinality(v_first.leases) + 1 :];
    FOREACH v_roster IN ARRAY replace_rosters.rosters LOOP
        v_free := pulse_internal.share(v_roster, replace_rosters.max_slots)
            - cardinality(v_roster.leases);
        INSERT INTO pulse_internal.roster (lane, bank, leases, banks)
        VALUES (
            v_roster.lane, v_roster.bank, v_roster.leases || v_leases[: v_free],
            v_roster.banks
        );
        v_leases := v_leases[v_free + 1 :];

        DELETE FROM pulse_internal.roster AS r
        WHERE r.lane = v_roster.lane
            AND r.bank = v_roster.bank
            AND r.version IN (v_roster.version, v_written.version);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.replace_rosters(pulse_internal.roster [], integer) IS
'Put new versions in the place of these rosters, with the leases that a claim has written into the first.';
