"""The end of `make test`: servers, counts, skipped tests, and where the time went.

    pytest --summary [--times FILE]

A file's CPU time is that of its tests, of the programs they started and of the servers
of the run. It does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from tools import majors, servers
from tools.servers import Server

SLOWEST = 5
TICK = os.sysconf("SC_CLK_TCK")
# pytest.Item.user_properties travel from the workers of a parallel run by name.
CPU, TAP, PERMUTATIONS, SERVER = "cpu", "pgtap", "permutations", "server"


def used(running: Iterable[Server]) -> float:
    """CPU seconds of this process, its ended children and the servers so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for server in running:
        if server.process is not None:
            seconds += sum(map(of_process, family(server.process)))
    return seconds


def family(process: int) -> Generator[int]:
    """A process and those below it."""
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from family(int(child))


def of_process(process: int) -> float:
    """CPU seconds of a process and of its ended children; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # After the name: utime, stime, cutime and cstime are the 12th to the 15th field.
    return sum(map(int, fields[11:15])) / TICK


class Summary:
    def __init__(self, running: Callable[[], Iterable[Server]]) -> None:
        self.running = running
        self.last = used(running())
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.outcomes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        # By server: pgTAP files, assertions, specs, permutations.
        self.counts: dict[str, Counter[str]] = {}
        self.python = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = used(self.running())
        # A server that ended takes its time from the running ones to the children.
        report.user_properties.append((CPU, max(now - self.last, 0.0)))
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        noted: dict[str, Any] = dict(report.user_properties)
        self.wall[file] += report.duration
        self.cpu[file] += noted.get(CPU, 0.0)
        if report.skipped:
            self.outcomes["skipped"] += 1
            self.skipped[reason(report)] += 1
        elif report.failed:
            self.outcomes["failed"] += 1
        if report.when != "call" or report.skipped:
            return
        self.outcomes["passed"] += report.passed
        if SERVER not in noted:
            self.python += 1
            return
        count = self.counts.setdefault(str(noted[SERVER]), Counter())
        for name in (TAP, PERMUTATIONS):
            if name in noted:
                count[f"{name} files"] += 1
                count[name] += noted[name]

    def lines(self) -> list[str]:
        known = servers.installs()
        found = [
            "servers: " + (", ".join(str(known[m]) for m in sorted(known)) or "none"),
            f"isolation specs: PostgreSQL {servers.primary().major} and"
            f" {', '.join(map(str, majors.beside())) or 'no other'}"
            f" ({majors.SWITCH} chooses)",
        ]
        for server, count in sorted(self.counts.items()):
            parts = []
            if count[f"{TAP} files"]:
                parts.append(
                    f"{count[f'{TAP} files']} pgTAP files, {count[TAP]:,} assertions"
                )
            if count[f"{PERMUTATIONS} files"]:
                parts.append(
                    f"{count[f'{PERMUTATIONS} files']} isolation specs,"
                    f" {count[PERMUTATIONS]:,} permutations"
                )
            found.append(f"on {server}: " + "; ".join(parts))
        found.append(f"Python tests: {self.python:,}")
        found.append(
            "all tests: "
            + ", ".join(
                f"{self.outcomes[name]:,} {name}"
                for name in ("passed", "failed", "skipped")
            )
        )
        for why, times in self.skipped.most_common():
            found.append(f"skipped {times}: {why}")
        cpu, wall = sum(self.cpu.values()), sum(self.wall.values())
        found.append(
            f"slowest of {len(self.wall)} files, which took {cpu:,.0f} s of CPU"
            f" and {wall:,.0f} s:"
        )
        slowest = sorted(self.wall, key=self.wall.__getitem__, reverse=True)
        for file in slowest[:SLOWEST]:
            found.append(
                f"    {self.wall[file]:5.0f} s, CPU {self.cpu[file]:5.0f} s  {file}"
            )
        return found

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        if config.getoption("summary"):
            reporter.write_sep("=", "summary")
            for line in self.lines():
                reporter.write_line(line)
        target: str | None = config.getoption("times")
        if target is not None:
            Path(target).write_text(self.times())

    def times(self) -> str:
        """Seconds of CPU and of the clock for each file, the largest first."""
        return "".join(
            f"{self.cpu[file]:8.2f} {self.wall[file]:8.2f} {file}\n"
            for file in sorted(self.cpu, key=self.cpu.__getitem__, reverse=True)
        )


def reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, as it said."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return "without a reason"
