"""Every public function with arguments that nobody should pass, several at once.

tests/sql/hostile_arguments.sql tries one bad argument at a time, all of them; here
hypothesis combines them, with text that does not compress, JSON nested too deep, NUL,
and values of the wrong type. Each call is refused by a clean error or succeeds, and
afterwards every job still stands in its place. PULSE_FUZZ=5000 tries more, at random.
"""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Connection, Database

MORE = int(os.environ.get("PULSE_FUZZ", "0"))
# Errors of pulse that blame the caller or the world; data exceptions of PostgreSQL;
# what it does not support (arrays in arrays); JSON deeper than its stack.
CLEAN = re.compile(r"ok|PU[01]..|22...|0A000|54001")

# A job in every state, two of them running.
SEED = """
SELECT pulse.enqueue('k', lane => s.lane, delay => s.delay, unique_key => s.key,
    requires_approval => s.lane = 'asked')
FROM (VALUES ('asked', NULL, NULL), ('later', interval '1 h', 'x'), ('busy', NULL, 'x'),
    ('ready', NULL, 'y'), ('busy', NULL, NULL), ('dead', NULL, NULL),
    ('done', NULL, 'z')
) AS s (lane, delay, key);
SELECT pulse.fail(c.lease, fatal => true) FROM pulse.claim_batch('w', 'dead') AS c;
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'done') AS c;
SELECT count(*) FROM pulse.claim_batch('w', 'busy', 2);
SELECT pulse.enqueue_many('[{"kind": "k", "name": "a", "lane": "flow", "flow": "f"},
    {"kind": "k", "name": "b", "lane": "flow", "flow": "f", "after": ["a"]},
    {"kind": "k", "lane": "flow", "after": ["a", "b"], "after_failed": "run"},
    {"kind": "k", "name": "d", "lane": "nap"}]');
SELECT count(*) FROM pulse.claim_batch('w', 'flow');
SELECT pulse.wait_for(c.lease, 's', '1 day', 's')
FROM pulse.claim_batch('w', 'nap') AS c;
SELECT pulse.schedule('s', 'k', every => '1 hour');
SELECT pulse.pause('ann', lane => 'later');
"""
FUNCTIONS = """
SELECT p.oid::regprocedure::text, p.proname::text, coalesce(
    p.proargnames[1:p.pronargs], '{}'
), array(
    SELECT format_type(t.type, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY
    AS t (type, place) ORDER BY t.place
), p.pronargs - p.pronargdefaults
FROM pg_proc AS p
WHERE p.pronamespace = 'pulse'::regnamespace AND p.prokind = 'f'
ORDER BY 1
"""
SCATTERED = """
SELECT count(*) FROM pulse_internal.body AS b FULL JOIN (
    SELECT job FROM pulse_internal.approval UNION ALL SELECT job
        FROM pulse_internal.waiting
    UNION ALL SELECT job FROM pulse_internal.ready UNION ALL SELECT job
        FROM pulse_internal.lease
    UNION ALL SELECT job FROM pulse_internal.finished UNION ALL SELECT job
        FROM pulse_internal.blocked
) AS p ON p.job = b.job
GROUP BY coalesce(b.job, p.job)
HAVING count(b.job) <> 1 OR count(p.job) <> 1
"""

NOISE = "".join(
    random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000)
)
# Where a value of the seed is wanted: its number is known only when it is there.
REAL = {
    "<lease>": "SELECT min(lease)::text FROM pulse_internal.lease",
    "<leases>": "SELECT array_agg(lease)::text FROM pulse_internal.lease",
    "<ready>": "SELECT min(job)::text FROM pulse_internal.ready",
    "<dead>": "SELECT max(job)::text FROM pulse_internal.finished WHERE state = 'dead'",
    "<asked>": "SELECT max(job)::text FROM pulse_internal.approval",
    "<blocked>": "SELECT min(job)::text FROM pulse_internal.blocked",
    "<upstreams>": "SELECT array_agg(DISTINCT after)::text FROM "
    "pulse_internal.dependency",
}
DEEP = ("[" * 3000 + "]" * 3000, '{"a":' * 200_000 + "1" + "}" * 200_000)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=5,
).map(json.dumps)
KNOWN_JSON = (
    *('{"kind": "k"}', '[{"kind": "k"}]', '{"lane": "ready", "state": "ready"}'),
    *('{"ready": 1, "busy": -1}', '[{"lease": "1"}]', '{"kind": {}}', '"\\u0000"'),
    *("null", "[]", "{}", "-1e400", '{"x": NaN}', '{"flow": "f"}'),
    '[{"kind": "k", "name": "x"}, {"kind": "k", "after": ["x", "x"]}]',
    *(
        f"""[{{"kind": "k", "lane": "busy", "unique_key": "x", "payload": [1],
        "on_conflict": "{on_conflict}"}}, {{"kind": "k", "lane": "busy",
        "unique_key": "x", "payload": {{}}, "on_conflict": "{on_conflict}"}}]"""
        for on_conflict in ("follow", "cancel")
    ),
)


def some(*values: str) -> st.SearchStrategy[str | None]:
    return st.sampled_from((None, *values))


WORDS = (
    "k",
    "s",
    "w",
    "f",
    "run",
    "ready",
    "busy",
    "later",
    "ann",
    "drain",
    "viewer",
    "postgres",
)
NUMBERS = ("0", "1", "-1", "<ready>", "<dead>", "<asked>", "<lease>", "<blocked>")
ARRAYS = ("{}", "{NULL}", "{{1,2},{3,4}}", "[-5:-4]={1,2}")
# What no caller gives: one call in ten does, and is refused.
SIGNATURE = "pulse_internal.caller_signature"
VALUES: dict[str, st.SearchStrategy[str | None]] = {
    "text": some(
        *WORDS, "", " ", NOISE, "%s$1'\"\\;--", "a\0b", "* * * * *", "Infinity"
    )
    | st.text(max_size=20),
    "name": some("postgres", "public", "nobody", "", NOISE),
    "boolean": some("true", "false"),
    "integer": some(*NUMBERS, "2147483647", "-2147483648", "99999999999")
    | st.integers(-10, 10).map(str),
    "bigint": some(*NUMBERS, "9223372036854775807", "-9223372036854775808", "1e3"),
    "double precision": some(
        "0", "1", "NaN", "Infinity", "-Infinity", "1e308", "1e999"
    ),
    "interval": some("0", "1 us", "-1 us", "1 second", "1 hour", "178000000 years"),
    "timestamp with time zone": some(
        *("infinity", "-infinity", "4713-01-02 BC", "294276-12-31", "now", "tomorrow")
    ),
    "jsonb": some(*KNOWN_JSON, *DEEP, json.dumps(NOISE)) | NESTED,
    "text[]": some("{k}", "{a,b}", '{""}', *ARRAYS),
    "bigint[]": some(
        "<leases>", "<upstreams>", "{0,-1}", "{9223372036854775807}", *ARRAYS
    ),
    "jsonb[]": some("{1,2}", '{"{}"}', *ARRAYS),
    "interval[]": some("{1 s}", "{-1 s}", "{178000000 years}", "{}", "{NULL}"),
    "boolean[]": some("{t}", "{f,t}", "{}", "{NULL}"),
    SIGNATURE: some("00000000-0000-0000-0000-000000000000"),
}
# So that keys meet those of the seed.
NAMED = {
    "unique_key": some("x", "y", "z", "", NOISE),
    "on_conflict": some("skip", "replace", "error", "follow", "cancel", "no"),
}
ANYTHING = st.one_of(*VALUES.values())


@dataclass(frozen=True)
class Function:
    signature: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    required: int


def public(connection: Connection) -> list[Function]:
    rows = connection.execute(FUNCTIONS).fetchall()
    return [
        Function(signature, name, tuple(zip(names, types, strict=True)), required)
        for signature, name, names, types, required in rows
    ]


def call(connection: Connection, function: Function, data: st.DataObject) -> str:
    """One call with drawn arguments; returns its SQLSTATE and message, or ok."""
    given: list[str] = []
    values: list[str | None] = []
    for place, (name, kind) in enumerate(function.arguments):
        if place >= function.required and not data.draw(st.booleans()):
            continue
        if kind == SIGNATURE and data.draw(st.integers(0, 9)):
            continue
        wrong = data.draw(st.integers(0, 9)) == 0
        right = NAMED.get(name, VALUES[kind])
        value = data.draw(ANYTHING if wrong else right, label=name)
        if value in REAL:
            row = connection.execute(REAL[value].encode()).fetchone()
            value = row[0] if row else None
        given.append(f'"{name}" => %s::text::{kind}')
        values.append(value)
    statement = f"SELECT FROM pulse.{function.name}({', '.join(given)})"
    try:
        with connection.transaction():
            connection.execute(statement.encode(), values)
    except psycopg.Error as error:
        # psycopg refuses NUL itself: the protocol has no way to send it.
        state = error.sqlstate or ("22021" if "NUL" in str(error) else "none")
        return f"{state} {error}"
    return "ok"


@pytest.mark.filterwarnings("default")
def test_hostile_arguments_together_are_refused_cleanly(db: Database) -> None:
    connection = db.connect()
    connection.execute("SET statement_timeout = '60s'")
    functions = public(connection)
    assert {kind for f in functions for _, kind in f.arguments} <= VALUES.keys()
    for first in functions:
        fuzz(connection, first, functions)


def fuzz(connection: Connection, first: Function, functions: list[Function]) -> None:
    """One function, then two others on what it left behind; none of it stays."""

    @settings(
        max_examples=max(5, MORE // len(functions)),
        derandomize=not MORE,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(data=st.data())
    def calls(data: st.DataObject) -> None:
        others = st.sampled_from(functions)
        connection.execute("BEGIN")
        try:
            connection.execute(SEED)
            for function in (first, data.draw(others), data.draw(others)):
                answer = call(connection, function, data)
                assert CLEAN.match(answer), f"{function.signature}: {answer}"
                assert connection.execute(SCATTERED).fetchall() == []
            problems: list[Any] = connection.execute(
                "SELECT * FROM pulse.check()"
            ).fetchall()
            assert problems == []
        finally:
            connection.execute("ROLLBACK")

    calls()
