-- Who may do what, on one page. PUBLIC has nothing; pulse creates no roles; each
-- level below is given to roles of the user's own with pulse.grant_access.

-- The least levels that an object asks for: operator has what viewer has, admin everything.
CREATE FUNCTION pulse_internal.access_levels()
RETURNS TABLE (access text, object text)
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.access, o.object
    FROM (
        VALUES
        (
            'producer',
            'my_access version verbs enqueue enqueue_one enqueue_many cancel cancel_where signal flow'
            ' jobs dependencies find_jobs running dead why node node_state node_of lease_node'
        ),
        (
            'worker',
            'my_access version verbs claim_batch exchange hello arm_bell disarm_bell heartbeat'
            ' complete complete_batch fail fail_batch snooze release ack_cancel'
            ' progress checkpoint upstream spawn save_step steps wait_for next_at tick'
            ' node node_state node_of lease_node'
        ),
        (
            'viewer',
            'my_access version verbs jobs dependencies find_jobs running dead lanes workers schedules schedule_runs'
            ' declarations'
            ' find_dead dead_groups counts failing_kinds kinds limits lane_defaults groups'
            ' stats counters counters_since gauges history histogram_bounds histogram_quantile samples audit'
            ' access why flow health pause_status watch_progress unwatch_progress'
            ' node node_state node_of lease_node'
        ),
        (
            'approver',
            'my_access version verbs approve approve_where reject reject_where signal'
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
    ) AS l (access, objects)
    CROSS JOIN LATERAL regexp_split_to_table(l.objects, ' ') AS o (object)
$$;

COMMENT ON FUNCTION pulse_internal.access_levels() IS
'The functions (all overloads) and views of the API, each with the least levels that may use it.';

CREATE FUNCTION pulse_internal.access_matrix()
RETURNS TABLE (access text, namespace text, object text)
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- operator includes viewer, admin includes everything.
    WITH includes (access, included) AS (
        SELECT l.access, l.access
        FROM pulse_internal.access_levels() AS l
        UNION
        SELECT 'operator', 'viewer'
        UNION
        SELECT 'admin', l.access
        FROM pulse_internal.access_levels() AS l
    ),

    allowed (access, object) AS (
        SELECT DISTINCT i.access, l.object
        FROM includes AS i
        INNER JOIN pulse_internal.access_levels() AS l ON l.access = i.included
    )

    SELECT a.access, 'pulse', a.object
    FROM allowed AS a
    UNION
    -- What these call with the rights of their caller or reader.
    SELECT a.access, 'pulse_internal', f.object
    FROM allowed AS a
    INNER JOIN (
        VALUES
        ('enqueue', 'request_form batch_form raise_replica'),
        -- Of each level the verb that signs; the others of the level need no more.
        ('cancel', 'sign signing_form raise_replica'),
        ('hello', 'sign signing_form raise_replica'),
        ('approve', 'sign signing_form raise_replica'),
        ('flow', 'flow_jobs flow_edges'),
        ('find_jobs', 'find_own find_filter find_floor texts'),
        ('why', 'reasons places upstream_reason'),
        ('reconcile', 'plan_declaration note_declaration unset_kind'),
        ('declarations', 'declared_facts'),
        ('lanes', 'find_all counted count_up_to groups_up_to oldest_ready_at'),
        ('kinds', 'ready_by_kind'),
        ('limits', 'limits')
    ) AS c (object, calls) ON c.object = a.object
    CROSS JOIN LATERAL regexp_split_to_table(c.calls, ' ') AS f (object)
$$;

COMMENT ON FUNCTION pulse_internal.access_matrix() IS
'The functions (all overloads) and views that each access level may use.';

CREATE FUNCTION pulse_internal.rights(role_oid oid)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH needed AS (
        SELECT DISTINCT
            m.namespace,
            m.object
        FROM pulse_internal.access_grant AS g
        INNER JOIN pulse_internal.role AS r ON r.role = g.role
        INNER JOIN pulse_internal.access_matrix() AS m ON m.access = g.access
        WHERE r.role_oid = rights.role_oid
    )

    SELECT format('USAGE ON SCHEMA %I', n.namespace)
    FROM needed AS n
    GROUP BY n.namespace
    UNION ALL
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure)
    FROM needed AS n
    INNER JOIN pg_proc AS p ON p.proname = n.object
    WHERE p.pronamespace = n.namespace::regnamespace
    UNION ALL
    SELECT
        format(
            '%s ON TABLE %s',
            CASE WHEN n.object LIKE '%\_form' THEN 'INSERT, SELECT' ELSE 'SELECT' END,
            c.oid::regclass
        )
    FROM needed AS n
    INNER JOIN pg_class AS c ON c.relname = n.object
    WHERE c.relnamespace = n.namespace::regnamespace
        AND c.relkind = 'v'
$$;

COMMENT ON FUNCTION pulse_internal.rights(oid) IS
'What a role needs with all the levels it was given, in the words of GRANT.';

-- A role that was dropped has no rights left; what it was given must not come back for
-- its namesake in a restored copy.
CREATE FUNCTION pulse_internal.forget_dropped_roles()
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    DELETE FROM pulse_internal.access_grant AS g
    WHERE g.role NOT IN (SELECT h.role FROM pulse_internal.roles_with_rights AS h)
$$;

COMMENT ON FUNCTION pulse_internal.forget_dropped_roles() IS
'Remove grants of roles that no longer have any right in the schema.';

CREATE FUNCTION pulse_internal.apply_grants(only_to name DEFAULT NULL)
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
        CROSS JOIN LATERAL pulse_internal.rights(r.oid) AS n (needs)
        WHERE r.rolname = coalesce(apply_grants.only_to, r.rolname)
    LOOP
        EXECUTE format('GRANT %s TO %I', v_grant.needs, v_grant.rolname);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.apply_grants(name) IS
'Make the rights of a role, or of every role in pulse.access, true again; an upgrade ends with it.';
