"""Values that a hostile producer or worker sends, one after the other.

Each is refused with a clean code, or kept; then workers of every sort have to take it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.chaos.faults import World
from tests.chaos.history import Recorder

MANY = 8
# A value from a table arrives compressed, below every limit.
HUGE = """
CREATE TABLE IF NOT EXISTS chaos.huge AS
SELECT to_jsonb(array_fill(repeat('x', 1000), ARRAY[80000])) AS value
"""
FROM_A_TABLE = "(SELECT h.value FROM chaos.huge AS h)"
PAYLOAD = "SELECT pulse.enqueue('noop', {}, lane => 'bulk')"
MANY_JOBS = "SELECT count(*) FROM pulse.enqueue_many('[{{{}}}]'::jsonb)"
JOB = '"kind": "noop", "lane": "bulk", "unique_key": '
KEY = "SELECT pulse.enqueue('noop', lane => 'bulk', unique_key => {})"


@dataclass(frozen=True)
class Value:
    sort: str
    query: str
    # Whether it has to be refused.
    refuse: bool = False


def nested(depth: int) -> str:
    return f"(repeat('[', {depth}) || repeat(']', {depth}))::jsonb"


PRODUCERS = [
    Value("a payload of 80 MB from a table", "SELECT pulse.enqueue('noop',"
          f" {FROM_A_TABLE})", True),
    Value("a list of 80 MB from a table", "SELECT pulse.enqueue_many('noop',"
          f" ARRAY[{FROM_A_TABLE}])", True),
    Value("a payload of 9 MB", PAYLOAD.format("to_jsonb(repeat('x', 9000000))"), True),
    Value("a payload of 2 MB", PAYLOAD.format("to_jsonb(repeat('x', 2000000))")),
    Value("a payload of 500 levels", PAYLOAD.format(nested(500))),
    Value("a payload of 5,000 levels", PAYLOAD.format(nested(5000))),
    Value("a payload of 1,000,000 levels", PAYLOAD.format(nested(1000000)), True),
    Value("a NUL in a value", PAYLOAD.format("""'{"a": "\\u0000"}'"""), True),
    Value("a NUL in a key", PAYLOAD.format("""'{"\\u0000": 1}'"""), True),
    Value("half a surrogate pair", PAYLOAD.format("""'{"a": "\\ud800"}'"""), True),
    Value("5,000 digits", PAYLOAD.format("repeat('9', 5000)::jsonb")),
    Value("a number beyond floats", PAYLOAD.format("'1e400'")),
    Value("a payload that is a number", PAYLOAD.format("'5'")),
    Value("a payload that is null", PAYLOAD.format("'null'")),
    Value("no payload", PAYLOAD.format("NULL")),
    Value("an empty key", KEY.format("''")),
    Value("a key of 1 MB", KEY.format("repeat('k', 1000000)")),
    Value("a key of control characters", KEY.format(r"E'\x01\n\t\x7f'")),
    *(
        Value(f"a key that is {odd}", MANY_JOBS.format(JOB + odd))
        for odd in ("5", "true", "null", "[]", "{}", "[[1], 2]")
    ),
    Value("a list that is nested", "SELECT pulse.enqueue_many('[[[]]]'::jsonb)", True),
    Value("tags of 1 MB", "SELECT pulse.enqueue('noop', lane => 'bulk',"
          " tags => ARRAY[repeat('t', 1000000), NULL])"),
    Value("a limit that the session raised", "SET pulse.max_payload = 1000000000;"
          + PAYLOAD.format("to_jsonb(repeat('x', 9000000))"), True),
]  # fmt: skip

# These need a lease. Each ends without a change, so the job can be completed after it.
WORKERS = [
    Value("a result of 2 MB", "SELECT pulse.complete({lease},"
          " to_jsonb(repeat('x', 2000000)))", True),
    Value("a result of 80 MB from a table", "SELECT pulse.complete({lease},"
          f" {FROM_A_TABLE})", True),
    Value("an error of 2 MB", "SELECT pulse.fail({lease}, repeat('x', 2000000))", True),
    Value("a checkpoint of 2 MB", "SELECT pulse.checkpoint({lease},"
          " to_jsonb(repeat('x', 2000000)))", True),
    Value("a checkpoint of 80 MB from a table", "SELECT pulse.checkpoint({lease},"
          f" {FROM_A_TABLE})", True),
    Value("a checkpoint of 5,000 levels", "SELECT pulse.checkpoint({lease}, "
          + nested(5000) + ")"),
    Value("a note of 1 MB", "SELECT pulse.progress({lease}, 0.5,"
          " repeat('x', 1000000))", True),
    Value("a progress that is no number", "SELECT pulse.progress({lease},"
          " 'NaN'::float8)", True),
    Value("a delay of 1,000 years", "SELECT pulse.snooze({lease}, '1000 years')", True),
]  # fmt: skip

OWN_JOB = "SELECT pulse.enqueue('noop', lane => 'hostile')"
OWN_LEASE = "SELECT lease, job_id FROM pulse.claim_batch('hostile', 'hostile', 1)"


def hostile_values(world: World, chance: random.Random) -> str:
    sent = 0
    world.tell(HUGE)
    for value in chance.sample(PRODUCERS + WORKERS, MANY):
        try:
            with world.cluster.connect() as connection:
                sent += send(world.note, connection, value)
        except psycopg.Error:
            # Another fault's doing; what was answered is noted.
            continue
    return f"{sent} values"


def send(note: Recorder, connection: psycopg.Connection[Any], value: Value) -> bool:
    if value not in WORKERS:
        return answered(note, connection, value, value.query)
    with connection.transaction():
        # Nobody else can claim it before.
        connection.execute(OWN_JOB)
        row = connection.execute(OWN_LEASE).fetchone()
    if row is None:
        return False
    lease, job = row
    done = answered(note, connection, value, value.query.format(lease=lease))
    connection.execute("SELECT pulse.complete(%s)", (lease,))
    note.verb_ack("complete", lease, job)
    return done


def answered(
    note: Recorder, connection: psycopg.Connection[Any], value: Value, query: str
) -> bool:
    """Send it and note the answer; False when there was none."""
    code, text = "", ""
    try:
        connection.execute(query.encode())
    except psycopg.Error as error:
        code, text = error.sqlstate or "", str(error).splitlines()[0]
        # The session or the server went away, or another fault held a lock.
        if code[:2] in ("", "08", "40", "53", "55", "57"):
            return False
        # The lease was lost meanwhile.
        if code == "PU101":
            return False
    note.note("hostile", sort=value.sort, code=code, error=text, refuse=value.refuse)
    return True
