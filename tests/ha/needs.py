"""What a run needs beyond PostgreSQL: etcd of the distribution, Patroni of PyPI.

Both are unpacked below .cache and never installed. Patroni runs as the user of the
server, so its Python has to be one that this user can start.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tools import paths, setup

PATRONI = ["patroni[etcd3]", "psycopg[binary]"]


def etcd() -> Path | None:
    found = shutil.which("etcd") or paths.cache() / "etcd/usr/bin/etcd"
    return Path(found) if Path(found).exists() else None


def patroni() -> Path | None:
    """The directory to import it from."""
    found = paths.cache() / "patroni"
    return found if (found / "patroni/__main__.py").exists() else None


@cache
def python() -> str | None:
    """An interpreter for Patroni."""
    for program in (sys.executable, "/usr/bin/python3"):
        ask = [program, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        try:
            done = subprocess.run(
                ask, user=paths.server_user(), cwd="/", capture_output=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return program
    return None


def get() -> str | None:
    """Get what is missing; the reason where that did not work."""
    interpreter = python()
    if interpreter is None:
        return f"no Python that the user {paths.server_user()} can start"
    try:
        if etcd() is None:
            setup.say("unpacking etcd of the distribution below .cache")
            setup.unpack(["etcd-server"], paths.cache() / "etcd")
        if patroni() is None:
            setup.say("unpacking Patroni of PyPI below .cache")
            setup.must(
                *(sys.executable, "-m", "pip", "--python", interpreter, "install"),
                *("-q", "--disable-pip-version-check"),
                *("--target", paths.cache() / "patroni"),
                *PATRONI,
            )
    except (OSError, SystemExit) as error:
        return str(error)
    missing = [
        name
        for name, found in (("etcd", etcd()), ("Patroni", patroni()))
        if found is None
    ]
    return f"no {' and no '.join(missing)} here" if missing else None
