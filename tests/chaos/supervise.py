"""The fleet: every process of a run, started again when it dies.

Processes are started by the thread that calls keep(), and by no other: they end when
that thread does (process.die_with_parent).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import paths

WORKERS = (
    ("threads", "direct", 2),
    ("async", "bouncer", 2),
    ("threads", "proxy", 1),
    ("process", "direct", 1),
    ("sql", "direct", 1),
    ("sql", "proxy", 1),
)
PRODUCERS = ("direct", "bouncer", "proxy")


@dataclass
class Member:
    """A place in the fleet; who holds it changes with every start."""

    label: str
    module: str
    arguments: list[str]
    route: str
    version: int = 0
    starts: int = 0
    running: subprocess.Popen[bytes] | None = None
    # Held while a fault has a hold of the process, so that two don't meet in one.
    busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return f"{self.label}.{self.starts}"

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def signal(self, number: int) -> None:
        if self.running is not None and self.running.poll() is None:
            self.running.send_signal(number)


class Fleet:
    def __init__(
        self, history: Path, routes: Mapping[str, str], rate: float, seed: int
    ) -> None:
        self.history = history
        self.seed = seed
        self.routes = routes
        self.workers = [
            Member(f"{sort}-{n}", "workers", [sort], route, version)
            for n, (sort, route, version) in enumerate(WORKERS, 1)
        ]
        self.producers = [
            Member(f"producer-{n}", "producers", [str(rate / len(PRODUCERS))], route)
            for n, route in enumerate(PRODUCERS, 1)
        ]
        self.operators = [Member("operator-1", "operators", [], "direct")]
        self._wanted: list[Member] = []
        self.deserters: list[str] = []

    def want(self, *members: Member) -> None:
        """Keep these running from now on, and only these."""
        self._wanted = list(members)

    def keep(self) -> None:
        """Start whoever should run and does not."""
        for member in self._wanted:
            if not member.alive:
                self._ask_why(member)
                self._start(member)

    def _ask_why(self, member: Member) -> None:
        """Killed or told to stop is what faults do; any other end is a finding."""
        told = (0, -signal.SIGKILL, -signal.SIGTERM)
        if member.running is None or member.running.returncode in told:
            return
        text = (self.history / f"{member.label}.log").read_text(errors="replace")
        last = (text.strip().splitlines() or ["it said nothing"])[-1]
        self.deserters.append(
            f"{member.name} ended by itself ({member.running.returncode}): {last}"
        )

    def _start(self, member: Member) -> None:
        member.starts += 1
        version = [str(member.version)] if member.version else []
        python_path = os.pathsep.join(
            [str(paths.ROOT), str(paths.ROOT / "python")]
            + [path for path in [os.environ.get("PYTHONPATH")] if path]
        )
        with (self.history / f"{member.label}.log").open("ab") as log:
            member.running = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"tests.chaos.{member.module}"),
                    *member.arguments,
                    *version,
                ],
                cwd=paths.ROOT,
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("PG")},
                    "PYTHONPATH": python_path,
                    "CHAOS_NAME": member.name,
                    "CHAOS_SEED": str(self.seed),
                    "CHAOS_DSN": self.routes[member.route],
                    "CHAOS_HISTORY": str(self.history),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, members: Sequence[Member], within: float) -> None:
        """Ask, wait, then insist."""
        for member in members:
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        until = time.monotonic() + within
        for member in members:
            if member.running is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.running.wait(max(0.1, until - time.monotonic()))
            if member.alive:
                member.running.kill()
                member.running.wait()

    @contextlib.contextmanager
    def one_of(
        self, members: Sequence[Member], chance: random.Random
    ) -> Iterator[Member]:
        """A running member by chance, for this fault alone."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            member = chance.choice(list(members))
            if member.alive and member.busy.acquire(blocking=False):
                try:
                    yield member
                finally:
                    member.busy.release()
                return
            time.sleep(0.05)
        raise TimeoutError("no process of the fleet is there to be broken")
