"""Probes, notifications of systemd, and restarts."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pulse
from pulse import Job, Worker
from pulse.worker import health
from tests.python.worker.conftest import PATIENCE, Queue, Running, Start


def ask(running: Running, path: str) -> tuple[int, Any]:
    probes = running.worker._probes
    assert probes is not None
    url = f"http://127.0.0.1:{probes.port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_worker_is_live_and_ready_while_it_claims(queue: Queue, start: Start) -> None:
    worker = Worker(queue.db.dsn, health_port=0, tasks=[pulse.task("k")(lambda: None)])
    running = start(worker)
    queue.until(lambda: ask(running, "/readyz")[0] == 200)
    status, health = ask(running, "/livez?verbose")
    assert (status, health["ok"], health["connected"]) == (200, True, True)
    assert ask(running, "/other")[0] == 404


def test_a_port_that_is_taken_is_refused(queue: Queue) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        tasks = [pulse.task("k")(lambda: None)]
        worker = Worker(queue.db.dsn, health_port=port, tasks=tasks)
        with pytest.raises(pulse.errors.InvalidArgument, match=f"on port {port}: "):
            worker.run()


def test_a_worker_without_its_server_is_live_and_not_ready(
    queue: Queue, start: Start
) -> None:
    worker = Worker(queue.db.dsn, health_port=0, tasks=[pulse.task("k")(lambda: None)])
    running = start(worker)
    queue.until(lambda: ask(running, "/readyz")[0] == 200)
    name = queue.db.connect().info.dbname
    with psycopg.connect(queue.db.server.dsn("postgres"), autocommit=True) as other:
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        try:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND application_name LIKE 'pulse %%'",
                [name],
            )
            queue.until(lambda: ask(running, "/readyz")[0] == 503)
            assert ask(running, "/livez")[0] == 200
        finally:
            other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
    queue.until(lambda: ask(running, "/readyz")[0] == 200)


def test_a_blocked_event_loop_is_not_live(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "BEAT", 0.01)
    monkeypatch.setattr(health, "STUCK_AFTER", 0.5)
    worker = Worker(queue.db.dsn, health_port=0)
    go_on = threading.Event()

    @worker.handle("block")
    async def block(job: Job) -> None:
        go_on.wait(PATIENCE)

    running = start(worker)
    queue.enqueue("block")
    try:
        queue.until(lambda: ask(running, "/livez")[0] == 503)
        assert ask(running, "/readyz")[0] == 503
    finally:
        go_on.set()
    queue.until(lambda: ask(running, "/livez")[0] == 200)


def test_systemd_is_told(
    queue: Queue, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000000")
        running = start(Worker(queue.db.dsn, tasks=[pulse.task("k")(lambda: None)]))
        messages = set()
        while "READY=1" not in messages:
            messages.add(systemd.recv(100).decode())
        running.stop()
        while "STOPPING=1" not in messages:
            messages.add(systemd.recv(100).decode())
    assert messages == {"READY=1", "WATCHDOG=1", "STOPPING=1"}


@pytest.mark.parametrize(
    ("limit", "reason"), [({"max_jobs": 2}, "2 jobs"), ({"max_memory": 1}, "MB")]
)
def test_a_worker_stops_at_its_limit(
    queue: Queue, start: Start, limit: Any, reason: str
) -> None:
    worker = Worker(queue.db.dsn, concurrency=1, **limit)

    @worker.handle("k")
    def k(job: Job) -> None: ...

    jobs = [queue.enqueue("k") for _ in range(4)]
    running = start(worker, ready=False)
    running.join()
    assert reason in (worker.recycled or "")
    states = [queue.state(job) for job in jobs]
    assert states[0] == "completed"
    assert states[3] == "ready"
