-- Who may do what, on one page. PUBLIC has nothing; pulse creates no roles; each
-- level below is given to roles of the user's own with pulse.grant_access.

CREATE FUNCTION pulse._access_matrix()
RETURNS TABLE (access text, object text)
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH written (access, objects) AS (
        VALUES
        (
            'producer',
            'my_access enqueue enqueue_one enqueue_many cancel cancel_where signal flow'
            ' jobs dependencies find_jobs running dead why node node_state node_of lease_node'
        ),
        (
            'worker',
            'my_access claim_batch exchange hello arm_bell disarm_bell heartbeat'
            ' complete complete_batch fail fail_batch snooze release ack_cancel'
            ' progress checkpoint upstream spawn save_step steps wait_for next_at tick'
            ' node node_state node_of lease_node'
        ),
        (
            'viewer',
            'my_access jobs dependencies find_jobs running dead lanes workers schedules schedule_runs'
            ' declarations'
            ' find_dead dead_groups counts kinds limits lane_defaults groups'
            ' stats counters gauges history histogram_bounds histogram_quantile samples audit'
            ' access why flow health pause_status watch_progress unwatch_progress'
            ' node node_state node_of lease_node'
        ),
        (
            'approver',
            'my_access approve approve_where reject reject_where signal'
            ' jobs dependencies find_jobs why node node_state node_of lease_node'
        ),
        (
            'operator',
            'cancel cancel_where signal retry retry_where reprioritize reprioritize_where'
            ' move move_where delete_job discard_where approve approve_where reject reject_where'
            ' run_now run_now_where reschedule reschedule_where rerun rerun_where'
            ' set_lane set_kind set_group pause resume drain_lane pause_lane resume_lane'
            ' schedule unschedule pause_schedule resume_schedule run_schedule_now reconcile'
            ' tick reap check'
        ),
        (
            'admin',
            'prune start_watchdog stop_watchdog set_node grant_access revoke_access'
        )
    ),

    -- operator includes viewer, admin includes everything.
    includes (access, included) AS (
        SELECT w.access, w.access
        FROM written AS w
        UNION
        SELECT 'operator', 'viewer'
        UNION
        SELECT 'admin', w.access
        FROM written AS w
    ),

    allowed (access, object) AS (
        SELECT DISTINCT i.access, o.object
        FROM includes AS i
        INNER JOIN written AS w ON w.access = i.included
        CROSS JOIN LATERAL regexp_split_to_table(w.objects, ' ') AS o (object)
    )

    SELECT a.access, a.object
    FROM allowed AS a
    UNION
    SELECT i.access, 'version'
    FROM includes AS i
    UNION
    -- What these call with the rights of their caller or reader.
    SELECT a.access, f.object
    FROM allowed AS a
    INNER JOIN (
        VALUES
        ('enqueue', '_request_form _batch_form'),
        ('cancel', '_sign _signing_form'),
        ('hello', '_sign _signing_form'),
        ('flow', '_flow_jobs _flow_edges'),
        ('approve', '_sign _signing_form'),
        ('find_jobs', '_find_own _find_filter _find_floor _texts'),
        ('why', '_reasons _places _upstream_reason'),
        ('reconcile', '_plan_declaration _note_declaration _do_unset_kind'),
        ('declarations', '_declared_facts'),
        ('lanes', '_find_all _counted _oldest_ready_at'),
        ('limits', '_limits')
    ) AS c (object, calls) ON c.object = a.object
    CROSS JOIN LATERAL regexp_split_to_table(c.calls, ' ') AS f (object)
    UNION
    -- The form of a verb that takes the signature.
    SELECT a.access, '_do_' || a.object
    FROM allowed AS a
    WHERE a.object = ANY (
        string_to_array(
                'approve approve_where cancel cancel_where delete_job discard_where drain_lane'
                ' grant_access hello move move_where pause pause_schedule reject'
                ' reject_where reprioritize reprioritize_where rerun rerun_where reschedule'
                ' reschedule_where resume resume_lane resume_schedule retry retry_where'
                ' revoke_access run_now run_now_where run_schedule_now schedule set_kind'
                ' set_group set_lane set_node signal start_watchdog stop_watchdog unschedule',
            ' '
        )
    )
$$;

COMMENT ON FUNCTION pulse._access_matrix() IS
'The functions (all overloads) and views that each access level may use.';

CREATE FUNCTION pulse._rights(role_oid oid)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH needed AS (
        SELECT DISTINCT m.object
        FROM pulse.access_grant AS g
        INNER JOIN pulse.role AS r ON r.role = g.role
        INNER JOIN pulse._access_matrix() AS m ON m.access = g.access
        WHERE r.role_oid = _rights.role_oid
    )

    SELECT 'USAGE ON SCHEMA pulse'
    WHERE EXISTS (SELECT FROM needed)
    UNION ALL
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure)
    FROM needed AS n
    INNER JOIN pg_proc AS p ON p.proname = n.object
    WHERE p.pronamespace = 'pulse'::regnamespace
    UNION ALL
    SELECT
        format(
            '%s ON TABLE %s',
            CASE WHEN n.object LIKE '%\_form' THEN 'INSERT, SELECT' ELSE 'SELECT' END,
            c.oid::regclass
        )
    FROM needed AS n
    INNER JOIN pg_class AS c ON c.relname = n.object
    WHERE c.relnamespace = 'pulse'::regnamespace
        AND c.relkind = 'v'
$$;

COMMENT ON FUNCTION pulse._rights(oid) IS
'What a role needs with all the levels it was given, in the words of GRANT.';

-- A role that was dropped has no rights left; what it was given must not come back for
-- its namesake in a restored copy.
CREATE FUNCTION pulse._forget_dropped_roles()
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM pulse.access_grant AS g
    WHERE NOT EXISTS (
        SELECT
        FROM pg_namespace AS n
        CROSS JOIN LATERAL aclexplode(n.nspacl) AS a
        INNER JOIN pulse.role AS r ON r.role_oid = a.grantee
        WHERE n.nspname = 'pulse'
            AND r.role = g.role
    )
$$;

COMMENT ON FUNCTION pulse._forget_dropped_roles() IS
'Remove grants of roles that no longer have any right in the schema.';

CREATE FUNCTION pulse._apply_grants(only_to name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_grant record;
BEGIN
    FOR v_grant IN
        SELECT
            r.rolname,
            n.needs
        FROM pg_roles AS r
        CROSS JOIN LATERAL pulse._rights(r.oid) AS n (needs)
        WHERE r.rolname = coalesce(_apply_grants.only_to, r.rolname)
    LOOP
        EXECUTE format('GRANT %s TO %I', v_grant.needs, v_grant.rolname);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._apply_grants(name) IS
'Make the rights of a role, or of every role in pulse.access, true again; an upgrade ends with it.';

CREATE FUNCTION pulse._require_grantable(role name, access text)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_grantable.access IS NULL OR _require_grantable.access NOT IN (
        SELECT m.access
        FROM pulse._access_matrix() AS m
    ) THEN
        PERFORM pulse._raise(
            'PU009',
            format('%s is not an access level', quote_nullable(left(_require_grantable.access, 100))),
            'The levels are producer, worker, viewer, approver, operator and admin.',
            'See docs/access.md for what each may do.'
        );
    END IF;

    -- Its rights on its own objects are what every function of pulse runs with.
    IF _require_grantable.role = (
        SELECT pg_get_userbyid(n.nspowner)
        FROM pg_namespace AS n
        WHERE n.nspname = 'pulse'
    ) THEN
        PERFORM pulse._raise(
            'PU009',
            format('role %I owns pulse', _require_grantable.role),
            'The owner may do everything, and its rights stay as they are.',
            'Choose another role.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_grantable(name, text) IS
'Raise PU009 for an unknown level and for the owner of pulse.';

CREATE FUNCTION pulse.grant_access(role name, access text)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_grant_access(pulse._sign(), grant_access.role, grant_access.access)
$$;

COMMENT ON FUNCTION pulse.grant_access(name, text) IS
'Give a role what it needs as producer, worker, viewer, approver, operator (viewer included) or admin (everything); given again it changes nothing. PU009 unknown level, no such role, or the owner of pulse. Writes access_grant and audit_entry, and the rights themselves.';

CREATE FUNCTION pulse._do_grant_access(signature pulse._signature, role name, access text)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_grant_access.signature);
    v_role oid := pulse._role_oid(_do_grant_access.role);
BEGIN
    PERFORM pulse._require_grantable(_do_grant_access.role, _do_grant_access.access);

    -- No role can be called public: it would mean everybody.
    IF v_role IS NULL OR _do_grant_access.role = 'public' THEN
        PERFORM pulse._raise(
            'PU009',
            format('role %s does not exist', quote_nullable(_do_grant_access.role)),
            'Access is given to roles of your own, one by one; pulse creates none.',
            'CREATE ROLE first; names are case-sensitive here.'
        );
    END IF;

    -- Waits for another grant or revoke: what a role needs is read after it.
    LOCK TABLE pulse.access_grant IN SHARE ROW EXCLUSIVE MODE;
    PERFORM pulse._forget_dropped_roles();

    INSERT INTO pulse.access_grant (role, access, granted_by)
    SELECT
        pulse._role_number(_do_grant_access.role), _do_grant_access.access,
        pulse._role_name(v_who)
    WHERE NOT EXISTS (
        SELECT
        FROM pulse.access_grant AS g
        INNER JOIN pulse.role AS r ON r.role = g.role
        WHERE r.role_oid = v_role
            AND g.access = _do_grant_access.access
    );

    IF FOUND THEN
        PERFORM pulse._audit(
            v_who, 'grant_access', NULL, NULL, NULL,
            jsonb_build_object('role', _do_grant_access.role, 'access', _do_grant_access.access),
            NULL
        );
    END IF;

    PERFORM pulse._apply_grants(_do_grant_access.role);
END;
$$;

COMMENT ON FUNCTION pulse._do_grant_access(pulse._signature, name, text) IS
'grant_access for the role that signed. Writes the same.';

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

-- What PostgreSQL gives to everybody by default, taken back as the last thing.
REVOKE ALL ON SCHEMA pulse FROM PUBLIC;

REVOKE ALL ON ALL TABLES IN SCHEMA pulse FROM PUBLIC;

REVOKE ALL ON ALL SEQUENCES IN SCHEMA pulse FROM PUBLIC;

REVOKE ALL ON ALL ROUTINES IN SCHEMA pulse FROM PUBLIC;

-- There is no ALL TYPES; row types of tables and arrays follow what they belong to.
DO $$
DECLARE
    v_type regtype;
BEGIN
    FOR v_type IN
        SELECT t.oid
        FROM pg_catalog.pg_type AS t
        LEFT JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) t.typrelid
        WHERE t.typnamespace OPERATOR(pg_catalog.=) 'pulse'::regnamespace
            AND t.typelem OPERATOR(pg_catalog.=) 0
            AND (c.oid IS NULL OR c.relkind OPERATOR(pg_catalog.=) 'c')
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON TYPE %s FROM PUBLIC', v_type);
    END LOOP;
END;
$$;
