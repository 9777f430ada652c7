"""A primary and its synchronous standby, a PgBouncer and two TCP proxies before them.

No COMMIT returns before the standby has it, so a failover may lose nothing that was
acknowledged, unless the standby was made asynchronous before. The node that a failover
leaves behind is copied anew from the new primary and follows it, so the next one can
come.
"""

from __future__ import annotations

import contextlib
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos import journal
from tests.chaos.bouncer import Bouncer
from tests.chaos.clock import Clock
from tests.chaos.disk import Disk
from tests.chaos.history import Transaction
from tests.chaos.proxy import Proxy
from tools import servers
from tools.servers import Broken, Install, Server

DATABASE = "chaos"
PATIENCE = 120.0
OLDEST_OPEN = "SELECT pg_snapshot_xmin(pg_current_snapshot())"
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' LIMIT 1"
SETTINGS = {
    "wal_level": "replica",
    "wal_keep_size": "256MB",
    "full_page_writes": "on",
    "max_wal_size": "512MB",
    "track_commit_timestamp": "on",
    "wal_retrieve_retry_interval": "100ms",
    # A walsender whose standby is gone must not be believed for long.
    "wal_sender_timeout": "5s",
    "autovacuum_naptime": "10s",
    "max_connections": "150",
}


@dataclass
class Node(Server):
    """A server that may begin as a copy of another one and follow it."""

    source: Server | None = None
    # The standbys that its COMMIT waits for once it leads; '' is asynchronous.
    waits_for: str = "*"
    clock: Clock | None = None

    def environ(self, database: str = "postgres") -> dict[str, str]:
        stepped = self.clock.environment if self.clock else {}
        return {**super().environ(database), **stepped}

    def _initdb(self) -> None:
        if self.source is None:
            super()._initdb()
        else:
            self.copy(self.source)

    def copy(self, source: Server) -> None:
        """Become a standby of source, whatever this one was before."""
        for entry in self.data.glob("*"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.data.mkdir(mode=0o700, exist_ok=True)
        owner = pwd.getpwnam(self.user) if self.user else None
        done = subprocess.run(
            [
                str(self.install.program("pg_basebackup")),
                *("-D", str(self.data), "-R", "-X", "stream", "-c", "fast"),
                *("--no-sync", "-d", f"{source.dsn()} application_name=standby"),
            ],
            env=self.environ(),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            user=owner.pw_uid if owner else None,
            group=owner.pw_gid if owner else None,
            extra_groups=[] if owner else None,
        )
        if done.returncode != 0:
            raise Broken(f"pg_basebackup failed:\n{done.stdout}")
        self.configure(
            {
                "unix_socket_directories": str(self.socket),
                "synchronous_standby_names": self.waits_for,
            }
        )

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server, standby or not."""
        self.psql("postgres", "-c", f"ALTER SYSTEM SET {name} = '{value}'")
        self.psql("postgres", "-c", "SELECT pg_reload_conf()")

    def wait_until(self, query: str) -> None:
        """Until this query has an answer."""
        until = time.monotonic() + PATIENCE
        while not self.psql("postgres", "-c", query):
            if time.monotonic() > until:
                raise Broken(f"in vain: {query}\n{self.tail()}")
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None


class Cluster:
    """The database that everything breaks around."""

    def __init__(self, install: Install | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pulse."))
        self.directory.chmod(0o711)
        self.closing = contextlib.ExitStack()
        self.closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
        # Held by whoever takes the primary away or needs it to stay.
        self.steady = threading.RLock()
        try:
            self._start(install or servers.primary())
        except BaseException:
            self.closing.close()
            raise

    def _start(self, install: Install) -> None:
        self.disks = [Disk(self.directory / f"disk{n}") for n in (1, 2)]
        for disk in self.disks:
            self.closing.callback(disk.close)
        self.clock = Clock.make(self.directory / "clock")
        path = self.clock.path if self.clock else ""
        settings = {**SETTINGS, "chaos.clock": str(path)}
        first = Node(install, settings, store=self.disks[0].store, clock=self.clock)
        self.closing.callback(first.close)
        first.create(DATABASE, product="extension")
        second = Node(
            *(install, settings),
            store=self.disks[1].store,
            source=first,
            clock=self.clock,
        )
        self.closing.callback(second.close)
        self.nodes = [first, second]
        self.primary, self.standby = first, second
        first.set("synchronous_standby_names", "*")
        self.wait_for_standby()
        self.proxies = []
        for node in self.nodes:
            self.proxies.append(Proxy(node.socket / f".s.PGSQL.{node.port}"))
            self.closing.callback(self.proxies[-1].close)
        self.bouncer = Bouncer.start(self.directory / "bouncer", self.primary)
        if self.bouncer is not None:
            self.closing.callback(self.bouncer.close)

    def close(self) -> None:
        self.closing.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- ways in ----------------------------------------------------------------------

    def routes(self) -> dict[str, str]:
        """DSNs by the way they take; each finds the primary, whichever that is."""
        common = f"user=postgres dbname={DATABASE} connect_timeout=5"
        follow = f"target_session_attrs=read-write {common}"
        sockets = ",".join(str(node.socket) for node in self.nodes)
        ports = ",".join(str(node.port) for node in self.nodes)
        proxies = ",".join(str(proxy.port) for proxy in self.proxies)
        routes = {
            "direct": f"host={sockets} port={ports} {follow}",
            "proxy": f"host=127.0.0.1,127.0.0.1 port={proxies} {follow}",
        }
        if self.bouncer is not None:
            routes["bouncer"] = f"{self.bouncer.dsn} {common}"
        else:
            routes["bouncer"] = routes["direct"]
        return routes

    def connect(self) -> psycopg.Connection[Any]:
        """A superuser's session on the primary; waits for one."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return psycopg.connect(
                    self.routes()["direct"],
                    autocommit=True,
                    options="-c statement_timeout=0",
                )
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    # -- what breaks ------------------------------------------------------------------

    def crash(self) -> None:
        """Stop the primary as a power cut would, and let it recover."""
        with self.steady:
            self.primary.stop("SIGQUIT")
            self.primary.start()

    def failover(self, split: bool) -> None:
        """Promote the standby; split: while the old primary still takes connections.

        The old one can then commit nothing, for want of a standby, until it is shot.
        """
        with self.steady:
            old, new = self.primary, self.standby
            if not split:
                old.stop("SIGQUIT")
            self._promote(new)
            if split:
                time.sleep(0.5)
                old.stop("SIGQUIT")
            self._follow(old)

    def failover_async(self, alone: float) -> tuple[list[Transaction], float]:
        """Promote a standby that was cut off for so many seconds before.

        Returns what the old primary had committed and the new one never saw, and when
        the old one ended.
        """
        with self.steady:
            old, new = self.primary, self.standby
            since = int(old.psql("postgres", "-c", OLDEST_OPEN))
            old.set("synchronous_standby_names", "")
            new.set("primary_conninfo", "")
            new.wait_until("SELECT 1 WHERE NOT EXISTS (TABLE pg_stat_wal_receiver)")
            time.sleep(alone)
            # From here on no COMMIT is answered any more, so that what was is known.
            old.set("synchronous_standby_names", "*")
            old.wait_until(WAITING)
            had = self._committed(old, since)
            old.stop("SIGQUIT")
            ended = time.time()
            self._promote(new)
            kept = {transaction.key for transaction in self._committed(new, since)}
            self._follow(old)
            return [each for each in had if each.key not in kept], ended

    def _committed(self, node: Node, since: int) -> list[Transaction]:
        """What is in the journal of this node; the session may die of another fault."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with psycopg.connect(node.dsn(DATABASE), autocommit=True) as connection:
                    return list(journal.read_journal(connection, since=since))
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise

    def _promote(self, new: Node) -> None:
        new.psql("postgres", "-c", "SELECT pg_promote(true, 60)")
        self.primary, self.standby = new, self.primary

    def _follow(self, old: Node) -> None:
        """Lead everybody to the new primary; the old one begins anew as standby."""
        if self.bouncer is not None:
            self.bouncer.lead_to(self.primary)
        old.copy(self.primary)
        old.start()
        self.wait_for_standby()

    def disk_of_primary(self) -> Disk:
        return self.disks[self.nodes.index(self.primary)]

    def revive(self) -> None:
        """Start what did not survive, and wait until all of it works together."""
        with self.steady:
            for node in (self.primary, self.standby):
                if not node.running:
                    node.stop()
                    node.start()
            self.wait_for_standby()

    def wait_for_standby(self) -> None:
        """Until the standby is synchronous: only then may it take over."""
        until = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(Broken):
                if (
                    "sync"
                    in self.primary.psql(
                        "postgres", "-c", "SELECT sync_state FROM pg_stat_replication"
                    ).split()
                ):
                    return
            if time.monotonic() > until:
                raise Broken(
                    f"no standby follows:\n{self.standby.tail()}\n{self.primary.tail()}"
                )
            time.sleep(0.05)
