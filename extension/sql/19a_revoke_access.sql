CREATE FUNCTION pulse.revoke_access(role name, access text)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_revoke_access(pulse._sign(), revoke_access.role, revoke_access.access)
$$;

COMMENT ON FUNCTION pulse.revoke_access(name, text) IS
'Take back what grant_access gave, except what another level of the role still needs; also for a role that was dropped since. PU009 unknown level, or the role was not given it. Writes access_grant and audit_entry, and the rights themselves.';

CREATE FUNCTION pulse._do_revoke_access(signature pulse._signature, role name, access text)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_revoke_access.signature);
    v_role oid := pulse._role_oid(_do_revoke_access.role);
    v_before text [];
    v_right text;
BEGIN
    PERFORM pulse._require_grantable(_do_revoke_access.role, _do_revoke_access.access);

    -- Waits for another grant or revoke: what a role needs is read after it.
    LOCK TABLE pulse.access_grant IN SHARE ROW EXCLUSIVE MODE;

    v_before := array(SELECT pulse._rights(v_role));

    DELETE FROM pulse.access_grant AS g
    WHERE g.role = ANY (pulse._roles_named(ARRAY[_do_revoke_access.role::text]))
        AND g.access = _do_revoke_access.access;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU009',
            format(
                'role %s was not given %s',
                quote_nullable(_do_revoke_access.role), _do_revoke_access.access
            ),
            'Rights that were given by hand are taken back by hand.',
            'SELECT * FROM pulse.access lists who was given what.'
        );
    END IF;

    -- A role that was dropped has no rights left to take back.
    IF v_role IS NOT NULL THEN
        FOR v_right IN
            SELECT unnest(v_before)
            EXCEPT
            SELECT pulse._rights(v_role)
        LOOP
            EXECUTE format('REVOKE %s FROM %I', v_right, _do_revoke_access.role);
        END LOOP;
    END IF;

    PERFORM pulse._audit(
        v_who, 'revoke_access', NULL, NULL,
        jsonb_build_object('role', _do_revoke_access.role, 'access', _do_revoke_access.access),
        NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse._do_revoke_access(pulse._signature, name, text) IS
'revoke_access for the role that signed. Writes the same.';
