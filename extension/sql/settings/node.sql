-- Numbers that are kept outside the database: producers keep job ids, workers leases,
-- exporters the entries of the audit. None of them may be handed out twice.
--
-- A job id is node << 43 | n, a lease is node << 53 | n << 10 | ten random bits. The
-- sequences themselves stand in the range of the node, so nothing is computed when a
-- number is drawn, and a dump or pg_upgrade keeps the node. 1,024 nodes of 2^43 jobs stay
-- below 2^53. Not as MINVALUE and MAXVALUE: an extension's are not dumped.
--
-- A standby that is promoted may not have seen the last numbers of the old primary. So
-- pulse remembers in two sequences which server drew last: server_start is compared before
-- every draw (take_request, kind_settings and claim_batch do it in an expression that
-- they evaluate anyway), and a server that is not the one remembered is met once, by
-- meet_server. ready_seq and version are seen by nobody outside and need no jump.

CREATE FUNCTION pulse.node()
RETURNS integer
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (s.last_value >> 43)::integer
    FROM pulse_internal.job_id AS s
$$;

COMMENT ON FUNCTION pulse.node() IS
'The number of this database that its job ids and leases carry: 0 until set_node was called. Writes nothing.';

-- A worker or a client of several databases asks each of them.
CREATE FUNCTION pulse.node_state()
RETURNS text
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN n.node IS NULL THEN 'unset'
            WHEN n.system_identifier IN (0, c.system_identifier) AND n.database = c.database
                THEN 'set'
            ELSE 'copy'
        END
    FROM pulse_internal.here() AS c
    LEFT JOIN pulse_internal.node AS n ON n.node = pulse.node()
$$;

COMMENT ON FUNCTION pulse.node_state() IS
'Whether the number of this database is its own: set, unset (set_node was never called, so it is 0) or copy (it was set in another database, of which this one is a copy or which it replaces). Writes nothing.';

CREATE FUNCTION pulse.node_of(job_id bigint)
RETURNS integer
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (node_of.job_id >> 43)::integer
$$;

COMMENT ON FUNCTION pulse.node_of(bigint) IS
'The node that enqueued a job: the bits of its id from the 43rd on. Writes nothing.';

CREATE FUNCTION pulse.lease_node(lease bigint)
RETURNS integer
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (lease_node.lease >> 53)::integer
$$;

COMMENT ON FUNCTION pulse.lease_node(bigint) IS
'The node that handed out a lease, where its report belongs: the bits from the 53rd on. Writes nothing.';

-- nextval takes a lock on the sequence that stays until the transaction ends, and
-- ALTER SEQUENCE waits for it: so nobody draws a number between reading the last one and
-- moving the sequence, and a rollback takes all of it back. Two locks, and a transaction
-- that claims and enqueues takes them in either order: shorter tries than
-- deadlock_timeout, so that it is never the one that is shot.
CREATE FUNCTION pulse.set_node(
    n integer,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(set_node.signature);
    v_was record;
    v_next record;
    v_before jsonb;
    v_after jsonb;
BEGIN
    PERFORM pulse_internal.require_read_committed('set_node');
    IF set_node.n IS NULL THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                'n must be between %s and %s',
                pulse_internal.lowest('set_node', 'n'), pulse_internal.highest('set_node', 'n')
            ),
            'It is NULL.',
            'Pass the number of this database: SELECT pulse.set_node(1).'
        );
    END IF;
    PERFORM pulse_internal.require_range('set_node', 'n', set_node.n);
    PERFORM pulse_internal.meet_server();

    FOR v_try IN 1..20 LOOP
        BEGIN
            LOCK TABLE pulse_internal.node IN ROW EXCLUSIVE MODE;
            -- Both wait for those who have drawn a number and are still open.
            ALTER SEQUENCE pulse_internal.job_id NO CYCLE;
            ALTER SEQUENCE pulse_internal.lease_seq NO CYCLE;
            EXIT;
        EXCEPTION
            WHEN lock_not_available THEN
                IF v_try = 20 THEN
                    PERFORM pulse_internal.raise(
                        'PU109',
                        'set_node could not shut out open enqueues and claims within 10 seconds',
                        'Transactions that have enqueued or claimed jobs are still open.',
                        'End them, or try again when they have ended.'
                    );
                END IF;
        END;
    END LOOP;

    SELECT pulse.node() AS node, j.last_value AS job, l.last_value AS lease INTO v_was
    FROM pulse_internal.job_id AS j
    CROSS JOIN pulse_internal.lease_seq AS l;

    SELECT to_jsonb(d) INTO v_before
    FROM pulse_internal.node AS d
    WHERE d.node = v_was.node;

    IF v_was.node <> set_node.n THEN
        -- Where the old node stopped, in case it comes back.
        INSERT INTO pulse_internal.node AS d (
            node, system_identifier, database, set_at, last_job, last_lease
        )
        SELECT
            v_was.node, h.system_identifier, h.database, clock_timestamp(), v_was.job,
            v_was.lease
        FROM pulse_internal.here() AS h
        ON CONFLICT ON CONSTRAINT node_is_known_once DO UPDATE SET
            last_job = excluded.last_job,
            last_lease = excluded.last_lease;

        SELECT
            1 + greatest(max(d.last_job), set_node.n::bigint << 43) AS job,
            1 + greatest(max(d.last_lease), set_node.n::bigint << 43) AS lease
        INTO v_next
        FROM pulse_internal.node AS d
        WHERE d.node = set_node.n;

        EXECUTE format('ALTER SEQUENCE pulse_internal.job_id RESTART WITH %s', v_next.job);
        EXECUTE format('ALTER SEQUENCE pulse_internal.lease_seq RESTART WITH %s', v_next.lease);
        -- Lease numbers of a lower node would be below what reap has looked at.
        DELETE FROM pulse_internal.horizon;
        DELETE FROM pulse_internal.upkeep_run AS t WHERE t.step = 'watch';
    END IF;

    INSERT INTO pulse_internal.node AS d (node, system_identifier, database, set_at)
    SELECT set_node.n, h.system_identifier, h.database, clock_timestamp()
    FROM pulse_internal.here() AS h
    ON CONFLICT ON CONSTRAINT node_is_known_once DO UPDATE SET
        system_identifier = excluded.system_identifier,
        database = excluded.database,
        set_at = excluded.set_at
    RETURNING to_jsonb(d) INTO v_after;

    -- An identifier of 64 bits would be rounded in a JSON number.
    PERFORM pulse_internal.audit(
        v_who, 'set_node', NULL, NULL,
        v_before || jsonb_build_object('system_identifier', v_before ->> 'system_identifier'),
        v_after || jsonb_build_object('system_identifier', v_after ->> 'system_identifier'),
        NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse.set_node(integer, pulse_internal.caller_signature) IS
'Give this database a number from 0 to 1023 that its job ids and leases carry from now on, so that those of two databases never collide; each database needs its own. Call it again in a restored copy with another number, and after pg_upgrade with the same one. A node that was left and is set again goes on where it stopped. Enqueues and claims wait while it does. PU002 outside the bounds, PU109 when open ones do not end within 10 s. Writes node, its sequences, horizon, upkeep_run and audit_entry.';

-- A server that is not the one that drew the last numbers is met once, before it draws its
-- first (settings/node.sql).

-- What meet_server writes is not transactional, and has to be so: the next caller must see
-- it although the transaction of the first one is open, prepared or rolled back. The lock must
-- not stay until that transaction ends: it is taken in a subtransaction that is rolled
-- back, which releases it. It is a table's and not advisory: only the owner can take it.
CREATE FUNCTION pulse_internal.meet_server()
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_start constant bigint
    := (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint;
    v_met boolean := false;
    v_jumped jsonb;
BEGIN
    FOR v_try IN 1..2000 LOOP
        IF pg_sequence_last_value('pulse_internal.server_start') = v_start THEN
            RETURN true;
        END IF;
        BEGIN
            IF pulse_internal.lock_node() THEN
                v_jumped := pulse_internal.secure_numbers(v_start);
                v_met := true;
                RAISE EXCEPTION 'the lock is released';
            END IF;
        EXCEPTION
            WHEN raise_exception THEN
                NULL;
        END;
        EXIT WHEN v_met;
        IF v_try = 2000 THEN
            PERFORM pulse_internal.raise(
                'PU110',
                'the numbers of this server are not secured yet',
                'Another session has had pulse_internal.node locked for 10 seconds, right after a start or a promotion.',
                'Try again; if it stays, pg_locks names who has pulse_internal.node locked.'
            );
        END IF;
    END LOOP;

    IF v_jumped IS NOT NULL THEN
        RAISE LOG 'pulse: another server or timeline; numbers go on from %', v_jumped;
        PERFORM pulse_internal.audit(
            pulse_internal.role_number(current_user), 'jump', NULL, NULL, NULL, v_jumped,
            'another server or timeline'
        );
    END IF;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.meet_server() IS
'Put the numbers forward by 100 million if another server or timeline drew the last ones (leases by a million if it was this one before its restart), and remember this one. Returns true.';

-- Under the lock; what it writes survives a rollback.
CREATE FUNCTION pulse_internal.secure_numbers(start bigint)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Three quarters of an hour of a lonely old primary at 36,000 jobs a second (bench-sql
    -- a); 87,000 promotions fit into the range of a node.
    v_jump constant bigint := 100000000;
    v_history bigint;
    v_remembered record;
    v_jumped jsonb;
BEGIN
    IF pg_sequence_last_value('pulse_internal.server_start') = secure_numbers.start THEN
        RETURN NULL;
    END IF;

    v_history := pulse_internal.history();
    SELECT h.last_value, h.is_called INTO v_remembered
    FROM pulse_internal.server_history AS h;

    IF v_remembered.is_called AND v_remembered.last_value = v_history THEN
        -- A restart. What was committed asynchronously may be lost: claims at most.
        PERFORM setval('pulse_internal.lease_seq', s.last_value + 1000000)
        FROM pulse_internal.lease_seq AS s;
    ELSIF v_remembered.is_called THEN
        SELECT jsonb_object_agg(
            s.name, setval(s.name::regclass, s.last_value + v_jump)::text
        ) INTO v_jumped
        FROM (
            SELECT 'pulse_internal.job_id' AS name, q.last_value FROM pulse_internal.job_id AS q
            UNION ALL
            SELECT 'pulse_internal.lease_seq', q.last_value FROM pulse_internal.lease_seq AS q
            UNION ALL
            SELECT 'pulse_internal.audit_entry_entry_seq', q.last_value
            FROM pulse_internal.audit_entry_entry_seq AS q
        ) AS s;
    END IF;

    -- Last of all: nobody draws before.
    PERFORM setval('pulse_internal.server_history', v_history);
    PERFORM setval('pulse_internal.server_start', secure_numbers.start);
    RETURN v_jumped;
END;
$$;

COMMENT ON FUNCTION pulse_internal.secure_numbers(bigint) IS
'Put the numbers forward for a server that has started, unless another session did; returns where they go on after another server or timeline.';

-- Not by NOWAIT and pg_sleep, which a clock that is set back stretches (take_turn).
CREATE FUNCTION pulse_internal.lock_node()
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5ms'
AS $$
BEGIN
    LOCK TABLE pulse_internal.node IN SHARE ROW EXCLUSIVE MODE;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END;
$$;

COMMENT ON FUNCTION pulse_internal.lock_node() IS
'Lock the table of the node against others who meet the server, if it can be had within 5 ms.';

-- Where the timeline cannot be read every start counts as a promotion.
CREATE FUNCTION pulse_internal.history()
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_line text := pg_postmaster_start_time()::text;
BEGIN
    IF has_function_privilege('pg_catalog.pg_walfile_name(pg_lsn)', 'EXECUTE')
        AND has_function_privilege('pg_catalog.pg_current_wal_insert_lsn()', 'EXECUTE')
    THEN
        v_line := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    END IF;
    RETURN hashtextextended(
        pulse_internal.system_identifier() || ' ' || v_line, 0
    ) & 9223372036854775806 | 1;
END;
$$;

COMMENT ON FUNCTION pulse_internal.history() IS
'A hash of the cluster and its timeline: it changes with a promotion and in a restored copy.';

CREATE FUNCTION pulse_internal.system_identifier()
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
        RETURN s.system_identifier FROM pg_control_system() AS s;
    END IF;
    RETURN 0;
END;
$$;

COMMENT ON FUNCTION pulse_internal.system_identifier() IS
'What tells this cluster from its copies, or 0 where the owner of pulse may not know.';

CREATE FUNCTION pulse_internal.here(OUT system_identifier bigint, OUT database oid)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.system_identifier(), d.oid
    FROM pg_database AS d
    WHERE d.datname = current_database()
$$;

COMMENT ON FUNCTION pulse_internal.here() IS
'The cluster and the database that this is.';
