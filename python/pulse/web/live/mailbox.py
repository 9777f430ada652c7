"""Between the hub and one client: messages that wait to be sent.

The hub puts messages in, the response of the stream (streams.py) takes them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any


class Mailbox:
    """The messages that a client has not been sent yet: of each event only the newest.

    A brief one belongs to a user that sees a job only while it awaits approval.
    """

    def __init__(self, *, brief: bool = False) -> None:
        self.brief = brief
        self._waiting: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self.closed = False

    def put(self, event: str, message: bytes) -> None:
        # The newest last: the client keeps the last one.
        self._waiting.pop(event, None)
        self._waiting[event] = message
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    async def take(self, within: float) -> bytes:
        """Wait for messages and return them; nothing if none came in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), within)
        self._changed.clear()
        messages, self._waiting = b"".join(self._waiting.values()), {}
        return messages


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON has no raw line ends, so one data line holds it."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
