"""Three PostgreSQL servers that Patroni leads, one etcd, all on loopback."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.process import PR_SET_PDEATHSIG
from tests.ha import needs
from tools import paths, servers
from tools.servers import Broken

HOST = "127.0.0.1"
PATIENCE = 120.0
# The shortest that Patroni allows: a leader that is gone is missed after TTL seconds.
TTL = 20
TIMES = {"ttl": TTL, "loop_wait": 5, "retry_timeout": 5}
PARAMETERS = {
    "max_connections": 60,
    "shared_buffers": "64MB",
    "wal_keep_size": "256MB",
    "log_min_messages": "warning",
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def wait_until(true: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError, Broken):
            if found := true():
                return found
        if time.monotonic() > until:
            raise Broken(f"in vain: {what}")
        time.sleep(0.05)


@dataclass
class Member:
    """A Patroni with its PostgreSQL."""

    name: str
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.port, self.api = free_port(), free_port()
        self.data = self.directory / "data"

    def configuration(self, etcd: int, synchronous: bool) -> dict[str, Any]:
        local, api = f"{HOST}:{self.port}", f"{HOST}:{self.api}"
        trusted = [
            f"host {what} all {HOST}/32 trust" for what in ("all", "replication")
        ]
        return {
            "scope": "pulse",
            "name": self.name,
            "restapi": {"listen": api, "connect_address": api},
            "etcd3": {"host": f"{HOST}:{etcd}"},
            "bootstrap": {
                "dcs": {**TIMES, "synchronous_mode": synchronous},
                "initdb": [{"encoding": "UTF8"}],
            },
            "postgresql": {
                "listen": local,
                "connect_address": local,
                "data_dir": str(self.data),
                "bin_dir": str(servers.primary().program("")),
                "pgpass": str(self.directory / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "postgres"},
                },
                "parameters": {
                    **PARAMETERS,
                    "unix_socket_directories": str(self.directory),
                },
                "pg_hba": ["local all all trust", *trusted],
            },
        }

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(
            f"http://{HOST}:{self.api}/patroni", timeout=2
        ) as r:
            found: dict[str, Any] = json.load(r)
        return found

    def power_cut(self) -> None:
        """Patroni, postmaster and every backend, at once."""
        assert self.process is not None
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        doomed = [self.process.pid, postmaster]
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == postmaster:
                    doomed.append(int(entry.name))
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


class Cluster:
    def __init__(self, synchronous: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pulse."))
        self.synchronous = synchronous
        self.closing = contextlib.ExitStack()
        self.closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        user = paths.server_user()
        if user is not None:
            shutil.chown(self.directory, user)
        client, peer = free_port(), free_port()
        self._spawn(
            "etcd",
            [str(needs.etcd()), "--data-dir", str(self.directory / "etcd")],
            ["--listen-client-urls", f"http://{HOST}:{client}"],
            ["--advertise-client-urls", f"http://{HOST}:{client}"],
            ["--listen-peer-urls", f"http://{HOST}:{peer}"],
            ["--initial-advertise-peer-urls", f"http://{HOST}:{peer}"],
            ["--initial-cluster", f"default=http://{HOST}:{peer}"],
            ["--logger", "zap", "--log-level", "warn", "--unsafe-no-fsync"],
        )
        wait_until(
            lambda: urllib.request.urlopen(f"http://{HOST}:{client}/health", timeout=2),
            "etcd answers",
        )
        self.members = [Member(n, self.directory / n) for n in ("one", "two", "three")]
        for member in self.members:
            member.directory.mkdir(mode=0o700)
            file = member.directory / "patroni.json"
            file.write_text(json.dumps(member.configuration(client, self.synchronous)))
            if user is not None:
                shutil.chown(member.directory, user)
                shutil.chown(file, user)
        for member in self.members:
            self.start(member)
            # The first one makes the cluster; the others copy it.
            wait_until(self.leader, "a leader")
        wait_until(self.whole, "two standbys that follow")

    def _spawn(self, name: str, *command: list[str]) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        environment["PYTHONPATH"] = str(needs.patroni())
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [word for words in command for word in words],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=paths.server_user(),
                preexec_fn=end_with_parent,
            )
        self.closing.callback(end, process)
        return process

    def start(self, member: Member) -> None:
        file = str(member.directory / "patroni.json")
        member.process = self._spawn(
            member.name, [str(needs.python()), "-m", "patroni", file]
        )

    # -- what it says -----------------------------------------------------------------

    def statuses(self) -> dict[str, dict[str, Any]]:
        found = {}
        for member in self.members:
            with contextlib.suppress(OSError):
                found[member.name] = member.status()
        return found

    def leader(self) -> Member | None:
        for member in self.members:
            with contextlib.suppress(OSError):
                said = member.status()
                if (
                    said.get("role") in ("primary", "master")
                    and said["state"] == "running"
                ):
                    return member
        return None

    def whole(self) -> bool:
        """Whether both standbys stream, one of them synchronously where it has to."""
        leader = self.leader()
        said = leader.status().get("replication", []) if leader else []
        streaming = [each for each in said if each.get("state") == "streaming"]
        synchronous = [each for each in streaming if each["sync_state"] == "sync"]
        return len(streaming) == 2 and len(synchronous) == int(self.synchronous)

    def dsn(self, database: str = "app") -> str:
        hosts = ",".join([HOST] * len(self.members))
        ports = ",".join(str(member.port) for member in self.members)
        return (
            f"host={hosts} port={ports} user=postgres dbname={database}"
            " target_session_attrs=read-write connect_timeout=2"
        )

    def switch_over(self) -> Member:
        """Let another one lead, in good order."""
        old = self.leader()
        assert old is not None
        request = urllib.request.Request(
            f"http://{HOST}:{old.api}/switchover",
            json.dumps({"leader": old.name}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60):
            return old

    def tail(self) -> str:
        return "\n".join(
            f"{log.name}: {line}"
            for log in sorted(self.directory.glob("*.log"))
            for line in log.read_text(errors="replace").splitlines()[-15:]
        )

    def close(self) -> None:
        self.closing.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end_with_parent() -> None:
    """Asked, not killed: a Patroni that is killed leaves its PostgreSQL behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen[bytes]) -> None:
    """Patroni stops its PostgreSQL when it is asked to end."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
