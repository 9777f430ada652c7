"""What the catalog says about pulse, as lines of text that can be compared."""

from __future__ import annotations

from typing import Any

import psycopg

QUERIES = {
    "column": """
        SELECT c.relkind, c.oid::regclass, a.attnum - gone.before
            AS position, a.attname,
            format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid),
            col_description(c.oid, a.attnum)
        FROM pg_class AS c
        INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
        CROSS JOIN LATERAL (
            SELECT count(*) AS before FROM pg_attribute AS x
            WHERE x.attrelid = c.oid AND x.attisdropped AND x.attnum < a.attnum
        ) AS gone
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
            AND c.relkind IN ('r', 'v', 'c') AND a.attnum > 0 AND NOT a.attisdropped
    """,
    "relation": """
        SELECT c.relkind, c.oid::regclass, c.reloptions, obj_description(c.oid,
            'pg_class'),
            c.relowner = n.nspowner
        FROM pg_class AS c
        INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE n.nspname IN ('pulse', 'pulse_internal')
    """,
    "sequence": """
        SELECT s.seqrelid::regclass, s.seqtypid::regtype, s.seqstart, s.seqincrement,
            s.seqmin, s.seqmax, s.seqcache, s.seqcycle
        FROM pg_sequence AS s
        INNER JOIN pg_class AS c ON s.seqrelid = c.oid
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
    """,
    "index": """
        SELECT pg_get_indexdef(i.indexrelid), i.indisvalid
        FROM pg_index AS i
        INNER JOIN pg_class AS c ON i.indexrelid = c.oid
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
    """,
    "constraint": """
        SELECT k.conrelid::regclass, k.conname, pg_get_constraintdef(k.oid),
            k.convalidated
        FROM pg_constraint AS k
        WHERE k.connamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
    """,
    "trigger": """
        SELECT pg_get_triggerdef(t.oid)
        FROM pg_trigger AS t
        INNER JOIN pg_class AS c ON t.tgrelid = c.oid
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
            AND NOT t.tgisinternal
    """,
    "type": """
        SELECT t.oid::regtype, t.typtype, obj_description(t.oid, 'pg_type'),
            (SELECT array_agg(e.enumlabel ORDER BY e.enumsortorder)
             FROM pg_enum AS e WHERE e.enumtypid = t.oid)
        FROM pg_type AS t
        WHERE t.typnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
            AND t.typelem = 0
    """,
    "function": """
        SELECT p.pronamespace::regnamespace, p.proname, p.prokind,
            pg_get_function_arguments(p.oid),
            pg_get_function_result(p.oid), l.lanname, p.provolatile, p.proisstrict,
            p.proparallel, p.prosecdef, p.proconfig, p.procost, p.prorows,
            obj_description(p.oid, 'pg_proc'), p.prosrc
        FROM pg_proc AS p
        INNER JOIN pg_language AS l ON p.prolang = l.oid
        WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
    """,
    "view": """
        SELECT c.oid::regclass, pg_get_viewdef(c.oid)
        FROM pg_class AS c
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
            AND c.relkind = 'v'
    """,
    "right": """
        WITH owned AS (
            SELECT 'function' AS class, p.oid::regprocedure::text AS name,
                p.proowner AS owner,
                coalesce(p.proacl, acldefault('f', p.proowner)) AS acl
            FROM pg_proc AS p
            WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
            UNION ALL
            SELECT 'relation', c.oid::regclass::text, c.relowner,
                coalesce(
                    c.relacl,
                    acldefault(
                        CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char",
                        c.relowner
                    )
                )
            FROM pg_class AS c
            WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
                AND c.relkind IN ('r', 'v', 'S')
            UNION ALL
            SELECT 'type', t.oid::regtype::text, t.typowner,
                coalesce(t.typacl, acldefault('T', t.typowner))
            FROM pg_type AS t
            LEFT JOIN pg_class AS c ON t.typrelid = c.oid
            WHERE t.typnamespace = ANY ('{pulse,pulse_internal}'::regnamespace[])
                AND t.typelem = 0
                AND (c.oid IS NULL OR c.relkind = 'c')
            UNION ALL
            SELECT 'schema', n.nspname::text, n.nspowner,
                coalesce(n.nspacl, acldefault('n', n.nspowner))
            FROM pg_namespace AS n WHERE n.nspname IN ('pulse', 'pulse_internal')
        )
        SELECT o.class, o.name, a.grantee::regrole, a.privilege_type, a.is_grantable
        FROM owned AS o
        CROSS JOIN LATERAL aclexplode(o.acl) AS a
        WHERE a.grantee <> o.owner
    """,
}

DUMPED = """
    SELECT x.relation::regclass, x.condition
    FROM pg_extension AS e
    CROSS JOIN LATERAL unnest(e.extconfig, e.extcondition) AS x (relation, condition)
    WHERE e.extname = 'pulse'
"""

MEMBERS = """
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
    FROM pg_depend AS d
    INNER JOIN pg_extension AS e ON d.refobjid = e.oid
    WHERE e.extname = 'pulse' AND d.refclassid = 'pg_extension'::regclass
        AND d.deptype = 'e'
"""


def facts(connection: psycopg.Connection[Any], packaged: bool) -> list[str]:
    """Sorted lines; packaged adds what only an extension has."""
    queries = dict(QUERIES)
    if packaged:
        queries |= {"dumped": DUMPED, "member": MEMBERS}
    # Comparing needs names in full, whatever the role has in its search_path.
    connection.execute("SET search_path = pg_catalog")
    lines = []
    for topic, query in queries.items():
        for row in connection.execute(query):
            lines.append(f"{topic}: " + " | ".join(str(value) for value in row))
    return sorted(lines)


def difference(before: list[str], after: list[str]) -> list[str]:
    """What only one of two databases has, marked - and +; empty when they are equal."""
    return [f"- {line}" for line in before if line not in set(after)] + [
        f"+ {line}" for line in after if line not in set(before)
    ]
