"""ps, lanes, kinds, workers, why, health: the present state of the queue.

Each command reads a view or function of pulse; lists cover all databases.
"""

from typing import Any

import click
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pulse.cli import nodes, queries, show
from pulse.cli.session import Row, Session, with_session
from pulse.sql import operator


@click.command()
@click.option("--lane", help="Only this lane.")
@click.option("--kind", help="Only this kind.")
@click.option("--worker", help="Only this worker.")
@click.option(
    "--limit", default=1000, show_default=True, help="Show at most this many."
)
@with_session
def ps(session: Session, **wanted: Any) -> None:
    """Running jobs: worker, time, attempt and progress of each."""
    rows = session.gather(lambda node: node.rows(queries.RUNNING, wanted))
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("Nothing runs. What waits: pulse jobs")
    session.out.print(running_table(rows).by_node(rows))
    return None


def running_table(rows: list[Row]) -> show.Grid:
    table = show.Grid(
        *("JOB", "KIND", "LANE", "FOR", "TRY", "WORKER", "PROGRESS", "NOTE"),
        right=("JOB", "FOR", "TRY"),
        cut=("KIND", "LANE", "WORKER", "NOTE"),
    )
    for row in rows:
        note = Text(row["progress_note"] or "")
        if row["cancel_by"]:
            reason = f": {row['cancel_reason']}" if row["cancel_reason"] else ""
            note = Text(f"asked to stop{reason}", style="yellow")
        table.add(
            *(row["job_id"], row["kind"], row["lane"]),
            *(show.duration(row["running_for"]), row["attempt"], row["worker"]),
            *(show.bar(row["progress"], 6), note),
        )
    return table


@click.command()
@with_session
def lanes(session: Session) -> None:
    """Lanes: slots, ready jobs, oldest job, throughput, pauses."""
    rows = session.gather(lambda node: node.rows(queries.LANES))
    if session.as_json:
        return session.print_json(rows)
    rows = nodes.with_sums(rows)
    session.out.print(lanes_table(rows).by_node(rows))
    return None


def lanes_table(rows: list[Row]) -> show.Grid:
    columns = ("LANE", "SLOTS", "READY", "OLDEST", "DELAYED", "PER MIN", "STATUS")
    table = show.Grid(*columns, right=columns[1:6], cut=("LANE", "STATUS"))
    for row in rows:
        table.add(
            *(row["lane"], show.slots(row), show.depth(row)),
            *(show.duration(row["oldest_ready_age"]), show.delayed(row)),
            *(f"{row['throughput']:,.0f}", show.lane_status(row)),
        )
    return table


@click.command()
@with_session
def kinds(session: Session) -> None:
    """Kinds: ready and running jobs, oldest job, who takes them."""
    rows = session.gather(lambda node: node.rows(queries.KINDS))
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("No kind waits, runs, has settings, a schedule or a worker.")
    session.out.print(kinds_table(rows).by_node(rows))
    return None


def kinds_table(rows: list[Row]) -> show.Grid:
    columns = ("KIND", "READY", "OLDEST", "RUNNING", "WORKERS", "SCHEDULES")
    table = show.Grid(*columns, "READY IN", right=columns[1:], cut=("KIND", "READY IN"))
    for row in rows:
        unhandled = row["ready"] > 0 and row["workers"] == 0
        table.add(
            *(row["kind"], show.about(row["ready"], row["ready_estimated"])),
            *(show.duration(row["oldest_ready_age"]), row["running"]),
            Text(str(row["workers"]), style="bold red" if unhandled else ""),
            *(row["schedules"], show.some(row["ready_in"])),
        )
    return table


@click.command()
@with_session
def workers(session: Session) -> None:
    """Workers: when each was last seen, its lanes, kinds and jobs."""
    rows = session.gather(lambda node: node.rows(queries.WORKERS))
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("No worker was seen. Start one: pulse work app:worker")
    session.out.print(workers_table(rows).by_node(rows))
    return None


def workers_table(rows: list[Row]) -> show.Grid:
    table = show.Grid(
        *("WORKER", "STATE", "SEEN", "RUNNING", "LANES", "KINDS"),
        right=("SEEN", "RUNNING"),
        cut=("WORKER", "LANES", "KINDS"),
    )
    for row in rows:
        table.add(
            *(row["worker"], show.worker_state(row)),
            *(f"{show.duration(row['seen_for'])} ago", row["running"]),
            *(", ".join(row["lanes"]), show.worker_kinds(row)),
        )
    return table


@click.command()
@click.argument("job_id", type=int)
@with_session
def why(session: Session, job_id: int) -> None:
    """Why a job is not running now, in words."""
    rows = session.having(job_id).rows(operator.WHY, {"job_id": job_id})
    if session.as_json:
        return session.print_json({"job_id": job_id, "reasons": rows})
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(str(row["position"]), escape(show.safe(row["reason"])))
    session.out.print(table)
    return None


@click.command()
@click.option("--strict", is_flag=True, help="Exit 1 on a warning too.")
@with_session
def health(session: Session, strict: bool) -> None:
    """Checks of the queue, each with advice. Exit code 1 if one fails."""
    rows = session.gather(checks)
    bad = {"fail", "warn"} if strict else {"fail"}
    silent = len(session.nodes) - len({row["node"] for row in rows if "node" in row})
    failed = silent > 0 or any(row["status"] in bad for row in rows)
    if session.as_json:
        session.print_json(rows)
    else:
        session.out.print(health_table(rows))
    if failed:
        raise click.exceptions.Exit(1)


def checks(session: Session) -> list[Row]:
    return [
        *session.rows(operator.HEALTH),
        check_version(session),
        check_listen(session),
    ]


def health_table(rows: list[Row]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        figure = Text(show.safe(row["figure"] or ""))
        if row["advice"]:
            figure.append(f"\n→ {show.safe(row['advice'])}", style="yellow")
        node = f"{row['node']}  " if "node" in row else ""
        name = Text(f"{node}{row['check_name']}")
        table.add_row(name, show.coloured(row["status"]), figure)
    return table


def check_version(session: Session) -> Row:
    from pulse import install

    state = install.inspect(session.connection)
    advice = None
    if state.is_older:
        advice = "The database is older than the package: pulse install."
    elif state.is_other_code:
        advice = (
            f"The same version from other code: build {state.build} in the database, "
            f"{install.build()} in the package. See what pulse install --dry-run says."
        )
    return {
        "check_name": "package",
        "status": "warn" if advice else "ok",
        "figure": f"database has {state}, package {install.version()}",
        "advice": advice,
    }


def check_listen(session: Session) -> Row:
    """Whether a notification reaches a connection like this one."""
    import psycopg

    from pulse import connections

    figure = "LISTEN receives nothing here"
    advice = (
        "A transaction pooler is in between: workers poll, which is slower but "
        "right. To be woken, give them a DSN that leads straight to PostgreSQL."
    )
    try:
        if connections.listen_works(session.dsn):
            figure, advice = "notifications arrive", ""
    except psycopg.errors.ReadOnlySqlTransaction:
        figure = "a standby, where LISTEN is not possible"
        advice = "Workers and producers need the primary."
    return {
        "check_name": "listen",
        "status": "warn" if advice else "ok",
        "figure": figure,
        "advice": advice or None,
    }
