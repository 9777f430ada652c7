"""pgTAP files as pytest items: each on every server, some over both products."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import summary
from tools import majors, servers
from tools.servers import Server

LINE = re.compile(r"^(?P<bad>not )?ok (?P<number>\d+)(?P<name>.*)$")
HELPERS = Path(__file__).parent / "sql/helpers/helpers.sql"
# A file that takes seconds runs on the first server and on those beside it.
IN_TURN = re.compile(r"^-- in turn: \S", re.MULTILINE)
PLAN = re.compile(r"^1\.\.(?P<planned>\d+)")


# The plain script makes the same objects with the same bodies, which the tests of
# upgrades compare in the catalog. Here run the rules that ask how pulse was installed,
# and those of the contract as a whole.
PLAIN = {
    *("access", "health", "common/version.sql", "maintenance/watchdog.sql"),
    *("guarantees.sql", "hostile_arguments.sql", "hygiene.sql", "states.sql"),
}


def variants(path: Path) -> list[tuple[int, str]]:
    """(major, product): on every server, unless the file says "-- in turn: why"."""
    first = servers.primary().major
    known = sorted(servers.installs())
    if IN_TURN.search(path.read_text()):
        known = [first, *majors.beside()]
    found = [(major, "extension") for major in known]
    name = path.relative_to(HELPERS.parents[1])
    if {str(name), name.parts[0]} & PLAIN:
        found.append((first, "plain"))
    return found


class File(pytest.File):
    def __init__(self, *, pool: Callable[[int], Server], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.pool = pool

    def collect(self) -> Iterator[pytest.Item]:
        for major, product in variants(self.path):
            yield Item.from_parent(
                self,
                name=f"{self.path.stem}[pg{major}-{product}]",
                major=major,
                product=product,
            )


class Item(pytest.Item):
    def __init__(self, *, major: int, product: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.major = major
        self.product = product

    def runtest(self) -> None:
        parent = self.parent
        assert isinstance(parent, File)
        server = parent.pool(self.major)
        if not server.has("pgtap"):
            pytest.skip("pgTAP is not here: `make setup` gets it where apt works")
        database = server.create(product=self.product)
        try:
            output = server.psql(
                database,
                *("-P", "pager=off", "-f", str(HELPERS), "-f", str(self.path)),
                check=False,
            )
        finally:
            server.drop(database)
        self.user_properties += [
            (summary.SERVER, str(server.install)),
            (summary.TAP, sum(map(bool, map(LINE.match, output.splitlines())))),
        ]
        faults = judge(output)
        if faults:
            raise Failed("\n".join(faults))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> Any:
        if isinstance(excinfo.value, (Failed, servers.Broken)):
            return f"{self.name}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class Failed(Exception):
    pass


def judge(output: str) -> list[str]:
    """What is wrong with a TAP stream; an empty list when all is well."""
    faults: list[str] = []
    planned: int | None = None
    ran = 0
    failing = False
    for line in output.splitlines():
        found = LINE.match(line)
        if found:
            ran += 1
            failing = bool(found["bad"]) and "# TODO" not in line
            if failing:
                faults.append(line)
        elif PLAN.match(line):
            planned = int(PLAN.match(line)["planned"])  # type: ignore[index]
            failing = False
        elif line.startswith("#"):
            if failing or line.startswith("# Looks like"):
                faults.append(f"    {line}")
        elif line.strip():
            # psql says nothing else in a file that goes well.
            faults.append(f"    {line}")
    if planned is None:
        faults.append("no plan: the file needs SELECT plan(n) and SELECT finish()")
    elif ran != planned:
        faults.append(f"planned {planned} tests but ran {ran}")
    return faults
