-- Inside SECURITY DEFINER current_user is the owner; this is who really calls.
CREATE FUNCTION pulse._caller()
RETURNS name
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('role') = 'none' THEN
        RETURN session_user;
    END IF;
    RETURN current_setting('role');
END;
$$;

COMMENT ON FUNCTION pulse._caller() IS
'The role that called, also inside SECURITY DEFINER functions.';

-- The grant itself is the truth: who may read pulse.lanes sees every job.
CREATE FUNCTION pulse._sees_all()
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT has_table_privilege(pulse._caller(), 'pulse.lanes', 'SELECT')
$$;

COMMENT ON FUNCTION pulse._sees_all() IS
'Whether the caller may see the jobs of others.';

-- The grant itself is the truth: who may reprioritize is an operator.
CREATE FUNCTION pulse._operates()
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT has_function_privilege(
        pulse._caller(), 'pulse.reprioritize(bigint,integer,text)', 'EXECUTE'
    )
$$;

COMMENT ON FUNCTION pulse._operates() IS
'Whether the caller may act on the jobs of others.';

CREATE FUNCTION pulse._approves()
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
            AND p.proname = 'approve'
            AND has_function_privilege(pulse._caller(), p.oid, 'EXECUTE')
    )
$$;

COMMENT ON FUNCTION pulse._approves() IS
'Whether the caller may approve jobs, and so sees those that wait for it.';
