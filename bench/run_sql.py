"""make bench-sql: measure the engine with pgbench, on a server started for it.

python -m bench.run_sql [--only e,c]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.harness import Bench, Scale
from bench.sections import SECTIONS, Goal, Section
from tools import paths

SETTINGS = (
    "shared_buffers",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "jit",
)


def machine(bench: Bench) -> dict[str, Any]:
    asked = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    values = bench.server.psql("postgres", "-F", "\n", "-c", f"SELECT {asked}")
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cores": os.cpu_count(),
        "memory_gb": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
        ),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "postgresql": bench.server.psql(
            "postgres", "-c", "SHOW server_version"
        ).strip(),
        "pulse": bench.server.psql(
            "postgres",
            "-c",
            "SELECT default_version FROM pg_available_extensions WHERE name = 'pulse'",
        ).strip(),
        "build": build(),
        "scale": asdict(bench.scale),
        "settings": dict(zip(SETTINGS, values.splitlines(), strict=True)),
    }


def build() -> str:
    """Which code was measured: figures of two builds are not to be mixed."""
    script = (paths.BUILD / "pulse.sql").read_bytes()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    digest = hashlib.sha256(script).hexdigest()[:12]
    return f"{digest} at {commit.stdout.strip() or 'no commit'}"


def print_machine(about: dict[str, Any]) -> None:
    print(
        f"pulse {about['pulse']} on PostgreSQL {about['postgresql']},"
        f" {about['system']}, {about['cores']} cores, {about['memory_gb']} GB,"
        f" load {about['load']}; build {about['build']}"
    )
    print(", ".join(f"{name} {value}" for name, value in about["settings"].items()))
    scale = about["scale"]
    print(
        f"runs of {scale['seconds']} s, medians of {scale['rounds']},"
        " 100-byte payloads, tick() once a second"
        + (", QUICK: the figures mean nothing" if scale["quick"] else ""),
        flush=True,
    )


def print_section(section: Section, took: float) -> None:
    table = [section.columns, *([str(cell) for cell in row] for row in section.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"\n{section.letter}) {section.title} ({took:.0f} s)")
    for row in table:
        first, *rest = row
        cells = [first.ljust(widths[0])]
        cells += [
            cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)
        ]
        print("   " + "   ".join(cells).rstrip())
    for note in section.notes:
        print(f"   {note}")
    sys.stdout.flush()


def print_summary(goals: list[Goal]) -> None:
    print("\nGoals, as ratios of this run where no unit is named")
    width = max((len(goal.name) for goal in goals), default=0)
    for goal in goals:
        print(f"   {goal.section})  {goal.name.ljust(width)}   {goal}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=os.environ.get("ONLY", ""), metavar="e,c")
    only = parser.parse_args().only
    chosen = [letter for letter in only.replace(",", " ").split() if letter]
    unknown = [letter for letter in chosen if letter not in SECTIONS]
    if unknown:
        parser.error(
            f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}"
        )
    # A kill ends it the way Ctrl-C does: the server is stopped and removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    bench = Bench(Scale.from_environment())
    try:
        about = machine(bench)
        print_machine(about)
        done: list[Section] = []
        for letter in chosen or SECTIONS:
            started = time.monotonic()
            done.append(SECTIONS[letter](bench))
            print_section(done[-1], time.monotonic() - started)
        goals = [goal for section in done for goal in section.goals]
        print_summary(goals)
        problems = [s for s in bench.scenarios if s["problems"]]
        print(
            f"\npulse.check() after each of {len(bench.scenarios)} scenarios:"
            f" {'clean' if not problems else f'{len(problems)} NOT CLEAN'}"
        )
        write(about, done, goals, bench)
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    finally:
        bench.close()
    return 1 if problems else 0


def write(
    about: dict[str, Any], sections: list[Section], goals: list[Goal], bench: Bench
) -> None:
    folder = Path(os.environ.get("BENCH_RESULTS", Path(__file__).parent / "results"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("sql-%Y%m%d-%H%M%S.json")
    document = {
        "machine": about,
        "sections": [asdict(section) for section in sections],
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
        "scenarios": bench.scenarios,
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"also in {os.path.relpath(path)}")


if __name__ == "__main__":
    sys.exit(main())
