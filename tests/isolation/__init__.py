"""Isolation specs as pytest items, run by PostgreSQL's own isolation tester."""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import summary
from tools import servers
from tools.majors import beside
from tools.servers import Server

HERE = Path(__file__).parent
ONLY = re.compile(r"^# only on PostgreSQL (?P<majors>[\d, ]+): \S", re.MULTILINE)


def majors(spec: Path) -> list[int]:
    """Where a spec runs: on the first server and on those beside it.

    A spec that says "# only on PostgreSQL 15: why" runs there only."""
    found = ONLY.search(spec.read_text())
    installed = servers.installs()
    first = servers.primary().major
    known = [m for m in (first, *beside()) if installed[m].isolationtester]
    if found is None:
        return known
    return [
        major for major in known if str(major) in re.findall(r"\d+", found["majors"])
    ]


def run(
    server: Server,
    spec: Path,
    prepare: Callable[[str], None] = lambda _: None,
    patience: int = 60,
) -> str:
    """What the isolation tester prints for a spec in a fresh database.

    patience: how many seconds a step may wait."""
    tester = server.install.isolationtester
    assert tester is not None
    database = server.create(product="extension")
    try:
        prepare(server.dsn(database))
        done = subprocess.run(
            [str(tester), server.dsn(database)],
            input=spec.read_text(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**server.environ(database), "PGISOLATIONTIMEOUT": str(patience)},
            text=True,
            check=False,
        )
    finally:
        server.drop(database)
    return done.stdout


def expected(spec: Path) -> Path:
    return HERE / "expected" / f"{spec.stem}.out"


class File(pytest.File):
    def __init__(self, *, pool: Callable[[int], Server], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.pool = pool

    def collect(self) -> Iterator[pytest.Item]:
        for major in majors(self.path):
            yield Item.from_parent(
                self, name=f"{self.path.stem}[pg{major}]", major=major
            )


class Item(pytest.Item):
    def __init__(self, *, major: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.major = major

    def runtest(self) -> None:
        parent = self.parent
        assert isinstance(parent, File)
        wanted = expected(self.path)
        before = wanted.read_text() if wanted.exists() else ""
        server = parent.pool(self.major)
        after = run(server, self.path)
        self.user_properties += [
            (summary.SERVER, str(server.install)),
            (summary.PERMUTATIONS, after.count("starting permutation:")),
        ]
        if before != after:
            difference = difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                f"expected/{wanted.name}",
                f"PostgreSQL {self.major}",
                lineterm="",
            )
            raise Differs("\n".join(difference))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> Any:
        if isinstance(excinfo.value, Differs):
            return (
                f"{excinfo.value}\n\nIf the new output is right: "
                f"make isolation-accept SPEC={self.path.stem}"
            )
        if isinstance(excinfo.value, servers.Broken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class Differs(Exception):
    pass


def accept(name: str) -> None:
    """Write the expected output of one spec anew, from the primary server."""
    spec = HERE / "specs" / f"{name}.spec"
    with servers.temporary() as server:
        expected(spec).write_text(run(server, spec))
    print(f"wrote {expected(spec)}: read it before you commit it")
