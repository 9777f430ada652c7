-- Locks that keep claims out and that no verb of pulse holds.

-- Any role may take advisory locks, also those of pulse. A call of pulse that holds one
-- has also opened the table the lock is named for, and its role may make that call: who
-- lacks either is a stranger. Only the locks of holds and lanes are shared by calls (by claims,
-- and one that was refused has opened nothing) and those of signals. One look at pg_locks is
-- no snapshot, so two must agree.
CREATE FUNCTION pulse._foreign_locks()
RETURNS TABLE (class regclass, key integer, exclusive boolean, pid integer, holder text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_seen text [] := ARRAY(SELECT s.lock FROM pulse._suspect_locks() AS s);
BEGIN
    IF v_seen = '{}' THEN
        RETURN;
    END IF;

    RETURN QUERY
    SELECT
        s.class,
        s.key,
        s.exclusive,
        s.pid,
        CASE
            WHEN s.pid IS NULL THEN 'a prepared transaction'
            ELSE format('backend %s of role %s', s.pid, coalesce(a.usename, 'unknown'))
        END
    FROM pulse._suspect_locks() AS s
    LEFT JOIN pg_stat_activity AS a ON a.pid = s.pid
    WHERE s.lock = ANY (v_seen)
    ORDER BY s.class::text, s.pid;
END;
$$;

COMMENT ON FUNCTION pulse._foreign_locks() IS
'Advisory locks on the keys of pulse that no call of pulse holds, and who does.';

CREATE FUNCTION pulse._suspect_locks()
RETURNS TABLE (lock text, class regclass, key integer, exclusive boolean, pid integer)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH held AS MATERIALIZED (
        SELECT l.*
        FROM pg_locks AS l
        WHERE l.granted
            AND l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
    ),

    session AS MATERIALIZED (
        SELECT a.pid, a.usesysid FROM pg_stat_activity AS a WHERE a.usesysid IS NOT NULL
    ),

    caller AS MATERIALIZED (
        SELECT
            u.usesysid,
            bool_or(has_function_privilege(m.oid, 'pulse.tick()', 'EXECUTE')) AS ticks,
            bool_or(
                has_function_privilege(m.oid, 'pulse.signal(text,jsonb,interval)', 'EXECUTE')
            ) AS signals
        FROM (SELECT DISTINCT s.usesysid FROM session AS s) AS u
        INNER JOIN pg_roles AS m ON pg_has_role(u.usesysid, m.oid, 'MEMBER')
        GROUP BY u.usesysid
    )

    SELECT
        format('%s %s %s', l.classid, l.objid, coalesce(l.pid::text, l.virtualtransaction)),
        l.classid::regclass,
        l.objid::bigint::bit(32)::integer,
        l.mode = 'ExclusiveLock',
        l.pid
    FROM held AS l
    WHERE l.locktype = 'advisory'
        AND l.objsubid = 2
        AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.classid IN (
            'pulse.hold'::regclass, 'pulse.lane'::regclass, 'pulse.roster'::regclass,
            'pulse.mark'::regclass, 'pulse.upkeep_run'::regclass, 'pulse.signal'::regclass,
            'pulse.quota'::regclass
        )
        AND NOT (
            CASE
                WHEN l.mode = 'ExclusiveLock' OR l.classid = 'pulse.signal'::regclass
                    THEN EXISTS (
                        SELECT
                        FROM held AS t
                        WHERE t.locktype = 'relation'
                            AND t.relation = l.classid
                            AND t.virtualtransaction = l.virtualtransaction
                    )
                ELSE l.classid IN ('pulse.hold'::regclass, 'pulse.lane'::regclass)
            END
            AND (
                l.pid IS NULL
                OR EXISTS (
                    SELECT
                    FROM session AS s
                    INNER JOIN caller AS c ON c.usesysid = s.usesysid
                    WHERE s.pid = l.pid
                        AND (c.ticks OR c.signals AND l.classid = 'pulse.signal'::regclass)
                )
            )
        )
$$;

COMMENT ON FUNCTION pulse._suspect_locks() IS
'What one look at pg_locks shows of locks on the keys of pulse that no call of it seems to hold.';

CREATE FUNCTION pulse._foreign_lock_remedy(pid integer)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        '%s, and take the right to do so from PUBLIC (docs/security.md).',
        CASE
            WHEN _foreign_lock_remedy.pid IS NULL THEN 'ROLLBACK PREPARED it'
            ELSE format('SELECT pg_terminate_backend(%s)', _foreign_lock_remedy.pid)
        END
    )
$$;

COMMENT ON FUNCTION pulse._foreign_lock_remedy(integer) IS
'In words: what to do about a lock that another role holds.';
