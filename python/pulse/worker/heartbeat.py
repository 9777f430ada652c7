"""Heartbeats, progress, checkpoints and steps: a thread and a connection of their own.

Neither a blocked event loop nor a handler that keeps the interpreter busy can hold up
this thread. One statement extends all leases, a third of the shortest lease after the
statement before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from pulse import connections, errors
from pulse.job import Rows
from pulse.logs import log_event
from pulse.sql import worker as sql
from pulse.worker.connector import Connection, Connector, cut
from pulse.worker.run import Run

SHORTEST_PAUSE = 0.1
PROGRESS_EVERY = 1.0


class Heartbeat:
    """Extends the leases of runs until close."""

    def __init__(self, connector: Connector, runs: Mapping[int, Run]) -> None:
        self._connector = connector
        self._runs = runs
        self._connection: Connection | None = None
        self._failures = 0
        self._next_beat = float("inf")
        self._wake = threading.Condition()
        self._closing = False
        self._progress: dict[int, tuple[float, str | None]] = {}
        self._sent: dict[int, float] = {}
        self._calls: deque[tuple[str, dict[str, Any], Future[Rows]]] = deque()
        self._thread = threading.Thread(
            target=self._run, name="pulse heartbeat", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        connection = self._connection
        if self._thread.is_alive() and connection is not None:
            cut(connection)
            self._thread.join(1)

    # -- from other threads -----------------------------------------------------------

    def expect(self, until: float) -> None:
        """New leases have begun; the first of them ends at this moment."""
        now = time.monotonic()
        due = now + max((until - now) / 3, SHORTEST_PAUSE)
        if due < self._next_beat:
            with self._wake:
                self._next_beat = min(due, self._next_beat)
                self._wake.notify()

    def progress(self, lease: int, fraction: float, note: str | None) -> None:
        with self._wake:
            self._progress[lease] = (fraction, note)
            self._wake.notify()

    def call(self, name: str, values: dict[str, Any]) -> Future[Rows]:
        """One of sql.CALLS, each of which may be repeated."""
        done: Future[Rows] = Future()
        with self._wake:
            self._calls.append((name, values, done))
            self._wake.notify()
        return done

    # -- the thread -------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            try:
                self._work()
                self._failures = 0
            except Exception as error:
                self._disconnect()
                self._failures += 1
                if self._failures in (1, 10):
                    log_event(
                        logging.WARNING,
                        f"heartbeats fail{self._connector.at}, trying again: {error}",
                        worker=self._connector.worker,
                    )
        for _, _, done in self._calls:
            with suppress(InvalidStateError):
                done.set_exception(errors.LeaseLost("the worker has stopped"))
        self._disconnect()

    def _wait(self) -> bool:
        """Wait until something is due; False when the worker closes."""
        with self._wake:
            if self._failures and not self._closing:
                self._wake.wait(connections.backoff(self._failures, cap=1.0))
            while not self._closing:
                pause = self._pause()
                if pause <= 0:
                    break
                self._wake.wait(min(pause, 3600))
            return not self._closing

    def _pause(self) -> float:
        now = time.monotonic()
        if self._calls:
            return 0
        due = self._next_beat
        for lease in self._progress:
            due = min(due, self._sent.get(lease, 0) + PROGRESS_EVERY)
        return due - now

    def _work(self) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = self._connector.open("heartbeat")
        if time.monotonic() >= self._next_beat:
            self._beat(self._connection)
        # Those that have to wait come again, behind the others.
        for _ in range(len(self._calls)):
            answered = self._answer(self._connection, *self._calls[0])
            call = self._calls.popleft()
            if not answered:
                self._calls.append(call)
            if time.monotonic() >= self._next_beat:
                self._beat(self._connection)
        self._send_progress(self._connection)

    def _beat(self, connection: Connection) -> None:
        # First, so that a lease that begins from here on sets the next beat itself.
        self._next_beat = float("inf")
        leases = list(self._runs)
        if not leases:
            return
        started = time.monotonic()
        rows = connection.execute(sql.HEARTBEAT, {"leases": leases}).fetchall()
        shortest = 3600.0
        for lease, verdict, left in rows:
            run = self._runs.get(lease)
            if verdict in ("ok", "cancel"):
                shortest = min(shortest, left)
                if run is not None:
                    run.leased_until = started + left
            elif verdict == "deadline":
                shortest = min(shortest, 1.0)
            if run is not None and verdict != "ok":
                run.set_verdict(verdict)
        with self._wake:
            due = started + max(shortest / 3, SHORTEST_PAUSE)
            self._next_beat = min(self._next_beat, due)

    def _answer(
        self,
        connection: Connection,
        name: str,
        values: dict[str, Any],
        done: Future[Rows],
    ) -> bool:
        """False when another session holds what it needs."""
        # The handler that asked may be gone by now, or while it is answered.
        if done.cancelled():
            return True
        try:
            rows = connection.execute(sql.CALLS[name], values).fetchall()
        except Exception as error:
            if errors.is_held(error):
                return False
            if errors.is_transient(error):
                raise
            with suppress(InvalidStateError):
                done.set_exception(errors.translate(error) or error)
        else:
            with suppress(InvalidStateError):
                done.set_result(rows)
        return True

    def _send_progress(self, connection: Connection) -> None:
        now = time.monotonic()
        due = [x for x in list(self._progress) if self._sent.get(x, 0) <= now - 1]
        for lease in due:
            fraction, note = self._progress.pop(lease)
            if lease not in self._runs:
                continue
            values = {"lease": lease, "fraction": fraction, "note": note}
            try:
                connection.execute(sql.PROGRESS, values)
            except Exception as error:
                # One that has to wait is not worth it: the next one says more.
                if errors.is_transient(error) and not errors.is_held(error):
                    raise
            self._sent[lease] = now
            if time.monotonic() >= self._next_beat:
                self._beat(connection)
        for lease in [x for x in self._sent if x not in self._runs]:
            del self._sent[lease]

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
