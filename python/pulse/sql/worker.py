"""The statements of a worker: calls of pulse.* by named argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import LiteralString

EXCHANGE: Final = """
SELECT
    x.item, x.verdict, x.lane, x.lease, x.job_id, x.kind, x.payload, x.attempt,
    x.failures, x.max_attempts, x.priority, x.deadline, x.enqueued_at, x.checkpoint,
    x.group_key, x.headers, x.flow, x.name,
    date_part('epoch', x.lease_until - statement_timestamp())
FROM pulse.exchange(
    worker => %(worker)s,
    wants => CAST(%(wants)s AS jsonb),
    done => CAST(%(done)s AS jsonb),
    failed => CAST(%(failed)s AS jsonb),
    kinds => CAST(%(kinds)s AS text[]),
    lease_for => CAST(%(lease_for)s AS interval)
) AS x"""

COMPLETE: Final = (
    "SELECT pulse.complete(lease => %(lease)s, result => CAST(%(result)s AS jsonb))"
)

FAIL: Final = """
SELECT pulse.fail(
    lease => %(lease)s,
    error => %(error)s,
    retry_in => CAST(%(retry_in)s AS interval),
    fatal => %(fatal)s
)"""

SNOOZE: Final = (
    "SELECT pulse.snooze(lease => %(lease)s, delay => CAST(%(delay)s AS interval))"
)

ACK_CANCEL: Final = "SELECT pulse.ack_cancel(lease => %(lease)s)"

RELEASE: Final = """
SELECT r.lease, r.verdict
FROM pulse.release(leases => CAST(%(leases)s AS bigint[])) AS r"""

HEARTBEAT: Final = """
SELECT
    b.lease, b.verdict,
    date_part('epoch', b.lease_until - clock_timestamp())
FROM pulse.heartbeat(leases => CAST(%(leases)s AS bigint[])) AS b"""

PROGRESS: Final = (
    "SELECT pulse.progress("
    "lease => %(lease)s, fraction => %(fraction)s, note => %(note)s)"
)

CHECKPOINT: Final = (
    "SELECT pulse.checkpoint(lease => %(lease)s, data => CAST(%(data)s AS jsonb))"
)

UPSTREAM: Final = """
SELECT u.job_id, u.name, u.kind, u.state, u.result
FROM pulse.upstream(lease => %(lease)s) AS u"""

SPAWN: Final = """
SELECT s.job_id
FROM pulse.spawn(
    lease => %(lease)s, step => %(step)s, jobs => CAST(%(jobs)s AS jsonb)
) AS s (job_id)"""

SAVE_STEP: Final = """
SELECT pulse.save_step(
    lease => %(lease)s, step => %(step)s, result => CAST(%(result)s AS jsonb)
)"""

STEPS: Final = "SELECT s.step, s.result FROM pulse.steps(lease => %(lease)s) AS s"

WAIT_FOR: Final = """
SELECT w.verdict, w.payload
FROM pulse.wait_for(
    lease => %(lease)s,
    step => %(step)s,
    timeout => CAST(%(timeout)s AS interval),
    signal => %(signal)s
) AS w"""

# What a handler asks for through the worker, by name.
CALLS: Final[dict[str, LiteralString]] = {
    "checkpoint": CHECKPOINT,
    "upstream": UPSTREAM,
    "spawn": SPAWN,
    "save_step": SAVE_STEP,
    "steps": STEPS,
    "wait_for": WAIT_FOR,
}

HELLO: Final = """
SELECT h.lane, h.max_batch
FROM pulse.hello(
    worker => %(worker)s,
    lanes => CAST(%(lanes)s AS text[]),
    kinds => CAST(%(kinds)s AS text[])
) AS h"""

TICK: Final = "SELECT t.step, t.did, t.error FROM pulse.tick() AS t"

# Before TICK, in its transaction, since a pooler would keep them for others. Upkeep has
# a time budget of its own: a timeout meant for queries of people would undo all of it.
# A lock that is not given ends one of its steps only.
UPKEEP_SETTINGS: Final = """
SELECT
    set_config('statement_timeout', '0', true),
    set_config('lock_timeout', '5s', true),
    set_config('idle_in_transaction_session_timeout', '1min', true)"""

CAN_HAVE_WATCHDOG: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_available_extensions AS e WHERE e.name = 'pg_cron'
)"""

ARM_BELL: Final = "SELECT pulse.arm_bell(lane => %(lane)s)"
DISARM_BELL: Final = "SELECT pulse.disarm_bell(lane => %(lane)s)"

CHANNEL: Final = "pulse"

BACKEND_PID: Final = "SELECT pg_backend_pid()"

# Settings of a worker's session, each where the server has it.
SESSION_SETTINGS: Final = {
    "client_connection_check_interval": "2s",
    "default_transaction_isolation": "read committed",
    "TimeZone": "UTC",
    # Connections that rest and are needed again.
    "idle_session_timeout": "0",
}
SET: Final = "SELECT set_config(%(name)s, %(value)s, false)"

# What a worker calls, for the check at its start.
WORKER_FUNCTIONS: Final = (
    "exchange",
    "complete",
    "fail",
    "snooze",
    "release",
    "ack_cancel",
    "heartbeat",
    "progress",
    *CALLS,
    "hello",
    "tick",
    "arm_bell",
    "disarm_bell",
)

INSTALLED: Final = """
SELECT
    to_regnamespace('pulse') IS NOT NULL,
    array(
        SELECT f.name
        FROM unnest(CAST(%(functions)s AS text[])) AS f (name)
        WHERE NOT EXISTS (
            SELECT FROM pg_proc AS p
            WHERE p.pronamespace = to_regnamespace('pulse') AND p.proname = f.name
        )
    ),
    array(
        SELECT p.proname
        FROM pg_proc AS p
        WHERE p.pronamespace = to_regnamespace('pulse')
            AND p.proname = ANY (CAST(%(functions)s AS text[]))
            AND NOT (
                has_schema_privilege(p.pronamespace, 'USAGE')
                AND has_function_privilege(p.oid, 'EXECUTE')
            )
        ORDER BY p.proname
    ),
    current_user,
    current_database()"""

# For the test: every statement above that calls something.
STATEMENTS: Final = {
    "exchange": EXCHANGE,
    "complete": COMPLETE,
    "fail": FAIL,
    "snooze": SNOOZE,
    "ack_cancel": ACK_CANCEL,
    "release": RELEASE,
    "heartbeat": HEARTBEAT,
    "progress": PROGRESS,
    **CALLS,
    "hello": HELLO,
    "tick": TICK,
    "upkeep_settings": UPKEEP_SETTINGS,
    "can_have_watchdog": CAN_HAVE_WATCHDOG,
    "arm_bell": ARM_BELL,
    "disarm_bell": DISARM_BELL,
    "installed": INSTALLED,
}
