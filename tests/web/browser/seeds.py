"""Jobs as workers would have left them."""

from __future__ import annotations

from typing import Any

from tests.conftest import Connection


def one(sql: Connection, statement: str, *values: Any) -> Any:
    row = sql.execute(statement, values).fetchone()
    return row[0] if row else None


def state_of(sql: Connection, job_id: int) -> Any:
    return one(sql, "SELECT state FROM pulse.jobs WHERE job_id = %s", job_id)


def kill_jobs(sql: Connection, kind: str, error: str, how_many: int) -> None:
    for _ in range(how_many):
        sql.execute("SELECT pulse.enqueue(%s)", [kind])
        fail_once(sql, error, "default", fatal=True)


def fail_once(sql: Connection, error: str, lane_name: str, fatal: bool) -> None:
    claim = "SELECT lease FROM pulse.claim_batch('worker-1', %s)"
    lease = one(sql, claim, lane_name)
    fail = "SELECT pulse.fail(%s, %s, retry_in => '0', fatal => %s)"
    sql.execute(fail, [lease, error, fatal])


def _sums(column: str) -> str:
    places = ", ".join(f"sum(s.{column}[{n}])" for n in range(1, 17))
    return f"ARRAY[{places}]::bigint []"


# As tick keeps them beside the counters of each lane and kind.
ADD_TOTALS = f"""
    INSERT INTO pulse_internal.stat
    SELECT coalesce(s.lane, ''), coalesce(s.kind, ''), date_trunc('minute', s.at),
        sum(s.enqueued), sum(s.started), sum(s.completed), sum(s.failed), sum(s.dead),
        sum(s.retried), sum(s.cancelled), sum(s.reaped), sum(s.wait_seconds),
        {_sums("wait_counts")}, sum(s.run_seconds), {_sums("run_counts")}, true
    FROM pulse_internal.stat AS s
    GROUP BY GROUPING SETS (
        (date_trunc('minute', s.at), s.lane), (date_trunc('minute', s.at), s.kind),
        (date_trunc('minute', s.at))
    )
"""
