"""make check: lint what changed against main, and run the tests of that, in a minute.

    python -m tools.check [BASE]

BASE is main unless given. It chooses tests by name (`suites` says how), runs them on
one server and stops after the time it has; `make test` runs everything.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools import lint, majors, paths, servers

# The last test that begins within this time ends within the minute.
SECONDS = float(os.environ.get("PULSE_CHECK_SECONDS", "45"))
# A change of these has its tests here; longest first.
SUITES = {
    "python/pulse/cli": ["tests/cli"],
    "python/pulse/web": ["tests/web"],
    "python/pulse/django": ["tests/django"],
    "python/pulse/embedded": ["tests/cli/test_embedded.py"],
    "python/pulse": ["tests/python"],
    "bench": ["tests/project/test_bench.py"],
    "examples": ["tests/project/test_examples.py"],
    "extension/upgrades": ["tests/upgrade"],
    "extension/packaging": ["tests/engine/test_products.py", "tests/upgrade"],
    "docs": [
        "tests/project/test_coverage_of_contract.py",
        "tests/project/test_docs.py",
    ],
    "tests/chaos": ["tests/chaos/test_invariants.py"],
    "tests/sql/helpers": ["tests/sql"],
    "tools": ["tests/project/test_tools.py"],
}
VERSIONED = {"pyproject.toml", "META.json", "CHANGELOG.md", "extension/pulse.control"}


def git(*arguments: str) -> list[str]:
    if shutil.which("git") is None:
        raise SystemExit("check: git, which knows what changed, is not here")
    done = subprocess.run(
        ["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed(base: str) -> list[str]:
    """Committed since base, not committed yet, and new files; what is gone is not."""
    start = git("merge-base", base, "HEAD") or git(
        "merge-base", f"origin/{base}", "HEAD"
    )
    if not start:
        raise SystemExit(
            f"check: there is no {base} to compare with; name another BASE"
        )
    found = {
        *git("diff", "--name-only", start[0]),
        *git("ls-files", "--others", "--exclude-standard"),
    }
    return sorted(name for name in found if (paths.ROOT / name).exists())


def suites(files: Iterable[str]) -> list[str]:
    """The tests of these files, the nearest first: a changed test is its own."""
    own: list[str] = []
    near: list[str] = []
    for name in files:
        path = Path(name)
        if re.fullmatch(
            r"tests/(.*/test_\w+\.py|sql/(?!helpers/).*\.sql|.*\.spec)", name
        ):
            own.append(name)
        elif name.startswith("extension/sql/"):
            near += of_part(path)
        elif name in VERSIONED:
            near.append("tests/project/test_versions.py")
        else:
            for folder in sorted(SUITES, key=len, reverse=True):
                if name.startswith(folder):
                    near += SUITES[folder]
                    break
    # Of the changed tests those in SQL come first: they are quick.
    own.sort(key=lambda name: name.endswith(".py"))
    return [t for t in dict.fromkeys([*own, *near]) if (paths.ROOT / t).exists()]


def of_part(path: Path) -> list[str]:
    """Its pgTAP file, the hygiene, and specs that call one of its verbs.

    A part without a pgTAP file of its own name is tested by those of its folder.
    """
    folder = paths.ROOT / "tests/sql" / path.parent.name
    tests = sorted(folder.glob("*.sql"))
    own = [test for test in tests if test.name == path.name] or tests
    verbs = re.findall(r"^CREATE FUNCTION pulse\.([a-z]\w*)", read(path), re.MULTILINE)
    called = re.compile(r"\bpulse\.(" + "|".join(verbs or ["-"]) + r")\(")
    specs = sorted((paths.ROOT / "tests/isolation/specs").glob("*.spec"))
    return [
        *(str(test.relative_to(paths.ROOT)) for test in own),
        "tests/sql/hygiene.sql",
        *(str(s.relative_to(paths.ROOT)) for s in specs if called.search(read(s))),
    ]


def read(path: Path) -> str:
    return (paths.ROOT / path).read_text()


def linters(files: Iterable[str]) -> dict[str, list[str]]:
    """The checks of `make lint`, each over the changed files alone where it can."""
    kept = list(files)
    python = [name for name in kept if name.endswith(".py")]
    sql = [name for name in kept if re.fullmatch(r"extension/sql/[\w/]+\.sql", name)]
    page = [name for name in kept if name.endswith(".js")]
    found: dict[str, list[str]] = {}
    for name, command in lint.CHECKS.items():
        if sql and command[-len(lint.SQL) :] == lint.SQL:
            found[name] = [*command[: -len(lint.SQL)], *sql]
        elif python and name.startswith("ruff"):
            found[name] = [*command[:-1], *python]
        elif (
            (python and name == "mypy")
            or (page and command[0] in ("tsc", "eslint"))
            or set(command) & set(kept)
        ):
            found[name] = command
    return found


class Budget:
    """Ends the run when its time is over, and says so. One test runs in any case."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.chosen = self.ran = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.chosen = len(session.items)

    def pytest_runtest_logfinish(self) -> None:
        self.ran += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if self.ran and time.monotonic() > self.until:
            item.session.shouldstop = f"{self.seconds:.0f} seconds are over"


def other_servers() -> str:
    """For pytest -k: one server and one product are enough here."""
    first = servers.primary().major
    others = [f"pg{major}" for major in servers.installs() if major != first]
    return " and ".join(f"not {name}" for name in [*others, f"pg{first}-plain"])


def main() -> int:
    started_at = time.monotonic()
    base = sys.argv[1] if len(sys.argv) > 1 else "main"
    files = changed(base)
    if not files:
        print(f"check: nothing changed against {base}")
        return 0
    with ThreadPoolExecutor(1) as beside:
        linted = beside.submit(lint.run, linters(files))
        tested = test(files, base, started_at)
        return linted.result() or tested


def test(files: list[str], base: str, started_at: float) -> int:
    """Run the tests of these files while there is time; the status of the run."""
    tests = suites(files)
    print(f"check: {len(files)} files changed against {base}; tests: {' '.join(tests)}")
    if not tests:
        return 0
    os.environ.setdefault(majors.SWITCH, str(servers.primary().major))
    budget = Budget(SECONDS - (time.monotonic() - started_at))
    chosen = ["-x", "-m", "not slow", "-k", other_servers(), *tests]
    status = pytest.main(chosen, plugins=[budget])
    if budget.ran < budget.chosen:
        print(f"check: {budget.ran} of {budget.chosen} tests ran; `make test` runs all")
    # Stopped by the budget, or nothing left after -k: neither is a failure.
    stopped = budget.ran < budget.chosen and time.monotonic() > budget.until
    harmless = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    if stopped and status == pytest.ExitCode.INTERRUPTED:
        return 0
    return 0 if status in harmless else int(status)


if __name__ == "__main__":
    sys.exit(main())
