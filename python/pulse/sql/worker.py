"""The statements of a worker: calls of pulse.* by named argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulse.sql.idle import IDLE_LIMIT, UNREAD_LIMIT

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# A lock that another session keeps on one job must not hold up other jobs:
# the worker comes back to it. An argument is taken from here, so the call comes after.
WITHIN: Final = """
FROM (
    SELECT
        set_config('lock_timeout', '{patience}', true),
        CAST(%({argument})s AS {type}) AS {argument}
    OFFSET 0
) AS p"""
ONE_LEASE: Final = WITHIN.format(patience="100ms", argument="lease", type="bigint")

PATIENCE: Final = "SELECT current_setting('lock_timeout')"
SET_PATIENCE: Final = "SELECT set_config('lock_timeout', %s, true)"

EXCHANGE: Final = f"""
SELECT
    x.item, x.verdict, date_part('epoch', x.lease_until - statement_timestamp()),
    x.lease, x.job_id, x.lane, x.kind, x.payload, x.attempt, x.failures,
    x.max_attempts, x.priority, x.deadline, x.enqueued_at, x.checkpoint, x.group_key,
    x.headers, x.flow, x.name
{WITHIN.format(patience="500ms", argument="worker", type="text")}
CROSS JOIN LATERAL pulse.exchange(
    worker => p.worker,
    wants => CAST(%(wants)s AS jsonb),
    completed => CAST(%(completed)s AS bigint[]),
    done => CAST(%(done)s AS jsonb),
    failed => CAST(%(failed)s AS jsonb),
    kinds => CAST(%(kinds)s AS text[]),
    lease_for => CAST(%(lease_for)s AS interval)
) AS x"""

COMPLETE: Final = f"""
SELECT pulse.complete(lease => p.lease, result => CAST(%(result)s AS jsonb))
{ONE_LEASE}"""

FAIL: Final = f"""
SELECT pulse.fail(
    lease => p.lease,
    error => %(error)s,
    retry_in => CAST(%(retry_in)s AS interval),
    fatal => %(fatal)s
)
{ONE_LEASE}"""

SNOOZE: Final = f"""
SELECT pulse.snooze(lease => p.lease, delay => CAST(%(delay)s AS interval))
{ONE_LEASE}"""

ACK_CANCEL: Final = f"SELECT pulse.ack_cancel(lease => p.lease) {ONE_LEASE}"

RELEASE: Final = f"""
SELECT r.lease, r.verdict
{WITHIN.format(patience="100ms", argument="leases", type="bigint[]")}
CROSS JOIN LATERAL pulse.release(leases => p.leases) AS r"""

HEARTBEAT: Final = """
SELECT
    b.lease, b.verdict,
    date_part('epoch', b.lease_until - clock_timestamp())
FROM pulse.heartbeat(leases => CAST(%(leases)s AS bigint[])) AS b"""

PROGRESS: Final = f"""
SELECT pulse.progress(lease => p.lease, fraction => %(fraction)s, note => %(note)s)
{ONE_LEASE}"""

CHECKPOINT: Final = f"""
SELECT pulse.checkpoint(lease => p.lease, data => CAST(%(data)s AS jsonb))
{ONE_LEASE}"""

UPSTREAM: Final = """
SELECT u.job_id, u.name, u.kind, u.state, u.result
FROM pulse.upstream(lease => %(lease)s) AS u"""

SPAWN: Final = f"""
SELECT s.job_id
{ONE_LEASE}
CROSS JOIN LATERAL pulse.spawn(
    lease => p.lease, step => %(step)s, jobs => CAST(%(jobs)s AS jsonb)
) AS s (job_id)"""

SAVE_STEP: Final = f"""
SELECT pulse.save_step(
    lease => p.lease, step => %(step)s, result => CAST(%(result)s AS jsonb)
)
{ONE_LEASE}"""

STEPS: Final = "SELECT s.step, s.result FROM pulse.steps(lease => %(lease)s) AS s"

WAIT_FOR: Final = f"""
SELECT w.verdict, w.payload
{ONE_LEASE}
CROSS JOIN LATERAL pulse.wait_for(
    lease => p.lease,
    step => %(step)s,
    timeout => CAST(%(timeout)s AS interval),
    signal => %(signal)s
) AS w"""

# The calls of a handler through the worker, by name.
CALLS: Final[dict[str, LiteralString]] = {
    "checkpoint": CHECKPOINT,
    "upstream": UPSTREAM,
    "spawn": SPAWN,
    "save_step": SAVE_STEP,
    "steps": STEPS,
    "wait_for": WAIT_FOR,
}

HELLO: Final = """
SELECT h.lane, h.max_batch, h.rated
FROM pulse.hello(
    worker => %(worker)s,
    lanes => CAST(%(lanes)s AS text[]),
    kinds => CAST(%(kinds)s AS text[])
) AS h"""

# In seconds from now.
NEXT_AT: Final = """
SELECT date_part(
    'epoch',
    pulse.next_at(lane => %(lane)s, kinds => CAST(%(kinds)s AS text[]))
    - clock_timestamp()
)"""

TICK: Final = "SELECT t.step, t.did, t.error FROM pulse.tick() AS t"

# Before TICK, in its transaction, since a pooler would keep them for others. Upkeep has
# a time budget of its own: a timeout meant for queries of people would undo all of it.
# A lock that is not given ends one of its steps only.
MAINTENANCE_SETTINGS: Final = """
SELECT
    set_config('statement_timeout', '0', true),
    set_config('lock_timeout', '5s', true)"""

# One message of the simple query protocol, without BEGIN and COMMIT. The server runs it
# as one transaction and ends that itself, so a worker that stalls holds no lock. An
# error leaves no aborted transaction behind.
MAINTENANCE: Final = f"{MAINTENANCE_SETTINGS};\n{TICK}"

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
    "idle_in_transaction_session_timeout": IDLE_LIMIT,
    "tcp_user_timeout": UNREAD_LIMIT,
}
SET: Final = "SELECT set_config(%(name)s, %(value)s, false)"

# The functions that a worker calls, for the check at its start.
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
    "next_at",
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
    "next_at": NEXT_AT,
    "tick": TICK,
    "maintenance_settings": MAINTENANCE_SETTINGS,
    "can_have_watchdog": CAN_HAVE_WATCHDOG,
    "arm_bell": ARM_BELL,
    "disarm_bell": DISARM_BELL,
    "installed": INSTALLED,
}
