"""What a run of the tests must find here; a switch for CI.

Where PostgreSQL 16, pg_cron or a browser is missing, tests that need it are skipped,
and a run can be green without having tried much. PULSE_REQUIRE=15,16,18,pgtap,pg_cron
names what has to be there: the run then fails at once where it is not.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools import paths, servers

SWITCH = "PULSE_REQUIRE"


def of_the_distribution(extension: str) -> bool:
    install = servers.system()
    return install is not None and install.has(extension)


def newer_python() -> "str | None":
    """A Python for Django 6, which needs 3.12: ours, one on the PATH, or pyenv's."""
    if sys.version_info >= (3, 12):
        return sys.executable
    named = [f"python3.{minor}" for minor in (14, 13, 12)]
    found = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    for program in (*filter(None, map(shutil.which, named)), *map(str, found)):
        # A shim may lead to nothing, and Debian splits venv off.
        ask = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 12))"
        if subprocess.run([program, "-c", ask], capture_output=True).returncode == 0:
            return program
    return None


KNOWN: dict[str, Callable[[], bool]] = {
    "pgtap": lambda: of_the_distribution("pgtap"),
    "pg_cron": lambda: of_the_distribution("pg_cron"),
    "plpgsql_check": lambda: of_the_distribution("plpgsql_check"),
    "isolationtester": lambda: any(
        install.isolationtester for install in servers.installs().values()
    ),
    "pgbouncer": lambda: servers.pgbouncer() is not None,
    "chromium": lambda: shutil.which("chromium") is not None,
    "plproxy": lambda: paths.plproxy() is not None,
    "patroni": lambda: (paths.cache() / "patroni/patroni").exists(),
    "promtool": lambda: paths.prometheus("promtool") is not None,
    "node": paths.node,
    "java": lambda: shutil.which("java") is not None,
    "python3.12": lambda: newer_python() is not None,
    "cc": lambda: shutil.which("cc") is not None,
}


def missing(wanted: "str | None" = None) -> list[str]:
    """Which of the names, separated by commas, are not here; those of the switch."""
    text = os.environ.get(SWITCH, "") if wanted is None else wanted
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if not name.isdigit() and name not in KNOWN]
    if unknown:
        raise ValueError(
            f"{SWITCH} names {', '.join(unknown)}; it can name versions of PostgreSQL, "
            + ", ".join(KNOWN)
        )
    installed = servers.installs()
    return [
        name
        for name in names
        if not (int(name) in installed if name.isdigit() else KNOWN[name]())
    ]
