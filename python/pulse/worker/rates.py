"""How long a lane that gave nothing is held by a rate."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from pulse.worker.exchange import Exchange

SOON = 0.005
# A lane is asked again after this time, whatever it said.
LONGEST = 60.0


class Rates:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._rated: set[str] = set()
        self._hasty: set[str] = set()

    def learn(self, lane: str, rated: bool) -> None:
        (self._rated.add if rated else self._rated.discard)(lane)

    async def ask(
        self, wants: Mapping[str, int], got: Mapping[str, int]
    ) -> dict[str, float]:
        """In how many seconds lanes with a rate may have something to give again."""
        waits: dict[str, float] = {}
        for lane in wants:
            if lane not in self._rated or got.get(lane):
                continue
            try:
                seconds = await self._exchange.next_in(lane)
            except (psycopg.Error, OSError):
                break  # The next exchange meets it again, and says so.
            now = seconds is not None and seconds <= 0
            if seconds is not None and not (now and lane in self._hasty):
                waits[lane] = min(max(seconds, SOON), LONGEST)
            # Once in a row: after that something else holds it, slots or a pause.
            if now and lane not in self._hasty:
                self._hasty.add(lane)
            else:
                self._hasty.discard(lane)
        return waits
