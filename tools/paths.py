"""Where things are: the checkout, its build, and a cache the server's user can read."""

import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "extension"
BUILD = EXTENSION / "build"
VENV = ROOT / ".venv"
# The tools that check the JavaScript of the page, from npm.
JS = ROOT / "tools/js"


def server_user() -> "str | None":
    """Whom servers run as: PostgreSQL refuses root. None means ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def cache() -> Path:
    """.cache in the checkout; as root below /var/cache when others cannot read that."""
    here = ROOT / ".cache"
    if server_user() is None or open_to_all(ROOT):
        return here
    name = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    return Path("/var/cache") / f"pulse-dev-{name}"


def keep_bytecode() -> None:
    """Let each Python below this process find what another has compiled.

    Where bytecode is not written, each program compiles all that it imports, which is
    half of the time that `pulse web` takes to start. In a place of its own, bytecode is
    left neither in the checkout nor in a copy of it.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache/bytecode")


def open_to_all(path: Path) -> bool:
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def plproxy() -> "Path | None":
    """Debian's PL/Proxy for PostgreSQL 15, unpacked by setup: where its usr/ is."""
    found = cache() / "plproxy/usr"
    library = found / "lib/postgresql/15/lib/plproxy.so"
    return found if library.exists() else None


def prometheus(program: str) -> "Path | None":
    """prometheus or promtool, installed or unpacked by setup."""
    found = shutil.which(program) or cache() / "prometheus/usr/bin" / program
    return Path(found) if Path(found).exists() else None


def node() -> bool:
    """Whether node and npm are here."""
    return shutil.which("node") is not None and shutil.which("npm") is not None
