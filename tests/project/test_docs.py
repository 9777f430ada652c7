"""Every command in the documentation is run, page by page, as it stands.

A page is README.md or docs/**.md. Its blocks run in order, in a fresh database `app`
with pulse and pg_cron (without what the page itself says CREATE EXTENSION for):

    ```sql          run by psql
    ```bash run     run by bash, beside Makefile, extension/ and examples/; `make
                    install` writes below DESTDIR, into a directory of the test
    ```sql norun    (or bash norun) shown only; the line above it says why:
                    <!-- not run: the reason -->
    <!-- sql        statements that are run but not shown, up to -->

Lines are kept in place, so that psql's error names the line of the page.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tools import paths, servers
from tools.servers import Server

# Made from the catalog: its blocks are signatures, not statements.
GENERATED = [paths.ROOT / "docs/reference.md"]
PAGES = [
    paths.ROOT / "README.md",
    *(p for p in sorted((paths.ROOT / "docs").rglob("*.md")) if p not in GENERATED),
]
PROSE = [
    *PAGES,
    *(paths.ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(paths.EXTENSION / "README.md", paths.ROOT / "tests/README.md"),
]


def name(page: Path) -> str:
    return str(page.relative_to(paths.ROOT))


@dataclass
class Block:
    """One fenced block; lines are those between the fences."""

    tag: str
    above: str
    start: int
    lines: list[str] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.tag in ("sql", "bash run", "hidden")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    open_block: Block | None = None
    end = ""
    above = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if open_block is not None:
            if line.strip() == end:
                open_block = None
            else:
                open_block.lines.append(line)
        elif line == "<!-- sql":
            open_block, end = Block("hidden", above, number), "-->"
            found.append(open_block)
        elif fence := re.fullmatch(r"\s*```(.*)", line):
            open_block, end = Block(fence[1].strip(), above, number), "```"
            found.append(open_block)
        if line.strip():
            above = line
    assert open_block is None, f"{name(page)} has a block without an end"
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        where = f"{name(page)}:{block.start}"
        if block.tag.split(" ")[0] not in ("sql", "bash"):
            continue
        assert block.tag in ("sql", "sql norun", "bash run", "bash norun"), (
            f"{where} is tagged {block.tag!r}"
        )
        if block.tag.endswith("norun"):
            assert re.fullmatch(r"<!-- not run: .{10,} -->", block.above), (
                f"{where} does not say why it is not run"
            )


@pytest.fixture(scope="module")
def docs_server() -> Iterator[Server]:
    """A server whose pg_cron, if it has one, serves the database app."""
    install = servers.primary()
    settings = {"shared_preload_libraries": "pg_cron", "cron.database_name": "app"}
    with Server(install, settings if install.has("pg_cron") else {}) as server:
        yield server


@pytest.fixture
def app(docs_server: Server) -> Iterator[Server]:
    """The server, with whatever databases and roles a page makes dropped afterwards."""

    def made() -> set[str]:
        return set(
            docs_server.psql(
                "postgres",
                "-c",
                "SELECT 'DATABASE ' || quote_ident(datname) FROM pg_database UNION ALL"
                " SELECT 'ROLE ' || quote_ident(rolname) FROM pg_roles",
            ).splitlines()
        )

    docs_server.template("extension")
    before = made()
    yield docs_server
    for thing in sorted(made() - before):
        force = " WITH (FORCE)" if thing.startswith("DATABASE") else ""
        docs_server.psql("postgres", "-c", f"DROP {thing}{force}")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.runs for b in blocks(p))], ids=name
)
def test_every_command_works(page: Path, app: Server, tmp_path: Path) -> None:
    running = [block for block in blocks(page) if block.runs]
    text = "\n".join(map(str, running))
    app.create("app", product=None if "CREATE EXTENSION pulse" in text else "extension")
    if app.has("pg_cron"):
        if "CREATE EXTENSION pg_cron" not in text:
            app.psql("app", "-c", "CREATE EXTENSION pg_cron")
    elif "start_watchdog" in text or "pg_cron" in text:
        pytest.skip("this page needs pg_cron: `make setup` gets it where apt works")
    for part in ("Makefile", "extension", "examples"):
        (tmp_path / part).symlink_to(paths.ROOT / part)

    pending = ""
    for block in running:
        if block.tag != "bash run":
            # As many lines as the page has up to here.
            pending += "\n" * (block.start - pending.count("\n")) + f"{block}\n"
            continue
        run(app, tmp_path, page, psql(app), pending)
        pending = ""
        run(app, tmp_path, page, ["bash", "-euo", "pipefail"], str(block))
    run(app, tmp_path, page, psql(app), pending)


def psql(server: Server) -> list[str]:
    return [str(server.install.program("psql")), "-Xq", "-v", "ON_ERROR_STOP=1", "-f-"]


def run(server: Server, cwd: Path, page: Path, program: list[str], text: str) -> None:
    if not text.strip():
        return
    done = subprocess.run(
        program,
        input=text,
        cwd=cwd,
        env={**server.environ("app"), "DESTDIR": str(cwd / "installed")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{name(page)}:\n{done.stdout}"


def test_hello_world_completes_a_job(app: Server, tmp_path: Path) -> None:
    hello = str(next(b for b in blocks(paths.ROOT / "README.md") if b.tag == "sql"))
    app.create("app")
    run(app, tmp_path, paths.ROOT / "README.md", psql(app), hello)
    query = "SELECT state, kind, result FROM pulse.jobs"
    assert app.psql("app", "-c", query).strip() == 'completed|greet|"Hello, Ada"'


def test_the_python_hello_world_works_a_job_until_it_is_interrupted(
    app: Server, tmp_path: Path
) -> None:
    readme = blocks(paths.ROOT / "README.md")
    hello = str(next(b for b in readme if b.tag == "python"))
    (tmp_path / "hello.py").write_text(hello)
    app.create("app", product="extension")
    environ = {
        **app.environ("app"),
        "PYTHONPATH": str(paths.ROOT / "python"),
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        [sys.executable, "hello.py"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "hi to a@b.c\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0
    query = "SELECT state, kind FROM pulse.jobs"
    assert app.psql("app", "-c", query).strip() == "completed|send-email"


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{name(page)} links to {target}"


def anchors(page: Path) -> set[str]:
    """What GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def test_the_reference_is_what_the_catalog_says(app: Server) -> None:
    app.create("app", product="plain")
    done = subprocess.run(
        [sys.executable, "tools/reference.py", "--check", app.dsn("app")],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_of_the_tests_has_every_suite() -> None:
    text = (paths.ROOT / "tests/README.md").read_text()
    for folder in sorted((paths.ROOT / "tests").iterdir()):
        if (folder / "__init__.py").exists() or folder.name == "sql":
            assert f"`tests/{folder.name}`" in text, folder.name


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/development/where-changes-go.md",
        "tests/README.md",
    ],
)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    tops = "bench|docker|docs|extension|python|tests|tools|\\.github"
    named = re.findall(rf"`((?:{tops})/[\w./*-]*)`", (paths.ROOT / page).read_text())
    for path in named:
        assert list(paths.ROOT.glob(path.rstrip("/"))), f"{page} names {path}"


def test_the_index_of_decisions_lists_every_one() -> None:
    folder = paths.ROOT / "docs/decisions"
    listed = re.findall(
        r"^- \[.+?\]\((.+?)\): ", (folder / "README.md").read_text(), re.M
    )
    assert sorted(listed) == sorted(
        page.name for page in folder.glob("*.md") if page.name != "README.md"
    )


def test_every_file_of_the_walk_exists() -> None:
    for file in walked():
        assert (paths.ROOT / file).exists(), f"docs/architecture.md names {file}"


def walked() -> list[str]:
    page = (paths.ROOT / "docs/architecture.md").read_text()
    return re.findall(r"`((?:extension/sql|python/pulse)/[\w/]+\.(?:sql|py))`", page)


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_no_page_promises_more_than_at_least_once(page: Path) -> None:
    assert "exactly once" not in page.read_text().lower()
    assert "exactly-once" not in page.read_text().lower()
