-- Settings and schedules beside the code: an application says at its start all that it
-- wants, and one transaction makes it so. It owns what it has declared: only that is
-- changed or removed. What an operator changed since stays as the operator left it, and
-- shows as drift. reconcile itself has the rights of its caller: it calls set_kind,
-- schedule and unschedule, which PostgreSQL allows or not, and which write the audit.

CREATE FUNCTION pulse.reconcile(
    application text,
    kinds jsonb DEFAULT '{}',
    schedules jsonb DEFAULT '{}',
    overwrite boolean DEFAULT false
)
RETURNS TABLE (item text, name text, verdict text, detail text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_reason text := format('declared by %s', reconcile.application);
    v_step record;
BEGIN
    FOR v_step IN
        SELECT p.*
        FROM pulse_internal.plan_declaration(
            reconcile.application, reconcile.kinds, reconcile.schedules,
            coalesce(reconcile.overwrite, false)
        ) AS p
        ORDER BY p.item, p.name
    LOOP
        IF v_step.item = 'kind' AND v_step.gone <> '{}' THEN
            PERFORM pulse_internal.unset_kind(v_step.name, v_step.gone, v_reason);
        END IF;

        IF v_step.verdict IN ('created', 'changed') AND v_step.item = 'kind' THEN
            PERFORM pulse.set_kind(
                v_step.name, r.lane, r.priority, r.max_attempts, r.backoff, r.backoff_base,
                r.backoff_cap, r.backoff_jitter, r.lease_for, r.max_runtime,
                r.requires_approval, r.approval_expiry, v_reason, r.max_delay, r.rate,
                r.rate_per
            )
            FROM jsonb_to_record(v_step.declared) AS r (
                lane text, priority integer, max_attempts integer, backoff text,
                backoff_base interval, backoff_cap interval,
                backoff_jitter double precision, lease_for interval,
                max_runtime interval, requires_approval boolean, approval_expiry interval,
                max_delay interval, rate integer, rate_per interval
            );
        ELSIF v_step.verdict IN ('created', 'changed') THEN
            PERFORM pulse.schedule(
                v_step.name, r.kind, r.payload, r.cron, r.every, r.at,
                coalesce(r.timezone, 'UTC'), r.lane, r.priority,
                coalesce(r.catch_up, 'skip'), coalesce(r.catch_up_window, '1 day'),
                r.max_attempts, r.unique_key, r.unique_for, r.group_key,
                r.requires_approval, r.tags, r.max_runtime, r.headers, r.expires_in
            )
            FROM jsonb_to_record(v_step.declared) AS r (
                kind text, payload jsonb, cron text, every interval, at timestamptz,
                timezone text, lane text, priority integer, catch_up text,
                catch_up_window interval, max_attempts integer, unique_key text,
                unique_for interval, group_key text, requires_approval boolean,
                tags text [], max_runtime interval, headers jsonb, expires_in interval
            );
        ELSIF v_step.verdict = 'removed' AND v_step.item = 'schedule' THEN
            PERFORM pulse.unschedule(v_step.name);
        END IF;

        PERFORM pulse_internal.note_declaration(
            reconcile.application, v_step.item, v_step.name, v_step.declared, v_step.verdict
        );
        item := v_step.item;
        name := v_step.name;
        verdict := v_step.verdict;
        detail := v_step.detail;
        RETURN NEXT;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse.reconcile(text, jsonb, jsonb, boolean) IS
'Make the settings of kinds ({kind: {argument of set_kind: value}}) and the schedules ({name: {argument of schedule: value}}) of an application what it declares, in this transaction. What the application declared before and does not now is removed. What another role changed since, or made first, stays as it is, unless overwrite says otherwise. A row for each: created, changed, unchanged, removed, drift (an operator''s change stays) or taken (another application declares it), and why. PU001 above READ COMMITTED, PU002 bad argument or an unknown setting; errors of set_kind and schedule. Writes declaration and what set_kind, schedule and unschedule write.';

-- One declaration of an application at a time: what it reads must still hold when it is
-- written. gone lists settings that the kind had from the last one.
CREATE FUNCTION pulse_internal.plan_declaration(
    application text, kinds jsonb, schedules jsonb, overwrite boolean
)
RETURNS TABLE (
    item text, name text, declared jsonb, verdict text, detail text, gone text []
)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_names text [];
BEGIN
    PERFORM pulse_internal.require_read_committed('reconcile');
    PERFORM pulse_internal.require_name('application', plan_declaration.application);
    PERFORM pulse_internal.require_declared(
        'kinds', plan_declaration.kinds,
        '{lane,priority,max_attempts,backoff,backoff_base,backoff_cap,backoff_jitter,lease_for,max_runtime,requires_approval,approval_expiry,max_delay,rate,rate_per}'
    );
    PERFORM pulse_internal.require_declared(
        'schedules', plan_declaration.schedules,
        '{kind,payload,cron,every,at,timezone,lane,priority,catch_up,catch_up_window,max_attempts,unique_key,unique_for,group_key,requires_approval,tags,max_runtime,headers,expires_in}'
    );
    -- Waits for another declaration, which takes as long as its few statements.
    LOCK TABLE pulse_internal.declaration IN SHARE ROW EXCLUSIVE MODE;

    v_names := array(
        SELECT j.name
        FROM pulse_internal.judge_declaration(
            plan_declaration.application, plan_declaration.kinds,
            plan_declaration.schedules, plan_declaration.overwrite
        ) AS j
        WHERE j.verdict IN ('created', 'changed', 'removed')
    );
    -- Waits for whoever is just changing them by hand; a later statement sees how.
    IF v_names <> '{}' THEN
        LOCK TABLE pulse_internal.kind IN SHARE ROW EXCLUSIVE MODE;
        PERFORM
        FROM pulse_internal.schedule AS s
        WHERE s.name = ANY (v_names)
        ORDER BY s.name
        FOR UPDATE;
    END IF;

    RETURN QUERY
    SELECT j.*
    FROM pulse_internal.judge_declaration(
        plan_declaration.application, plan_declaration.kinds,
        plan_declaration.schedules, plan_declaration.overwrite
    ) AS j;
END;
$$;

COMMENT ON FUNCTION pulse_internal.plan_declaration(text, jsonb, jsonb, boolean) IS
'What reconcile has to do to each kind and schedule, and why it leaves some alone; these stay as they are until it has done so. Writes nothing.';

CREATE FUNCTION pulse_internal.judge_declaration(
    application text, kinds jsonb, schedules jsonb, overwrite boolean
)
RETURNS TABLE (
    item text, name text, declared jsonb, verdict text, detail text, gone text []
)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH wanted AS (
        SELECT 'kind' AS item, k.key AS name, k.value AS declared
        FROM jsonb_each(judge_declaration.kinds) AS k
        UNION ALL
        SELECT 'schedule', s.key, s.value
        FROM jsonb_each(judge_declaration.schedules) AS s
    ),

    -- Once for each: inlined, facts would be made anew wherever they are named.
    compared AS MATERIALIZED (
        SELECT
            coalesce(w.item, o.item) AS item,
            coalesce(w.name, o.name) AS name,
            w.declared,
            o.application,
            o.declared AS was_declared,
            o.applied,
            pulse_internal.declared_facts(
                coalesce(w.item, o.item), coalesce(w.name, o.name)
            ) AS facts
        FROM wanted AS w
        FULL JOIN pulse_internal.declaration AS o ON o.item = w.item AND o.name = w.name
        WHERE w.name IS NOT NULL OR o.application = judge_declaration.application
    ),

    judged AS MATERIALIZED (
        SELECT
            c.*,
            -- Settings of the kind that were not declared are nobody's concern here.
            CASE
                WHEN c.applied IS NULL THEN c.facts IS NOT NULL AND (
                    c.item = 'schedule'
                    OR EXISTS (
                        SELECT FROM jsonb_object_keys(c.declared) AS k (key)
                        WHERE c.facts ? k.key
                    )
                )
                ELSE c.facts IS NULL OR EXISTS (
                    SELECT FROM jsonb_each(c.applied) AS a
                    WHERE a.value IS DISTINCT FROM c.facts -> a.key
                )
            END AS drifts
        FROM compared AS c
    )

    SELECT
        j.item,
        j.name,
        j.declared,
        CASE
            WHEN j.application <> judge_declaration.application THEN 'taken'
            WHEN j.declared IS NULL AND (j.drifts OR j.applied IS NULL) THEN 'drift'
            WHEN j.declared IS NULL THEN 'removed'
            WHEN j.drifts AND NOT judge_declaration.overwrite THEN 'drift'
            WHEN j.facts IS NULL OR j.applied IS NULL THEN 'created'
            WHEN j.drifts OR j.declared <> j.was_declared THEN 'changed'
            ELSE 'unchanged'
        END,
        CASE
            WHEN j.application <> judge_declaration.application
                THEN format('application %s declares it', j.application)
            WHEN j.drifts AND j.facts IS NULL THEN 'it was removed by hand'
            WHEN j.drifts AND j.applied IS NULL THEN format('it was made by hand: %s', j.facts)
            WHEN j.drifts THEN format('it was changed by hand to %s', j.facts)
        END,
        CASE
            WHEN j.item = 'schedule' OR j.application <> judge_declaration.application
                OR j.applied IS NULL OR (j.drifts AND NOT judge_declaration.overwrite)
                THEN ARRAY[]::text []
            ELSE array(
                SELECT k.key
                FROM jsonb_object_keys(j.applied) AS k (key)
                WHERE NOT coalesce(j.declared ? k.key, false)
            )
        END
    FROM judged AS j
$$;

COMMENT ON FUNCTION pulse_internal.judge_declaration(text, jsonb, jsonb, boolean) IS
'What reconcile has to do to each kind and schedule by how they read now.';

CREATE FUNCTION pulse_internal.note_declaration(
    application text, item text, name text, declared jsonb, verdict text
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF note_declaration.verdict IN ('created', 'changed', 'removed')
        OR note_declaration.declared IS NULL
    THEN
        DELETE FROM pulse_internal.declaration AS d
        WHERE d.item = note_declaration.item
            AND d.name = note_declaration.name
            AND d.application = note_declaration.application;
    END IF;

    IF note_declaration.verdict IN ('created', 'changed') THEN
        INSERT INTO pulse_internal.declaration (item, name, application, declared, applied)
        SELECT
            note_declaration.item, note_declaration.name, note_declaration.application,
            note_declaration.declared,
            -- Of a kind only what was declared.
            jsonb_object_agg(f.key, f.value)
            FILTER (WHERE note_declaration.item = 'schedule' OR note_declaration.declared ? f.key)
        FROM jsonb_each(
            pulse_internal.declared_facts(note_declaration.item, note_declaration.name)
        ) AS f;
    ELSIF note_declaration.verdict = 'drift' AND note_declaration.declared IS NOT NULL THEN
        INSERT INTO pulse_internal.declaration (item, name, application, declared)
        VALUES (
            note_declaration.item, note_declaration.name, note_declaration.application,
            note_declaration.declared
        )
        ON CONFLICT ON CONSTRAINT declaration_has_one_owner DO NOTHING;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_declaration(text, text, text, jsonb, text) IS
'Remember what an application declared and how it reads now. Writes declaration.';

-- Compared with what another session wrote down: the same words in all of them.
CREATE FUNCTION pulse_internal.declared_facts(item text, name text)
RETURNS jsonb
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $$
    SELECT jsonb_strip_nulls(to_jsonb(k) - 'kind')
    FROM pulse_internal.kind AS k
    WHERE declared_facts.item = 'kind'
        AND k.kind = declared_facts.name
    UNION ALL
    SELECT (pulse_internal.schedule_facts(s) - '{name,paused_by}'::text [])
        || jsonb_build_object('payload', s.payload)
    FROM pulse_internal.schedule AS s
    WHERE declared_facts.item = 'schedule'
        AND s.name = declared_facts.name
$$;

COMMENT ON FUNCTION pulse_internal.declared_facts(text, text) IS
'How a kind or schedule reads now, in the words of its verbs; no row when there is none.';

CREATE FUNCTION pulse_internal.require_declared(argument text, value jsonb, known text [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_wrong record;
BEGIN
    PERFORM pulse_internal.require_json(
        require_declared.argument, require_declared.value, 'object', '{"name": {}}'
    );
    SELECT d.key AS name, o.key INTO v_wrong
    FROM jsonb_each(require_declared.value) AS d
    LEFT JOIN LATERAL jsonb_object_keys(
        CASE WHEN jsonb_typeof(d.value) = 'object' THEN d.value ELSE '{}' END
    ) AS o (key) ON true
    WHERE jsonb_typeof(d.value) <> 'object'
        OR NOT coalesce(o.key = ANY (require_declared.known), true)
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s declares %L with %s', require_declared.argument, v_wrong.name,
                coalesce(quote_literal(v_wrong.key), 'no object')
            ),
            format('It can have %s.', array_to_string(require_declared.known, ', ')),
            'Pass {name: {setting: value}}.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_declared(text, jsonb, text []) IS
'Raise PU002 unless these are declarations with settings of these names.';
