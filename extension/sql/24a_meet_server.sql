-- A server that is not the one that drew the last numbers is met once, before it draws its
-- first (24_node.sql).

-- What _meet_server writes is not transactional, and has to be so: whoever comes next must
-- see it although the first one's transaction is open or rolled back. The lock stays
-- until that transaction ends, so it is waited for in pieces. It is a table's and not
-- advisory: only the owner can take it.
CREATE FUNCTION pulse._meet_server()
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Three quarters of an hour of a lonely old primary at 36,000 jobs a second (bench-sql
    -- a); 87,000 promotions fit into the range of a node.
    v_jump constant bigint := 100000000;
    v_start constant bigint
    := (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint;
    v_history bigint;
    v_remembered record;
    v_jumped jsonb;
BEGIN
    FOR v_try IN 1..2000 LOOP
        IF pg_sequence_last_value('pulse.server_start') = v_start THEN
            RETURN true;
        END IF;
        EXIT WHEN pulse._lock_node();
        IF v_try = 2000 THEN
            PERFORM pulse._raise(
                'PU110',
                'the numbers of this server are not secured yet',
                'Another session has had pulse.node locked for 10 seconds, right after a start or a promotion.',
                'Try again; if it stays, pg_locks names who has pulse.node locked.'
            );
        END IF;
    END LOOP;

    IF pg_sequence_last_value('pulse.server_start') = v_start THEN
        RETURN true;
    END IF;

    v_history := pulse._history();
    SELECT h.last_value, h.is_called INTO v_remembered
    FROM pulse.server_history AS h;

    IF v_remembered.is_called AND v_remembered.last_value = v_history THEN
        -- A restart. What was committed asynchronously may be lost: claims at most.
        PERFORM setval('pulse.lease_seq', s.last_value + 1000000)
        FROM pulse.lease_seq AS s;
    ELSIF v_remembered.is_called THEN
        SELECT jsonb_object_agg(
            s.name, setval(s.name::regclass, s.last_value + v_jump)::text
        ) INTO v_jumped
        FROM (
            SELECT 'pulse.job_id' AS name, q.last_value FROM pulse.job_id AS q
            UNION ALL
            SELECT 'pulse.lease_seq', q.last_value FROM pulse.lease_seq AS q
            UNION ALL
            SELECT 'pulse.audit_entry_entry_seq', q.last_value
            FROM pulse.audit_entry_entry_seq AS q
        ) AS s;
    END IF;

    -- Last of all: nobody draws before.
    PERFORM setval('pulse.server_history', v_history);
    PERFORM setval('pulse.server_start', v_start);

    IF v_jumped IS NOT NULL THEN
        RAISE LOG 'pulse: another server or timeline; numbers go on from %', v_jumped;
        PERFORM pulse._audit(
            pulse._role_number(current_user), 'jump', NULL, NULL, NULL, v_jumped,
            'another server or timeline'
        );
    END IF;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._meet_server() IS
'Put the numbers forward by 100 million if another server or timeline drew the last ones (leases by a million if it was this one before its restart), and remember this one. Returns true.';

-- Not by NOWAIT and pg_sleep, which a clock that is set back stretches (_take_turn).
CREATE FUNCTION pulse._lock_node()
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5ms'
AS $$
BEGIN
    LOCK TABLE pulse.node IN SHARE ROW EXCLUSIVE MODE;
    RETURN true;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN false;
END;
$$;

COMMENT ON FUNCTION pulse._lock_node() IS
'Lock the table of the node against others who meet the server, if it can be had within 5 ms.';

-- Where the timeline cannot be read every start counts as a promotion.
CREATE FUNCTION pulse._history()
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
        pulse._system_identifier() || ' ' || v_line, 0
    ) & 9223372036854775806 | 1;
END;
$$;

COMMENT ON FUNCTION pulse._history() IS
'A hash of the cluster and its timeline: it changes with a promotion and in a restored copy.';

CREATE FUNCTION pulse._system_identifier()
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

COMMENT ON FUNCTION pulse._system_identifier() IS
'What tells this cluster from its copies, or 0 where the owner of pulse may not know.';

CREATE FUNCTION pulse._here(OUT system_identifier bigint, OUT database oid)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._system_identifier(), d.oid
    FROM pg_database AS d
    WHERE d.datname = current_database()
$$;

COMMENT ON FUNCTION pulse._here() IS
'The cluster and the database that this is.';

-- The server that pulse is installed on drew no number before.
DO $$
BEGIN
    PERFORM pulse._meet_server();
END;
$$;
