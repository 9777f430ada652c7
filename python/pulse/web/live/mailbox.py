"""Between the hub and one client: messages that wait to be sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any


class Mailbox:
    """What a client has not been sent yet: of each event only the newest.

    A brief one belongs to a user who sees a job only while it awaits approval.
    """

    def __init__(self, *, brief: bool = False) -> None:
        self.brief = brief
        self._waiting: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self.closed = False

    def put(self, event: str, message: bytes) -> None:
        # The newest last: it is what holds.
        self._waiting.pop(event, None)
        self._waiting[event] = message
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    async def take(self, within: float) -> bytes:
        """What has come, or nothing when nothing came in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within)
        self._changed.clear()
        messages, self._waiting = b"".join(self._waiting.values()), {}
        return messages


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON has no raw line ends, so one data line holds it."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
