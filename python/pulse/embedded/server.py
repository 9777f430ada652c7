"""EmbeddedServer: one PostgreSQL server for each directory, shared by its users.

The data stays between runs. Processes that name the same directory share one server,
which stops when the last of them is gone, kill -9 included (keeper.py).

    DIRECTORY/data         the cluster
    DIRECTORY/run          its socket, for this user only
    DIRECTORY/share        control file and script of pulse (extension_control_path)
    DIRECTORY/password     of the role postgres, over TCP
    DIRECTORY/log          the log of the server
    DIRECTORY/*.lock       locks of starting, of users and of the keeper
"""

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from pulse.embedded import binaries, contents, keeper, status
from pulse.embedded.binaries import EmbeddedError

PATIENCE = 60.0
# A socket's path has at most 107 bytes, its name included.
LONGEST_SOCKET_DIRECTORY = 85
LARGEST_LOG = 10 << 20


def default_directory() -> Path:
    """$PULSE_HOME, else where programs keep data; as root below /var/lib."""
    if os.environ.get("PULSE_HOME"):
        return Path(os.environ["PULSE_HOME"]).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/pulse")
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    first = Path(base) / "pulse"
    nearest = next(path for path in (first, *first.parents) if path.exists())
    # A user without a home, as in many containers.
    return first if os.access(nearest, os.W_OK) else Path.cwd() / ".pulse"


def start(
    directory: str | Path | None = None,
    *,
    database: str = "pulse",
    port: int | None = None,
) -> "EmbeddedServer":
    """Start the server, or share the running one, until close() or the process ends.

    Args:
        directory: Where the server has its data; None, default_directory().
        database: The name of the database.
        port: A port of 127.0.0.1 to open; 0 chooses a free one, None opens none.

    Returns:
        One user of the server; its dsn is the database.

    Raises:
        EmbeddedError: The server cannot be started; the message has the fix.
    """
    return EmbeddedServer(directory, database=database, port=port).start()


class EmbeddedServer:
    """One user of the server of a directory; a context manager that starts and closes.

    Args:
        directory: Where the server has its data; None, default_directory().
        database: The name of the database.
        port: A port of 127.0.0.1 to open, with a password; 0 chooses a free one.
        settings: Settings of PostgreSQL, by name.
        temporary: Whether to make a directory that is removed with the last user.
        report: Called with a text at each step of the start.

    Raises:
        ValueError: A temporary server was given a directory.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        database: str = "pulse",
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        temporary: bool = False,
        report: Callable[[str], None] = lambda step: None,
    ) -> None:
        if temporary and directory is not None:
            raise ValueError("a temporary server chooses its own directory")
        self.temporary = temporary
        self.directory = Path(directory or default_directory()).absolute()
        self.database = database
        self.port = port
        self._settings = dict(settings or {})
        self._report = report
        self._users: IO[str] | None = None

    # -- start, close -----------------------------------------------------------------

    def start(self) -> "EmbeddedServer":
        if self._users is not None:
            return self
        found = binaries.find()
        if self.temporary:
            self.directory = Path(tempfile.mkdtemp(prefix="pulse."))
        self._make_directory()
        with status.open_lock(self.directory, "start.lock") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            users = status.open_lock(self.directory, "users.lock")
            try:
                # Waits for a server that is stopping.
                fcntl.flock(users, fcntl.LOCK_SH)
                self._start(found)
            except BaseException:
                users.close()
                raise
        self._users = users
        return self

    def close(self) -> None:
        """Stop using it. Without other users the server has stopped after this."""
        if self._users is None:
            return
        self._users.close()
        self._users = None
        # The keeper takes the lock at once unless another user holds it.
        for _ in range(30):
            if status.is_stopping(self.directory):
                status.wait_until_stopped(self.directory)
                if self.temporary:
                    shutil.rmtree(self.directory, ignore_errors=True)
                return
            time.sleep(0.01)

    def __enter__(self) -> "EmbeddedServer":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    # -- use --------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """The database as the role pulse, which owns it, over the private socket."""
        return self.dsn_for("pulse", self.database)

    @property
    def tcp_dsn(self) -> str | None:
        """The same over 127.0.0.1 with its password, if it has a port."""
        running = status.read(self.directory)
        if running is None or not running.address:
            return None
        password = (self.directory / "password").read_text().strip()
        return f"postgresql://pulse:{password}@127.0.0.1:{running.port}/{self.database}"

    def dsn_for(self, role: str, database: str) -> str:
        running = status.read(self.directory)
        if running is None:
            raise EmbeddedError(f"no server runs on {self.directory}")
        port = "" if running.port == "5432" else f"&port={running.port}"
        return f"postgresql://{role}@/{database}?host={running.socket}{port}"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    # -- making -----------------------------------------------------------------------

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() == 0:
                # The server's account has to reach data and run below it.
                self.directory.chmod(0o711)
        except OSError as error:
            raise EmbeddedError(
                f"cannot make {self.directory}: {error.strerror}.\n"
                "Choose a directory of your own: --data-dir, or PULSE_HOME."
            ) from error

    def _start(self, found: binaries.Binaries) -> None:
        cluster = self.directory / "data"
        user = binaries.account(cluster)
        contents.write_share(self.directory)
        if status.is_ready(self.directory) and status.has_keeper(self.directory):
            self._check_port()
        else:
            if user:
                self._report(f"server runs as {user.name}")
                found = binaries.usable(found, user)
            if not cluster.exists():
                self._report(f"making a cluster in {cluster}")
                self._make_cluster(found, cluster, user)
            contents.require_version(cluster, binaries.MAJOR)
            self._report("starting PostgreSQL")
            self._launch(found, cluster, user)
        self._report(f"pulse in database {self.database}")
        contents.prepare(
            self.dsn_for("postgres", "postgres"),
            self.dsn,
            (self.directory / "password").read_text().strip(),
        )

    def _make_cluster(
        self, found: binaries.Binaries, cluster: Path, user: "binaries.Account | None"
    ) -> None:
        making = self.directory / "data.making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        password = making.with_name("password")
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        if user:
            for path in (making, password):
                os.chown(path, user.uid, user.gid)
            if not status.reachable(self.directory):
                raise EmbeddedError(
                    f"{user.name}, as whom the server runs, cannot reach "
                    f"{self.directory}.\n"
                    "Choose a directory that others can pass through, e.g. "
                    "/var/lib/pulse: --data-dir, or PULSE_HOME."
                )
        binaries.initdb(found, making, password, user, sync=not self.temporary)
        making.rename(cluster)

    def _launch(
        self, found: binaries.Binaries, cluster: Path, user: "binaries.Account | None"
    ) -> None:
        run = self._socket_directory(user)
        if self.log.exists() and self.log.stat().st_size > LARGEST_LOG:
            self.log.unlink()
        settings = {
            "unix_socket_directories": str(run),
            "listen_addresses": "" if self.port is None else "127.0.0.1",
            "port": str(5432 if self.port is None else self.port or status.free_port()),
            "extension_control_path": f"{self.directory / 'share'}:$system",
            "max_connections": "200",
            "max_wal_size": "256MB",
        } | self._settings
        command = [str(found.program("postgres")), "-D", str(cluster)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            begin = log.tell()
            subprocess.run(
                [
                    *(sys.executable, "-I", keeper.__file__),
                    *(str(self.directory),),
                    *(str(user.uid if user else -1), str(user.gid if user else -1)),
                    *(str(int(self.temporary)), *command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=found.environment,
                cwd="/",
                start_new_session=True,
                check=True,
            )
        patience = time.monotonic() + PATIENCE
        while not status.is_ready(self.directory):
            if not status.has_keeper(self.directory) or time.monotonic() > patience:
                with self.log.open("rb") as written:
                    written.seek(begin)
                    text = written.read().decode(errors="replace")[-2000:].strip()
                raise EmbeddedError(f"PostgreSQL did not start ({self.log}):\n{text}")
            time.sleep(0.01)

    def _socket_directory(self, user: "binaries.Account | None") -> Path:
        run = self.directory / "run"
        if len(os.fsencode(run)) > LONGEST_SOCKET_DIRECTORY:
            run = Path(tempfile.mkdtemp(prefix="pulse.", dir="/tmp"))
        run.mkdir(mode=0o700, exist_ok=True)
        if user:
            os.chown(run, user.uid, user.gid)
        (self.directory / "socket").write_text(str(run))
        return run

    def _check_port(self) -> None:
        running = status.read(self.directory)
        if running is None or self.port is None:
            return
        if not running.address:
            raise EmbeddedError(
                f"the server on {self.directory} runs without TCP.\n"
                "End the programs that use it, then start it with a port."
            )
        if self.port and running.port != str(self.port):
            raise EmbeddedError(
                f"the server on {self.directory} listens on port {running.port}."
            )
