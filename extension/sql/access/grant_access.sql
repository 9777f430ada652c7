-- grant_access and revoke_access give an access level to a role of the user's own, and
-- take it back. What each level may do is in access/levels.sql. Both write access_grant
-- and audit_entry and then make the rights of the role true by GRANT or REVOKE. They lock
-- access_grant against each other, and read what a role needs after that. They must not
-- change the rights of the owner of pulse: every function of pulse runs with them.

CREATE FUNCTION pulse.grant_access(
    role name,
    access text,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(grant_access.signature);
    v_role oid := pulse_internal.role_oid(grant_access.role);
BEGIN
    PERFORM pulse_internal.require_grantable(grant_access.role, grant_access.access);

    -- No role can be called public: it would mean every role.
    IF v_role IS NULL OR grant_access.role = 'public' THEN
        PERFORM pulse_internal.raise(
            'PU009',
            format('role %s does not exist', quote_nullable(grant_access.role)),
            'Access is given to roles of your own, one by one; pulse creates none.',
            'CREATE ROLE first; names are case-sensitive here.'
        );
    END IF;

    -- Waits for another grant or revoke: what a role needs is read after it.
    LOCK TABLE pulse_internal.access_grant IN SHARE ROW EXCLUSIVE MODE;
    PERFORM pulse_internal.forget_dropped_roles();

    INSERT INTO pulse_internal.access_grant (role, access, granted_by)
    SELECT
        pulse_internal.role_number(grant_access.role), grant_access.access,
        pulse_internal.role_name(v_who)
    WHERE NOT EXISTS (
        SELECT
        FROM pulse_internal.access_grant AS g
        INNER JOIN pulse_internal.role AS r ON r.role = g.role
        WHERE r.role_oid = v_role
            AND g.access = grant_access.access
    );

    IF FOUND THEN
        PERFORM pulse_internal.audit(
            v_who, 'grant_access', NULL, NULL, NULL,
            jsonb_build_object('role', grant_access.role, 'access', grant_access.access),
            NULL
        );
    END IF;

    PERFORM pulse_internal.apply_grants(grant_access.role);
END;
$$;

COMMENT ON FUNCTION pulse.grant_access(name, text, pulse_internal.caller_signature) IS
'Give a role what it needs as producer, worker, viewer, approver, operator (viewer included) or admin (everything); given again it changes nothing. PU009 unknown level, no such role, or the owner of pulse. Writes access_grant and audit_entry, and the rights themselves.';

CREATE FUNCTION pulse_internal.require_grantable(role name, access text)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (
        require_grantable.access
        = ANY ((pulse_internal.range_of('grant_access', 'access')).choices)
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.raise(
            'PU009',
            format('%s is not an access level', quote_nullable(left(require_grantable.access, 100))),
            format(
                'The levels are %s.',
                array_to_string(
                    (pulse_internal.range_of('grant_access', 'access')).choices, ', '
                )
            ),
            'See docs/access.md for what each may do.'
        );
    END IF;

    -- Its rights on its own objects are what every function of pulse runs with.
    IF require_grantable.role = (
        SELECT pg_get_userbyid(n.nspowner)
        FROM pg_namespace AS n
        WHERE n.nspname = 'pulse'
    ) THEN
        PERFORM pulse_internal.raise(
            'PU009',
            format('role %I owns pulse', require_grantable.role),
            'The owner may do everything, and its rights stay as they are.',
            'Choose another role.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_grantable(name, text) IS
'Raise PU009 for an unknown level and for the owner of pulse.';

CREATE FUNCTION pulse.revoke_access(
    role name,
    access text,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(revoke_access.signature);
    v_role oid := pulse_internal.role_oid(revoke_access.role);
    v_before text [];
    v_right text;
BEGIN
    PERFORM pulse_internal.require_grantable(revoke_access.role, revoke_access.access);

    -- Waits for another grant or revoke: what a role needs is read after it.
    LOCK TABLE pulse_internal.access_grant IN SHARE ROW EXCLUSIVE MODE;

    v_before := array(SELECT pulse_internal.rights(v_role));

    DELETE FROM pulse_internal.access_grant AS g
    WHERE g.role = ANY (pulse_internal.roles_named(ARRAY[revoke_access.role::text]))
        AND g.access = revoke_access.access;

    IF NOT FOUND THEN
        PERFORM pulse_internal.raise(
            'PU009',
            format(
                'role %s was not given %s',
                quote_nullable(revoke_access.role), revoke_access.access
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
            SELECT pulse_internal.rights(v_role)
        LOOP
            EXECUTE format('REVOKE %s FROM %I', v_right, revoke_access.role);
        END LOOP;
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'revoke_access', NULL, NULL,
        jsonb_build_object('role', revoke_access.role, 'access', revoke_access.access),
        NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse.revoke_access(name, text, pulse_internal.caller_signature) IS
'Take back what grant_access gave, except what another level of the role still needs; also for a role that was dropped since. PU009 unknown level, or the role was not given it. Writes access_grant and audit_entry, and the rights themselves.';
