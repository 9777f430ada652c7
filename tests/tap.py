"""pgTAP files as pytest items: each on every server, and on 15 over both products."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import summary
from tools import servers
from tools.servers import Server

LINE = re.compile(r"^(?P<bad>not )?ok (?P<number>\d+)(?P<name>.*)$")
HELPERS = Path(__file__).parent / "sql/helpers/helpers.sql"
PLAN = re.compile(r"^1\.\.(?P<planned>\d+)")


def variants() -> list[tuple[int, str]]:
    """(major, product): the extension everywhere, the plain script on the first."""
    known = sorted(servers.installs())
    first = servers.primary().major
    return [(major, "extension") for major in known] + [(first, "plain")]


class File(pytest.File):
    def __init__(self, *, pool: Callable[[int], Server], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.pool = pool

    def collect(self) -> Iterator[pytest.Item]:
        for major, product in variants():
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
