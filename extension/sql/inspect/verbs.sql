-- What each verb takes, who may call it and on what it acts. Names, types and defaults come
-- from the catalog, ranges from common/argument_ranges.sql, levels from access/levels.sql and
-- states from common/acts_on.sql: the places where the engine looks when it checks a call. The
-- signature of the caller (access/caller.sql) is left out by its type: no caller gives it.

CREATE FUNCTION pulse.verbs()
RETURNS TABLE (verb text, arguments jsonb, access text [], states text [])
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH limits AS MATERIALIZED (
        SELECT
            v.verb,
            a.argument,
            jsonb_object_agg(
                r.unit,
                CASE r.unit
                    WHEN 'choices' THEN to_jsonb(r.choices)
                    WHEN 'duration' THEN jsonb_build_object('min', r.lowest, 'max', r.highest)
                    ELSE jsonb_build_object('min', r.lowest::numeric, 'max', r.highest::numeric)
                END
            ) AS limits
        FROM (
            SELECT g.*
            FROM pulse_internal.argument_ranges() AS g
            UNION ALL
            -- A setting of the database decides.
            SELECT
                'enqueue enqueue_one schedule', 'payload', 'bytes', '0',
                pulse_internal.max_payload()::text, NULL
        ) AS r
        CROSS JOIN LATERAL string_to_table(r.verbs, ' ') AS v (verb)
        CROSS JOIN LATERAL string_to_table(r.arguments, ' ') AS a (argument)
        GROUP BY v.verb, a.argument
    ),

    arguments AS MATERIALIZED (
        SELECT
            p.oid,
            jsonb_agg(
                jsonb_strip_nulls(
                    jsonb_build_object(
                        'name', a.name,
                        'type', format_type(a.type, NULL),
                        'required', a.place <= p.pronargs - p.pronargdefaults,
                        'default', pg_get_function_arg_default(p.oid, a.place::integer),
                        'limits', l.limits
                    )
                )
                ORDER BY a.place
            ) AS arguments
        FROM pg_proc AS p
        -- Arguments that are not OUT come first and stand in proargtypes too.
        CROSS JOIN LATERAL unnest(
            p.proargnames[1:p.pronargs], p.proargtypes::oid []
        ) WITH ORDINALITY AS a (name, type, place)
        LEFT JOIN limits AS l ON l.argument = a.name AND l.verb IN (p.proname, '*')
        WHERE p.pronamespace = 'pulse'::regnamespace
            AND a.type <> 'pulse_internal.caller_signature'::regtype
        GROUP BY p.oid
    ),

    levels AS MATERIALIZED (
        SELECT
            l.object,
            array_agg(l.access ORDER BY c.place) AS access
        FROM pulse_internal.access_levels() AS l
        INNER JOIN unnest((pulse_internal.range_of('grant_access', 'access')).choices)
        WITH ORDINALITY AS c (access, place) ON c.access = l.access
        GROUP BY l.object
    )

    SELECT
        p.proname::text,
        coalesce(a.arguments, '[]'),
        l.access,
        pulse_internal.acts_on(regexp_replace(p.proname, '_where$', ''))
    FROM pg_proc AS p
    LEFT JOIN arguments AS a ON a.oid = p.oid
    LEFT JOIN levels AS l ON l.object = p.proname
    WHERE p.pronamespace = 'pulse'::regnamespace
    ORDER BY p.proname, p.pronargs
$$;

COMMENT ON FUNCTION pulse.verbs() IS
'Each function of the API with what the engine checks. arguments is a list of objects: name, type, required, default (an SQL expression) and limits, by unit: number, duration, characters, bytes, items, characters_each with min and max, or choices. access names the least levels that may call it: operator has what viewer has, admin everything. states are those of jobs on which it acts; NULL for one that acts on no job. Writes nothing.';
