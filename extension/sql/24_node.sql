-- An id is sequence << 10 | node, and the sequence alone remembers both. It steps by
-- 1024, so setting the node is putting it forward to the next multiple plus the node.

-- nextval takes a lock on the sequence that stays until the transaction ends, and
-- ALTER SEQUENCE waits for it: so nobody draws an id between reading the last one and
-- putting the sequence forward, and a rollback takes all of it back.
CREATE FUNCTION pulse.set_node(n integer)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_set_node(pulse._sign(), set_node.n)
$$;

COMMENT ON FUNCTION pulse.set_node(integer) IS
'Give this database a number from 0 to 1023 that its job ids carry from now on, so that ids of two databases never collide; each database needs its own. Call it again in a restored copy with another number, and after pg_upgrade with the same one. Ids never go back. Enqueues wait while it does. PU002 outside the bounds, PU109 when open enqueues do not end within 10 s.';

CREATE FUNCTION pulse._do_set_node(signature pulse._signature, n integer)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_set_node.signature);
    v_last bigint;
    v_next bigint;
    v_before jsonb;
    v_after jsonb;
BEGIN
    PERFORM pulse._require_read_committed('set_node');
    IF _do_set_node.n IS NULL THEN
        PERFORM pulse._raise(
            'PU002',
            'n must be between 0 and 1023',
            'It is NULL.',
            'Pass the number of this database: SELECT pulse.set_node(1).'
        );
    END IF;
    PERFORM pulse._require_between('n', _do_set_node.n, 0, 1023);

    BEGIN
        -- Waits for open enqueues.
        ALTER SEQUENCE pulse.job_id INCREMENT BY 1024;
    EXCEPTION
        WHEN lock_not_available THEN
            PERFORM pulse._raise(
                'PU109',
                'set_node could not shut out open enqueues within 10 seconds',
                'Transactions that have enqueued jobs are still open.',
                'End them, or try again when they have ended.'
            );
    END;

    SELECT s.last_value INTO v_last
    FROM pulse.job_id AS s;

    IF (v_last & 1023) <> _do_set_node.n THEN
        v_next := ((v_last >> 10) + 1) << 10 | _do_set_node.n;
        EXECUTE format('ALTER SEQUENCE pulse.job_id RESTART WITH %s', v_next);
    END IF;

    DELETE FROM pulse.node AS d
    RETURNING to_jsonb(d) - 'only_one' INTO v_before;

    INSERT INTO pulse.node AS d (node, system_identifier, database, set_at)
    SELECT
        _do_set_node.n,
        pulse._system_identifier(),
        b.oid,
        clock_timestamp()
    FROM pg_database AS b
    WHERE b.datname = current_database()
    RETURNING to_jsonb(d) - 'only_one' INTO v_after;

    -- An identifier of 64 bits would be rounded in a JSON number.
    PERFORM pulse._audit(
        v_who, 'set_node', NULL, NULL,
        v_before || jsonb_build_object('system_identifier', v_before ->> 'system_identifier'),
        v_after || jsonb_build_object('system_identifier', v_after ->> 'system_identifier'),
        NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse._do_set_node(pulse._signature, integer) IS
'set_node for the role that signed. Writes the same.';

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
