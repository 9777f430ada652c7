"""pulse in two versions: 1.0 is the source, 1.1 the source with changes.

The changes are those below, and 1.0--1.1.sql as the upgrade by hand.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools import paths

HERE = Path(__file__).resolve().parent

# part -> (what it says, what it says in 1.1); 1.0--1.1.sql becomes schema/newer.sql.
CHANGES = {
    # A changed body that hands out what is new.
    "claim/claim": [
        (
            "                    b.group_key,\n",
            "                    b.group_key,\n                    b.note,\n",
        ),
        (
            "            p.name\n        FROM",
            "            p.name,\n            p.note\n        FROM",
        ),
    ],
    # A changed signature: an argument more, which old workers do not know.
    "claim/exchange": [
        (
            "    completed bigint [] DEFAULT NULL\n)",
            "    completed bigint [] DEFAULT NULL,\n    region text DEFAULT NULL\n)",
        ),
        (
            "    text, jsonb, jsonb, jsonb, text [], interval, bigint []\n) IS",
            "    text, jsonb, jsonb, jsonb, text [], interval, bigint [], text\n) IS",
        ),
    ],
}
# A private function with another name, in the middle of a report.
RENAMED = ("fail_runs", "end_failed_runs")


@dataclass(frozen=True)
class Builds:
    """Where each version was built, as a checkout has it: pulse.control and build/."""

    base: Path

    def tree(self, version: str) -> Path:
        return self.base / version / "extension"

    def plain(self, version: str) -> str:
        return (self.tree(version) / "build/pulse.sql").read_text()

    def extension_scripts(self) -> dict[str, str]:
        """What a server needs to install each version and to upgrade from each."""
        found: dict[str, str] = {}
        for version in ("1.0", "1.1"):
            for path in (self.tree(version) / "build").glob("pulse--*.sql"):
                found[path.name] = path.read_text()
        return found


def make(base: Path) -> Builds:
    builds = Builds(base)
    steps: list[str]
    for version, steps in (("1.0", []), ("1.1", ["1.0--1.1"])):
        tree = builds.tree(version)
        shutil.copytree(
            paths.EXTENSION, tree, ignore=shutil.ignore_patterns("build", "README.md")
        )
        for step in steps:
            shutil.copy(HERE / f"{step}.sql", tree / "upgrades")
    change(builds.tree("1.1"))
    for version in ("1.0", "1.1"):
        tree = builds.tree(version)
        subprocess.run(["make", "-s", "-C", str(tree)], check=True)
    return builds


def change(tree: Path) -> None:
    control = tree / "pulse.control"
    control.write_text(control.read_text().replace("= '1.0'", "= '1.1'"))
    shutil.copy(HERE / "1.0--1.1.sql", tree / "sql/schema/newer.sql")
    makefile = tree / "Makefile"
    listed = makefile.read_text()
    makefile.write_text(listed.replace("records stats\n", "records stats newer\n"))
    for path in (tree / "sql").rglob("*.sql"):
        path.write_text(path.read_text().replace(*RENAMED))
    for part, edits in CHANGES.items():
        path = tree / f"sql/{part}.sql"
        text = path.read_text()
        for before, after in edits:
            assert before in text, f"{part} changed: adapt CHANGES in {__file__}"
            text = text.replace(before, after)
        path.write_text(text)
