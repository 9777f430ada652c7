"""A mixed load on a server of its own, worked by a real worker, shown while it runs.

Pictures in line, urgent ones that overtake them, a payment job that fails until
the job is dead, a long training with progress, an export that is cancelled, a mail
sent on schedule. It ends by itself; what it shows is read from the public views.
"""

import asyncio
import logging
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

import pulse
from pulse.cli import show
from pulse.cli.screen import Screen
from pulse.cli.session import Row, Session
from pulse.embedded import EmbeddedServer

LONGEST = 50.0
EVENTS = 6
PICTURES, URGENT = 60, 6
SHOWN = ("charge-card", "train-model", "export-data", "send-digest")

JOBS = """
    SELECT
        j.job_id::text AS job_id, j.kind, j.state, j.attempts, j.failures,
        j.max_attempts, j.priority, j.last_error, j.progress, j.progress_note,
        j.finished_at, j.run_at, j.result, pg_catalog.clock_timestamp() AS seen_at
    FROM pulse.jobs AS j
"""
ENQUEUE_MANY = """
    SELECT pulse.enqueue_many(
        kind => %(kind)s, payloads => %(payloads)s, priority => %(priority)s
    )
"""
SET_UP = """
    SELECT
        pulse.set_kind('charge-card', max_attempts => 3, backoff => 'fixed',
                       backoff_base => '1 second'),
        pulse.set_kind('train-model', lane => 'long'),
        pulse.set_kind('export-data', lane => 'long'),
        pulse.set_lane('long', max_slots => 2),
        pulse.schedule('digest', 'send-digest', '{"to": "everybody"}',
                       every => '3 seconds')
"""
CANCEL = "SELECT pulse.cancel(job_id => %(job_id)s, reason => 'the customer left')"
# The screen looks at health before the worker has come to its first tick.
TICK = "SELECT pulse.tick()"
UNSCHEDULE = "SELECT pulse.unschedule(name => 'digest')"


def make_worker(dsn: str, seconds: float) -> "pulse.Worker":
    """Handlers as an application would have them, except that they sleep."""
    worker = pulse.Worker(
        dsn,
        name="demo",
        lanes={"default": 4, "long": 2},
        grace=5,
        lease_for="6 seconds",
    )

    @worker.handle("resize-picture")
    def resize_picture(job: pulse.Job, number: int) -> dict[str, Any]:
        time.sleep(0.2)
        return {"width": 640, "number": number}

    @worker.handle("charge-card")
    def charge_card(job: pulse.Job, amount: int) -> None:
        raise ConnectionError(f"the bank does not answer (attempt {job.attempt})")

    @worker.handle("train-model")
    def train_model(job: pulse.Job, epochs: int) -> dict[str, Any]:
        for epoch in range(1, epochs + 1):
            time.sleep(seconds / 2 / epochs)
            job.progress(epoch / epochs, f"epoch {epoch} of {epochs}")
        return {"accuracy": 0.97}

    @worker.handle("export-data")
    def export_data(job: pulse.Job) -> dict[str, Any] | None:
        for part in range(1, 1000):
            if not job.should_continue():
                return None
            job.progress(part / 1000, f"part {part} of 1000")
            time.sleep(0.1)
        return {"parts": 1000}

    @worker.handle("send-digest")
    async def send_digest(job: pulse.Job, to: str) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return {"to": to}

    return worker


class Demo:
    """The events so far, each printed once and in order."""

    def __init__(self, session: Session, seconds: float) -> None:
        self.session = session
        self.seconds = seconds
        self.jobs: dict[str, Row] = {}
        self.events: list[Text] = []
        self.quiet = False
        self.begin = time.monotonic()

    def event(self, text: str, style: str = "") -> None:
        line = Text(style="dim", no_wrap=True, overflow="ellipsis")
        line.append(f"{time.monotonic() - self.begin:5.1f} s  ")
        line.append(text, style=style or "default")
        self.events.append(line)
        if not self.quiet:
            self.session.out.print(line, soft_wrap=True)

    def refresh(self) -> None:
        """Read all jobs; what changed about some kinds is an event."""
        for row in self.session.rows(JOBS):
            before = self.jobs.get(row["job_id"])
            self.jobs[row["job_id"]] = row
            changed = before is None or (before["state"], before["failures"]) != (
                *(row["state"], row["failures"]),
            )
            if changed and row["kind"] in SHOWN and row["state"] != "ready":
                self.job_event(row)

    def job_event(self, row: Row) -> None:
        words: str = {
            "running": f"runs, attempt {row['attempts']}",
            "retrying": f"failed {row['failures']} of {row['max_attempts']} times",
            "completed": "completed",
            "dead": f"is dead after {row['failures']} failures",
            "cancelled": "was cancelled",
        }.get(row["state"], str(row["state"]))
        error = show.first_line(row["last_error"])
        if row["state"] in ("retrying", "dead", "cancelled") and error:
            words += f": {error}"
        name = f"{row['kind']} {row['job_id']}"
        self.event(f"{name} {words}", show.COLOURS.get(row["state"], ""))

    def of(self, kind: str, *states: str) -> list[Row]:
        return [
            row
            for row in self.jobs.values()
            if row["kind"] == kind and (not states or row["state"] in states)
        ]

    @property
    def finished(self) -> bool:
        return bool(self.jobs) and all(
            row["state"] in ("completed", "dead", "cancelled")
            for row in self.jobs.values()
        )

    # -- the run ----------------------------------------------------------------

    def prepare(self) -> None:
        connection = self.session.connection
        connection.execute(SET_UP)
        connection.execute(TICK)
        pictures = [Jsonb({"number": n}) for n in range(1, PICTURES + 1)]
        many = {"kind": "resize-picture", "payloads": pictures, "priority": 0}
        connection.execute(ENQUEUE_MANY, many)
        urgent = {**many, "payloads": pictures[:URGENT], "priority": 100}
        connection.execute(ENQUEUE_MANY, urgent)
        pulse.enqueue(connection, "charge-card", {"amount": 4200}, priority=10)
        pulse.enqueue(connection, "train-model", {"epochs": 10})
        pulse.enqueue(connection, "export-data", {})
        self.event(
            f"enqueued {PICTURES} pictures, {URGENT} urgent ones behind them, a card "
            "to charge, a model to train, an export; a digest every 3 seconds"
        )

    def play(self, draw: "Any") -> None:
        """Until all is done: cancel the export on the way, stop the schedule."""
        cancelled = unscheduled = False
        while not (unscheduled and self.finished):
            now = time.monotonic() - self.begin
            if now > LONGEST:
                return
            self.refresh()
            export = self.of("export-data", "running")
            if export and not cancelled and now > self.seconds / 4:
                self.session.rows(CANCEL, {"job_id": int(export[0]["job_id"])})
                self.event("an operator cancels the export")
                cancelled = True
            if not unscheduled and len(self.of("send-digest", "completed")) >= 2:
                self.session.rows(UNSCHEDULE)
                self.event("an operator removes the schedule of the digest")
                unscheduled = True
            draw()
            time.sleep(0.2)
        self.refresh()

    def check(self) -> list[str]:
        """Return the expected events that are missing."""
        pictures = self.of("resize-picture", "completed")
        first = sorted(pictures, key=lambda row: row["finished_at"])[:20]
        expected = {
            "every picture is done": len(pictures) == PICTURES + URGENT,
            "the urgent ones came first": sum(row["priority"] > 0 for row in first)
            == URGENT,
            "the card's job is dead": len(self.of("charge-card", "dead")) == 1,
            "the model is trained": len(self.of("train-model", "completed")) == 1,
            "the export is cancelled": len(self.of("export-data", "cancelled")) == 1,
            "the digest went out": len(self.of("send-digest", "completed")) >= 2,
        }
        for fact, holds in expected.items():
            mark = Text("  ✓ " if holds else "  ✗ ", style="green" if holds else "red")
            self.session.out.print(mark.append(fact, style="default"))
        return [fact for fact, holds in expected.items() if not holds]

    def summary(self) -> show.Grid:
        grid = show.Grid("KIND", "JOBS", "COMPLETED", "DEAD", "CANCELLED", "ATTEMPTS")
        grid.right = set(grid.columns[1:])
        for kind in sorted({row["kind"] for row in self.jobs.values()}):
            ended = ("completed", "dead", "cancelled")
            counts = [len(self.of(kind, state)) or "-" for state in ended]
            attempts = sum(row["attempts"] for row in self.of(kind))
            grid.add(kind, len(self.of(kind)), *counts, attempts)
        return grid


def run(session: Session, seconds: float) -> int:
    """Everything from the server to the summary; 0 when all went as it should."""
    from pulse.cli.provision import spinner

    logging.getLogger("pulse").setLevel(logging.ERROR)
    with spinner(session) as report:
        server = EmbeddedServer(temporary=True, report=report).start()
    with server:
        return play_on(server, session, seconds)


def play_on(server: EmbeddedServer, session: Session, seconds: float) -> int:
    session.dsn, session.given = server.dsn, server.dsn
    story = Demo(session, seconds)
    story.event("PostgreSQL 18 runs, pulse is installed in it")
    story.prepare()
    worker = make_worker(server.dsn, seconds)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run_async()))
    thread.start()
    try:
        if session.out.is_terminal:
            play_live(story)
        else:
            story.play(lambda: None)
    finally:
        worker.stop()
        thread.join()
    for line in story.events if story.quiet else ():
        session.out.print(line, soft_wrap=True)
    session.out.print()
    session.out.print(story.summary())
    session.out.print()
    wrong = story.check()
    session.out.print(
        f"\nNext: [bold]{program()} dev[/] starts a server that keeps its data;\n"
        f"      [bold]{program()} --help[/] lists all commands",
        soft_wrap=True,
    )
    session.close()
    return 1 if wrong else 0


def program() -> str:
    """Return how to call pulse: `make demo` leaves it in an inactive venv."""
    here = Path(sys.executable).with_name("pulse")
    on_path = shutil.which("pulse") or not here.exists()
    return "pulse" if on_path else os.path.relpath(here)


def play_live(story: Demo) -> None:
    """On a terminal: the screen of `pulse top`, the last events below it."""
    session = story.session
    screen = Screen(session, hint="")
    story.quiet = True
    with Live(console=session.out, screen=True, auto_refresh=False) as live:

        def draw() -> None:
            screen.look()
            size = session.out.size
            events = story.events[-EVENTS:]
            picture: list[RenderableType] = [
                screen.draw(size.width, size.height - EVENTS - 1),
                Text(""),
                *events,
            ]
            live.update(Group(*picture), refresh=True)

        story.play(draw)
