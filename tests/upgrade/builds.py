"""pulse in three versions: one from before, the source, and one that is made of it.

0.9 is a build that is kept here (pulse--0.9.sql.gz), 1.0 the source with 0.9--1.0.sql
as the upgrade by hand, 1.1 the source with the changes below and 1.0--1.1.sql.
"""

from __future__ import annotations

import gzip
import re
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
            "                b.group_key,\n",
            "                b.group_key,\n                b.note,\n",
        ),
        (
            "            d.name\n        FROM",
            "            d.name,\n            d.note\n        FROM",
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
RENAMED = ("_fail_runs", "_end_runs")


@dataclass(frozen=True)
class Builds:
    """Where each version was built, as a checkout has it: pulse.control and build/."""

    base: Path

    def tree(self, version: str) -> Path:
        return self.base / version / "extension"

    def plain(self, version: str) -> str:
        if version == "0.9":
            return plain(old_script())
        return (self.tree(version) / "build/pulse.sql").read_text()

    def extension_scripts(self) -> dict[str, str]:
        """What a server needs to install each version and to upgrade from each."""
        found = {"pulse--0.9.sql": old_script()}
        for version in ("1.0", "1.1"):
            for path in (self.tree(version) / "build").glob("pulse--*.sql"):
                found[path.name] = path.read_text()
        return found


def make(base: Path) -> Builds:
    builds = Builds(base)
    for version, steps in (("1.0", ["0.9--1.0"]), ("1.1", ["0.9--1.0", "1.0--1.1"])):
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


def old_script() -> str:
    return gzip.decompress((HERE / "pulse--0.9.sql.gz").read_bytes()).decode()


def plain(script: str) -> str:
    """What the plain product of an extension script is: other head, no dump marks."""
    body = re.split(r"^\\echo .*$", script, flags=re.MULTILINE)[1]
    body = body.partition("-- part: pg_dump")[0]
    return f"BEGIN;\nSET LOCAL check_function_bodies = off;\n{body}\nCOMMIT;\n"
