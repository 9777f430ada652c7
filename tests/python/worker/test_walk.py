"""docs/architecture.md names the modules that one job really crosses."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pulse
from pulse import Worker
from pulse.worker import health
from tests.python.worker.conftest import ARMED, Queue, Start
from tools import paths

PACKAGE = Path(pulse.__file__).parent


def modules_of_the_page() -> set[str]:
    page = (paths.ROOT / "docs/architecture.md").read_text()
    _, _, section = page.partition("## In the worker")
    table, _, _ = section.partition("\n## ")
    return set(re.findall(r"`python/pulse/([\w/]+\.py)`", table))


class Trace:
    """The modules of the package whose functions any new thread enters."""

    def __init__(self) -> None:
        self.records = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.records and event == "call":
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(PACKAGE):
                self.modules.add(str(file.relative_to(PACKAGE)))


def test_the_page_names_the_modules_one_job_crosses(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What runs beside the job at some moment: health and tick.
    monkeypatch.setattr(health, "BEAT", 3600.0)
    worker = Worker(queue.db.dsn, concurrency=1, tick=False)

    @worker.handle("noted")
    async def noted() -> None: ...

    trace = Trace()
    threading.setprofile(trace)
    try:
        running = start(worker)
    finally:
        threading.setprofile(None)
    assert sys.getprofile() is None, "only the worker's threads are traced"
    queue.until(lambda: queue.one(ARMED) == 1)
    trace.records = True
    job = queue.enqueue("noted")
    queue.until_state(job, "completed")
    # The loop forgets a run when the reply to its report has arrived.
    queue.until(
        lambda: worker._loop is None or not worker._loop.health_report().running
    )
    trace.records = False
    running.stop()
    assert trace.modules == modules_of_the_page()
