-- How much time tick has.

-- Whoever calls tick may have a statement_timeout, and a tick that is cancelled has done
-- nothing at all: so it ends long before.
CREATE FUNCTION pulse._upkeep_budget()
RETURNS interval
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT least(interval '2 seconds', greatest(interval '0', t.is_left) / 3)
    FROM (
        SELECT
            coalesce(
                least(
                    statement_timestamp()
                    + nullif(current_setting('statement_timeout')::interval, interval '0'),
                    transaction_timestamp()
                    + nullif(current_setting('transaction_timeout', true)::interval, interval '0')
                ) - clock_timestamp(),
                interval '1 hour'
            ) AS is_left
    ) AS t
$$;

COMMENT ON FUNCTION pulse._upkeep_budget() IS
'How long a call of tick may go on.';

-- Of roles that may call tick, as settings of theirs, of the database or of the server: a
-- number without a unit is in milliseconds.
CREATE FUNCTION pulse._short_timeouts()
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(format('%s has %s = %s', g.who, g.name, g.value), ', ' ORDER BY g.who, g.name)
    FROM (
        SELECT
            coalesce('role ' || r.rolname, 'every role') AS who,
            split_part(c.setting, '=', 1) AS name,
            split_part(c.setting, '=', 2) AS value
        FROM pg_db_role_setting AS s
        CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)
        LEFT JOIN pg_roles AS r ON r.oid = s.setrole
        WHERE s.setdatabase IN (
                0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
            )
            AND (s.setrole = 0 OR has_function_privilege(s.setrole, 'pulse.tick()', 'EXECUTE'))
        UNION ALL
        SELECT 'the server', s.name, s.setting
        FROM pg_settings AS s
        WHERE s.source IN ('configuration file', 'command line')
    ) AS g
    WHERE g.name IN ('statement_timeout', 'transaction_timeout')
        AND g.value ~ '^[0-9.]+ *(us|ms|s|min|h|d)?$'
        AND CASE WHEN g.value ~ '[a-z]' THEN g.value ELSE g.value || 'ms' END::interval
        BETWEEN '1 microsecond' AND '5.9 seconds'
$$;

COMMENT ON FUNCTION pulse._short_timeouts() IS
'In words: who may call tick and has less than six seconds for it; NULL when nobody.';

-- One piece is done in any case, so it is smaller where there is little time: a tick that is
-- cancelled in it would be so every time.
CREATE FUNCTION pulse._upkeep_piece(budget interval DEFAULT pulse._upkeep_budget())
RETURNS integer
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(20, least(1000, 1000 * extract(epoch FROM _upkeep_piece.budget) / 0.3))::integer
$$;

COMMENT ON FUNCTION pulse._upkeep_piece(interval) IS
'How many rows a step of tick takes at a time.';

-- A time that is further off than any budget is one of before the clock was set back: what
-- a step does until then nobody would see, and nobody else do.
CREATE FUNCTION pulse._time_is_over(until timestamptz)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT n.now >= _time_is_over.until
        OR (_time_is_over.until < 'infinity' AND n.now < _time_is_over.until - interval '2 seconds')
    FROM (SELECT clock_timestamp() AS now) AS n
$$;

COMMENT ON FUNCTION pulse._time_is_over(timestamptz) IS
'Whether a step of tick that has until then has to stop, also because the clock stepped back.';
