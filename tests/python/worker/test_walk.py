"""docs/architecture.md names the modules that one job really crosses."""

from __future__ import annotations

import logging
import re

import pytest

from tests.python.worker.conftest import Queue
from tools import paths, walk_worker


def modules_of_the_page() -> set[str]:
    page = (paths.ROOT / "docs/architecture.md").read_text()
    _, _, section = page.partition("## In the worker")
    table, _, _ = section.partition("\n## ")
    return set(re.findall(r"`python/pulse/([\w/]+\.py)`", table))


def test_the_page_names_the_modules_one_job_crosses(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    # A log line of each job would add the module that writes it.
    caplog.set_level(logging.WARNING, logger="pulse.worker")
    assert walk_worker.crossed(queue.db.dsn, "plain") == modules_of_the_page()
