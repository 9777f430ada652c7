"""Health of a worker: HTTP probes, systemd notifications, and restarts.

    GET /livez     200 while the event loop moves; if not, restart the process
    GET /readyz    200 while the worker is connected to the server and claims

A thread of its own answers the probes, so a blocked event loop gives an answer and not
a timeout. systemd gets READY, STOPPING and, where it asks for it, WATCHDOG, over the
socket that NOTIFY_SOCKET names.

Recycling stops the worker after max_jobs, or when the process uses more than
max_memory; the command line then restarts the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pulse.errors import InvalidArgument
from pulse.hooks import Hooks
from pulse.job import Job
from pulse.logs import log_event

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

BEAT = 1.0
STUCK_AFTER = 30.0
# Runs between two measurements of the memory.
MEASURE_EVERY = 20


# -- probes and systemd ---------------------------------------------------------------


@dataclass(frozen=True)
class HealthReport:
    """The state of a loop, as the probes read it."""

    connected: bool
    stopping: bool
    running: int
    nodes: Mapping[str, bool] | None = None
    """Of several databases: which of them are connected."""


class HasHealth(Protocol):
    """A loop: of one database, or of several."""

    def health_report(self) -> HealthReport: ...


@contextlib.asynccontextmanager
async def supervised(
    loop: HasHealth, port: int | None
) -> AsyncIterator[ProbeServer | None]:
    """Answer probes on this port, if any, and notify systemd, if it asks for that."""
    health = HealthMonitor(loop)
    probes = None if port is None else ProbeServer(port, health)
    beating = asyncio.create_task(health.beat(), name="pulse health")
    try:
        yield probes
    finally:
        beating.cancel()
        if probes is not None:
            await asyncio.to_thread(probes.close)


class HealthMonitor:
    """Beats on the event loop; read by the thread of the probes."""

    def __init__(self, loop: HasHealth) -> None:
        self._loop = loop
        self._moved_at = time.monotonic()
        self._ready_sent = False
        self._stopping_sent = False
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        self._watchdog = int(watchdog) / 2e6 if watchdog.isdigit() else None

    async def beat(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._moved_at = time.monotonic()
                if not self._ready_sent and self.is_ready:
                    self._ready_sent = True
                    notify_systemd("READY=1")
                if self._watchdog:
                    notify_systemd("WATCHDOG=1")
                if self._loop.health_report().stopping:
                    self._send_stopping()
                await asyncio.sleep(min(BEAT, self._watchdog or BEAT))
        finally:
            self._send_stopping()

    def _send_stopping(self) -> None:
        if not self._stopping_sent:
            self._stopping_sent = True
            notify_systemd("STOPPING=1")

    @property
    def is_live(self) -> bool:
        return time.monotonic() - self._moved_at < STUCK_AFTER

    @property
    def is_ready(self) -> bool:
        now = self._loop.health_report()
        return self.is_live and now.connected and not now.stopping

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of a probe."""
        ok = {"/livez": self.is_live, "/readyz": self.is_ready}.get(path)
        if ok is None:
            return 404, {"error": "there are /livez and /readyz"}
        now = self._loop.health_report()
        return 200 if ok else 503, {
            "ok": ok,
            "moved": round(time.monotonic() - self._moved_at, 3),
            "connected": now.connected,
            "stopping": now.stopping,
            "running": now.running,
            **({} if now.nodes is None else {"nodes": dict(now.nodes)}),
        }


class ProbeServer:
    """An HTTP server on a port; 0 chooses a free one."""

    def __init__(self, port: int, health: HealthMonitor) -> None:
        try:
            self._server = http_server(port, health)
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


def http_server(port: int, health: HealthMonitor) -> ThreadingHTTPServer:
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
            """Do not log health-check requests."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    return Server(("", port), Handler)


def notify_systemd(state: str) -> None:
    """Does nothing where systemd has not started this process."""
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


# -- recycling ------------------------------------------------------------------------


class Recycle(Hooks):
    """Counts runs that ended; at a limit the worker stops as at a signal."""

    def __init__(
        self, max_jobs: int | None, max_memory: int | None, stop: Callable[[], None]
    ) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._stop = stop
        self._ended = 0
        self.reason: str | None = None

    def finished(self, job: Job, outcome: str, seconds: float) -> None:
        self._ended += 1
        if self.reason is not None:
            return
        if self._max_jobs is not None and self._ended >= self._max_jobs:
            self.reason = f"it has run {self._ended} jobs"
        elif self._max_memory is not None and self._ended % MEASURE_EVERY == 1:
            used = memory()
            if used > self._max_memory:
                self.reason = f"it uses {used >> 20} MB"
        if self.reason is not None:
            self._stop()


def memory() -> int:
    """Return the memory of this process in bytes; its peak if that is all there is."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def restart_process(reason: str) -> None:
    """Replace this process with a new interpreter; no supervisor has to do it."""
    log_event(logging.INFO, f"restarting: {reason}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def bytes_of(size: str) -> int:
    """512MB, 2 GiB, 100000."""
    found = re.fullmatch(r"(\d+)\s*([kMG]?)i?B?", size.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{size!r} is not a size such as 512MB")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2].lower()]
