"""stats: counts of jobs and runs; the figures of the page and of Prometheus.

They come from pulse.counters, with --since from pulse.counters_since.
"""

from datetime import timedelta
from typing import Any

import click

from pulse.cli import queries, show
from pulse.cli.session import Row, Session, with_session

COUNTS = {
    "enqueued": "ENQ",
    "started": "START",
    "completed": "DONE",
    "failed": "FAIL",
    "dead": "DEAD",
    "retried": "RETRY",
    "cancelled": "CANC",
    "reaped": "REAP",
}
# Left out where they are 0 everywhere: names need the room.
RARE = ("cancelled", "reaped")
TIMES = {"wait_p95": "WAIT95", "run_p95": "RUN95"}


@click.command()
@click.option("--lane", help="Only this lane.")
@click.option("--kind", help="Only this kind.")
@click.option("--since", metavar="INTERVAL", help="Only the last '1 hour', …")
@with_session
def stats(session: Session, **wanted: Any) -> None:
    """What happened: jobs and runs of each lane and kind, counted."""
    query = queries.COUNTED if wanted["since"] is None else queries.COUNTED_SINCE
    rows = session.gather(lambda node: node.rows(query, wanted))
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("Nothing was counted. What waits: pulse jobs")
    session.out.print(stats_table(rows).by_node(rows))
    return None


def stats_table(rows: list[Row]) -> show.Grid:
    counts = {
        name: title
        for name, title in COUNTS.items()
        if name not in RARE or any(row[name] for row in rows)
    }
    figures = (*counts.values(), *TIMES.values())
    table = show.Grid("LANE", "KIND", *figures, right=figures, cut=("LANE", "KIND"))
    for row in rows:
        # Beyond the most names that are counted apart, a row has no name.
        table.add(
            *(row[name] or "(others)" for name in ("lane", "kind")),
            *(f"{row[name]:,}" for name in counts),
            *(seconds(row[name]) for name in TIMES),
        )
    return table


def seconds(value: float | None) -> str:
    return show.duration(None if value is None else timedelta(seconds=value))
