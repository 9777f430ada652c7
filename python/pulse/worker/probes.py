"""How a worker tells its supervisor that it is well: HTTP probes and systemd.

    GET /livez     200 while the event loop moves; else a restart is the remedy
    GET /readyz    200 while it is connected to the server and claims

The probes are answered by a thread of their own, so a blocked event loop is an answer
and not a timeout. systemd gets READY, STOPPING and, where it asks for it,
WATCHDOG, over the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulse.errors import InvalidArgument

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

BEAT = 1.0
STUCK_AFTER = 30.0


@dataclass(frozen=True)
class Condition:
    """What the coordinator says of itself."""

    connected: bool
    stopping: bool
    running: int
    nodes: Mapping[str, bool] | None = None
    """Of several databases: which of them are connected."""


class Health:
    """Beats on the event loop; read by the thread of the probes."""

    def __init__(self, condition: Callable[[], Condition]) -> None:
        self._condition = condition
        self._moved_at = time.monotonic()
        self._told_ready = False
        self._told_stopping = False
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        self._watchdog = int(watchdog) / 2e6 if watchdog.isdigit() else None

    async def beat(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._moved_at = time.monotonic()
                if not self._told_ready and self.is_ready:
                    self._told_ready = True
                    notify("READY=1")
                if self._watchdog:
                    notify("WATCHDOG=1")
                self._tell_stopping(self._condition().stopping)
                await asyncio.sleep(min(BEAT, self._watchdog or BEAT))
        finally:
            self._tell_stopping(True)

    def _tell_stopping(self, stopping: bool) -> None:
        if stopping and not self._told_stopping:
            self._told_stopping = True
            notify("STOPPING=1")

    @property
    def is_live(self) -> bool:
        return time.monotonic() - self._moved_at < STUCK_AFTER

    @property
    def is_ready(self) -> bool:
        now = self._condition()
        return self.is_live and now.connected and not now.stopping

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        found = {"/livez": self.is_live, "/readyz": self.is_ready}.get(path)
        if found is None:
            return 404, {"error": "there are /livez and /readyz"}
        now = self._condition()
        return 200 if found else 503, {
            "ok": found,
            "moved": round(time.monotonic() - self._moved_at, 3),
            "connected": now.connected,
            "stopping": now.stopping,
            "running": now.running,
            **({} if now.nodes is None else {"nodes": dict(now.nodes)}),
        }


class Probes:
    """An HTTP server on a port; 0 chooses a free one."""

    def __init__(self, port: int, health: Health) -> None:
        try:
            self._server = serve(port, health)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(
                f"cannot answer probes on port {port}: {error}",
                hint="Choose a port that is free: health_port, --health-port.",
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, name="pulse probes", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(port: int, health: Health) -> ThreadingHTTPServer:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            status, found = health.answer(self.path.partition("?")[0])
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """A probe every few seconds is no news."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    return Server(("", port), Handler)


def notify(state: str) -> None:
    """Tell systemd, where it is the one that started us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    # An abstract name begins with @ in the environment.
    where = "\0" + address[1:] if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
            unix.connect(where)
            unix.sendall(state.encode())
    except OSError:
        return
