"""Every linter, two at a time; the output of those that found something.

python -m tools.lint
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import paths

# Where the programs are: the venv, then the packages from npm.
BINS = [Path(sys.executable).parent, paths.JS / "node_modules/.bin"]
SQL = sorted(
    str(p.relative_to(paths.ROOT)) for p in (paths.EXTENSION / "sql").rglob("*.sql")
)

PAGE = "python/pulse/web/static"

# The longest first.
CHECKS: dict[str, list[str]] = {
    "mypy": ["mypy", "--no-error-summary"],
    "pyright": ["basedpyright", "--pythonpath", sys.executable],
    "sqlfluff": ["sqlfluff", "lint", "--nocolor", "--disable-progress-bar", *SQL],
    "SQL in bodies": ["python", "-m", "tools.lint_sql", *SQL],
    "ruff": ["ruff", "check", "--quiet", "."],
    "sync twins": ["python", "-m", "tools.twins", "--check"],
    "ruff format": ["ruff", "format", "--quiet", "--diff", "."],
    "imports": ["lint-imports", "--no-cache"],
    "types of the page": ["tsc", "--project", "tools/js"],
    "eslint": ["eslint", "--config", "tools/js/eslint.config.js", PAGE],
    "hadolint": ["hadolint", "docker/Dockerfile.pg"],
}


def check(name: str, command: Sequence[str]) -> "str | None":
    """What the check found, None when all is well."""
    program, *arguments = command
    found = [place / program for place in BINS if (place / program).exists()]
    if not found:
        print(f"lint: {name} is not installed for this platform, left out")
        return None
    started = time.monotonic()
    done = subprocess.run(
        [str(found[0]), *arguments],
        cwd=paths.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    took = time.monotonic() - started
    if done.returncode == 0:
        print(f"lint: {name} ok ({took:.1f} s)", flush=True)
        return None
    passing = ("PASS", "All Finished!")
    shown = "\n".join(x for x in done.stdout.splitlines() if not x.endswith(passing))
    return f"lint: {name} found:\n{shown}\n"


def run(checks: Mapping[str, Sequence[str]]) -> int:
    with ThreadPoolExecutor(2) as pool:
        found = [text for text in pool.map(check, checks, checks.values()) if text]
    print("".join(found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run(CHECKS))
