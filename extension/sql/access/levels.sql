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
            ' find_dead dead_groups counts failing_kinds kinds limits lane_defaults groups'
            ' stats counters counters_since gauges history histogram_bounds histogram_quantile samples audit'
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
        ('enqueue', '_request_form _batch_form _raise_replica'),
        ('cancel', '_sign _signing_form _raise_replica'),
        ('hello', '_sign _signing_form _raise_replica'),
        ('flow', '_flow_jobs _flow_edges'),
        ('approve', '_sign _signing_form _raise_replica'),
        ('find_jobs', '_find_own _find_filter _find_floor _texts'),
        ('why', '_reasons _places _upstream_reason'),
        ('reconcile', '_plan_declaration _note_declaration _do_unset_kind'),
        ('declarations', '_declared_facts'),
        ('lanes', '_find_all _counted _count_up_to _oldest_ready_at'),
        ('kinds', '_ready_by_kind'),
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
    WHERE g.role NOT IN (SELECT h.role FROM pulse._roles_with_rights AS h)
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
