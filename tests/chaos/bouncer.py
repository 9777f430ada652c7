"""PgBouncer in transaction mode, pointed at the primary of the day."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from tools import paths, servers
from tools.servers import Broken, Server

PORT = 6432


class Bouncer:
    def __init__(self, program: Path, directory: Path, server: Server) -> None:
        self.program = program
        self.directory = directory
        self.user = paths.server_user()
        self.dsn = f"host={directory} port={PORT}"
        directory.mkdir()
        (directory / "users.txt").write_text('"postgres" ""\n')
        if self.user is not None:
            shutil.chown(directory, self.user)
        self._configure(server)
        self._run()

    @classmethod
    def start(cls, directory: Path, server: Server) -> Bouncer | None:
        """None where there is no PgBouncer."""
        program = servers.pgbouncer()
        return None if program is None else cls(program, directory, server)

    def lead_to(self, server: Server) -> None:
        """As after a failover: new settings, reloaded, lines to the old one dropped."""
        self._configure(server)
        os.kill(int((self.directory / "pid").read_text()), signal.SIGHUP)

    def restart(self) -> None:
        """Drop every client and server line at once, and begin again."""
        self.close()
        self._run()

    def close(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"SIGTERM\n")
        self._guard.stdin.close()
        self._guard.wait()

    def _configure(self, server: Server) -> None:
        text = f"""\
[databases]
* = host={server.socket} port={server.port} user=postgres
[pgbouncer]
listen_addr =
listen_port = {PORT}
unix_socket_dir = {self.directory}
auth_type = any
auth_file = {self.directory}/users.txt
pool_mode = transaction
default_pool_size = 8
max_client_conn = 100
server_login_retry = 0.2
server_lifetime = 60
logfile = {self.directory}/log
pidfile = {self.directory}/pid
"""
        new = self.directory / "new.ini"
        new.write_text(text)
        if self.user is not None:
            shutil.chown(new, self.user)
        new.replace(self.directory / "pgbouncer.ini")

    def _run(self) -> None:
        (self.directory / "pid").unlink(missing_ok=True)
        self._guard = subprocess.Popen(
            [
                sys.executable,
                str(paths.ROOT / "tools/guard.py"),
                str(self.directory),
                self.user or "-",
                str(self.program),
                str(self.directory / "pgbouncer.ini"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 20
        while True:
            try:
                # Its own console answers also while the primary is away.
                admin = f"{self.dsn} user=postgres dbname=pgbouncer"
                psycopg.connect(admin, autocommit=True).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > until:
                    raise Broken(f"PgBouncer did not start: {error}") from error
                time.sleep(0.02)
