"""The version of pulse: where it stands, how it is released and raised.

    python -m tools.release release 1.0    check everything, date the changelog
    python -m tools.release next 1.1       after the tag: freeze 1.0, begin 1.1

Neither commits, tags or publishes; both say what to do next. X.Y in the extension is
X.Y.0 where a format wants three numbers.
"""

import datetime
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

from tools import paths

UNRELEASED = "unreleased"
MIGRATIONS = "python/pulse/django/migrations"


def read(name: str) -> str:
    return (paths.ROOT / name).read_text()


def write(name: str, text: str) -> None:
    (paths.ROOT / name).write_text(text)


def control() -> str:
    """The version of the source: that of the extension."""
    found = re.search(
        r"^default_version = '(.+)'$", read("extension/pulse.control"), re.M
    )
    assert found is not None
    return found[1]


def changelog() -> tuple[str, str]:
    """The newest section: its version, and its date or that it is unreleased."""
    found = re.search(r"^## (\S+) \((.+)\)$", read("CHANGELOG.md"), re.MULTILINE)
    assert found is not None
    return found[1], found[2]


def versions() -> dict[str, str]:
    """Every place that states the version of the source, as X.Y."""
    meta = json.loads(read("META.json"))
    provided = meta["provides"]["pulse"]
    project = re.search(r'^version = "(.+)"$', read("pyproject.toml"), re.MULTILINE)
    script = re.fullmatch(r"extension/build/pulse--(.+)\.sql", provided["file"])
    assert project is not None
    assert script is not None
    return {
        "extension/pulse.control": control(),
        "pyproject.toml": short(project[1]),
        "META.json": short(meta["version"]),
        "META.json, provides": short(provided["version"]),
        "META.json, file": script[1],
        "CHANGELOG.md": changelog()[0],
    }


def short(version: str) -> str:
    """X.Y.0 as X.Y."""
    return version.removesuffix(".0") if version.count(".") == 2 else version


def raise_to(old: str, new: str) -> None:
    """Every place but the changelog."""
    changes: dict[str, list[tuple[str, str]]] = {
        "extension/pulse.control": [(f"= '{old}'", f"= '{new}'")],
        "pyproject.toml": [(f'version = "{old}.0"', f'version = "{new}.0"')],
        "META.json": [
            # Not that of the format, which has the same shape and comes last.
            (
                f'   "version": "{old}.0",\n   "maint',
                f'   "version": "{new}.0",\n   "maint',
            ),
            (f'"version": "{old}.0"\n', f'"version": "{new}.0"\n'),
            (f"pulse--{old}.sql", f"pulse--{new}.sql"),
        ],
    }
    for name, pairs in changes.items():
        text = read(name)
        for before, after in pairs:
            if before not in text:
                raise SystemExit(f"release: {name} has no {before!r}")
            text = text.replace(before, after, 1)
        write(name, text)


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"release: {otherwise}")


def git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )


def release(version: str) -> None:
    wrong = {place: found for place, found in versions().items() if found != version}
    require(not wrong, f"these are not {version}: {wrong}")
    require(not git("status", "--porcelain").stdout, "there are uncommitted changes")
    require(changelog()[1] == UNRELEASED, f"{version} was released on {changelog()[1]}")
    for earlier in (paths.EXTENSION / "released").glob("pulse--*.sql"):
        step = f"{earlier.stem.removeprefix('pulse--')}--{version}.sql"
        require(
            (paths.EXTENSION / "upgrades" / step).exists(),
            f"extension/upgrades/{step} is missing",
        )
    today = datetime.datetime.now(datetime.timezone.utc).date()
    heading = f"## {version} ({UNRELEASED})"
    write(
        "CHANGELOG.md", read("CHANGELOG.md").replace(heading, f"## {version} ({today})")
    )
    print(
        f"release: CHANGELOG.md is dated. When `make test` is green:\n"
        f"    git commit -am 'release: {version}'\n"
        f"    git tag -a v{version} -m {version}\n"
        f"    git push --follow-tags   (the tag builds and publishes)\n"
        f"    make next-version VERSION=…"
    )


def begin_next(version: str) -> None:
    old = control()
    require(changelog()[1] != UNRELEASED, f"{old} is not released yet")
    require(
        tuple(map(int, version.split("."))) > tuple(map(int, old.split("."))),
        f"{version} is not after {old}",
    )
    same = git("diff", "--quiet", f"v{old}", "--", "extension")
    require(same.returncode == 0, f"extension/ is not what the tag v{old} has")
    subprocess.run(["make", "-s", "-C", str(paths.EXTENSION)], check=True)
    script = f"pulse--{old}.sql"
    shutil.copy(paths.BUILD / script, paths.EXTENSION / "released" / script)
    (paths.EXTENSION / f"upgrades/{old}--{version}.sql").write_text(
        f"-- From {old} to {version}: what CREATE OR REPLACE cannot do (README.md).\n"
    )
    add_migration(version)
    raise_to(old, version)
    text = read("CHANGELOG.md")
    at = text.index(f"## {old} (")
    write("CHANGELOG.md", f"{text[:at]}## {version} ({UNRELEASED})\n\n{text[at:]}")
    print(f"release: {old} is frozen, the source is {version}")


def add_migration(version: str) -> None:
    """Django's migrate upgrades pulse by a migration of each version."""
    found = sorted((paths.ROOT / MIGRATIONS).glob("0*.py"))
    name = f"{len(found) + 1:04}_pulse_{version.replace('.', '_')}"
    write(
        f"{MIGRATIONS}/{name}.py",
        "from django.db import migrations\n\n"
        "from pulse.django.operations import InstallPulse\n\n\n"
        "class Migration(migrations.Migration):\n    atomic = False\n"
        f'    dependencies = [("pulse", "{found[-1].stem}")]\n'
        f'    operations = [InstallPulse("{version}")]\n',
    )


def main() -> None:
    verbs: dict[str, Callable[[str], None]] = {"release": release, "next": begin_next}
    if len(sys.argv) != 3 or sys.argv[1] not in verbs:
        raise SystemExit(__doc__)
    require(re.fullmatch(r"\d+\.\d+", sys.argv[2]), "VERSION is two numbers, as in 1.1")
    verbs[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
