"""Clients of a stress test: threads, each with a connection and choices of its own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.conftest import Connection, Database

Play = Callable[[Connection, random.Random], None]


@dataclass
class Clients:
    """Producers play while producing is set, the others while running is."""

    db: Database
    seed: int
    errors: list[str] = field(default_factory=list, kw_only=True)
    producing: threading.Event = field(default_factory=threading.Event, kw_only=True)
    running: threading.Event = field(default_factory=threading.Event, kw_only=True)

    def producers(self) -> list[Play]:
        raise NotImplementedError

    def others(self) -> list[Play]:
        raise NotImplementedError

    def drain(self) -> None:
        """Wait until the others have worked off what producers left."""
        raise NotImplementedError

    def run(self, seconds: float) -> None:
        self.producing.set()
        self.running.set()
        producers = [self.start(*each) for each in enumerate(self.producers())]
        others = [self.start(*each) for each in enumerate(self.others(), 100)]
        time.sleep(seconds)
        self.producing.clear()
        for thread in producers:
            thread.join()
        self.drain()
        self.running.clear()
        for thread in others:
            thread.join()

    def start(self, number: int, play: Play) -> threading.Thread:
        connection = self.db.connect()
        chance = random.Random(self.seed + number)

        def guarded() -> None:
            try:
                play(connection, chance)
            except Exception as error:
                self.errors.append(f"{play.__name__}: {error}")

        thread = threading.Thread(target=guarded, name=f"{play.__name__}-{number}")
        thread.start()
        return thread
