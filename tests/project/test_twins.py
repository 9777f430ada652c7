"""The sync twins of the package are made from their async sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import paths, twins

SOURCE = '''"""Both."""

import asyncio
import contextlib
import threading
import time


# Made from fetch_async by tools/twins.py.
def fetch():
    return "edited by hand"


async def fetch_async(query):
    """Safe to share between asyncio tasks."""
    # Why it waits.
    await asyncio.sleep(1)
    async with AsyncCursor(query) as cursor:
        return [await row async for row in cursor]


class Job:
    # Made from step_async by tools/twins.py.
    def step(self):
        pass

    async def step_async(self, name):
        """Call once.

        Example:
            >>> async def run(job):
            ...     return await job.step_async("a")
            >>> async with pulse.AsyncClient(dsn) as client:
            ...     await client.enqueue("mail")
        """
        value = await self._ask_async("steps")
        return f"{value} {name}"


# Made from AsyncClient by tools/twins.py.
class Client:
    pass


class AsyncClient:
    def __init__(self):
        self.lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def connection(self):
        yield await self.lock

    async def __aenter__(self):
        return self
'''


def test_a_twin_is_its_source_without_async() -> None:
    made = twins.made(SOURCE)
    names: dict[str, object] = {}
    exec(compile(made, "made", "exec"), names)
    head, _, rest = made.partition("async def fetch_async")
    assert "edited by hand" not in made
    assert "def fetch(query):\n" in head
    assert '"""Safe to share between threads."""' in head
    assert "    # Why it waits.\n    time.sleep(1)\n" in head
    assert (
        "with Cursor(query) as cursor:\n        return [row for row in cursor]" in head
    )
    assert "    def step(self, name):\n" in rest
    assert '        value = self._ask("steps")' in rest
    assert "class Client:\n    def __init__(self):\n" in rest
    assert "self.lock = threading.Lock()" in rest
    assert "    @contextlib.contextmanager\n    def connection(self):\n" in rest
    assert "    def __enter__(self):\n" in rest


def test_the_example_of_a_twin_is_sync() -> None:
    step = twins.made(SOURCE).partition("def step(")[2].partition("async def")[0]
    assert ">>> def run(job):\n            ...     return job.step(" in step
    assert ">>> with pulse.Client(dsn) as client:\n" in step
    assert '...     client.enqueue("mail")\n' in step


def test_the_source_of_a_twin_stays_as_it_is() -> None:
    made = twins.made(SOURCE)
    assert SOURCE.partition("class AsyncClient")[2] in made
    assert twins.made(made) == made


def test_a_mark_without_a_source_is_refused() -> None:
    with pytest.raises(SystemExit, match="there is no fetch_async"):
        twins.made(SOURCE.replace("async def fetch_async", "async def other"))


def test_every_twin_of_the_package_is_up_to_date() -> None:
    assert {str(path.relative_to(twins.PACKAGE)) for path in twins.files()} >= {
        "client.py",
        "handles.py",
        "job.py",
    }
    assert twins.main(["--check"]) == 0


def test_an_edited_twin_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(twins, "PACKAGE", tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    file = tmp_path / "both.py"
    file.write_text(SOURCE)
    assert twins.main(["--check"]) == 1
    assert '-    return "edited by hand"' in capsys.readouterr().out
    assert file.read_text() == SOURCE
    assert twins.main([]) == 0
    assert twins.main(["--check"]) == 0
