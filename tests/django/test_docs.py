"""docs/django.md, followed to the letter."""

from __future__ import annotations

from pathlib import Path

from tests.django.conftest import Project
from tests.project.test_docs import blocks
from tools import paths

PYTHON = [str(b) for b in blocks(paths.ROOT / "docs/django.md") if b.tag == "python"]

# What the page leaves to the project.
SETTINGS = """
from config.settings import *
INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "pulse.django"]
PULSE_APPLICATION = "docs"
"""
TASKS = """
from django.db import transaction
from shop.models import Order

email = "a@b.c"
order = None
"""
LOOK = """
from docs_tasks import *
from django.db import connection
from pulse.testing import assert_enqueued

assert_enqueued(connection, confirm, {"args": [order.pk]}, lane="mail", priority=10)
again = once.using(priority=50).enqueue(order.pk)
[found] = assert_enqueued(connection, invoice, lane="billing", tags=["billing"])
assert (again.id, found["max_attempts"]) == (str(found["job_id"]), 8), found
"""


def block(word: str) -> str:
    [found] = [each for each in PYTHON if word in each]
    return found


def test_settings_and_tasks_are_as_the_page_says(
    migrated: Project, tmp_path: Path
) -> None:
    """In the test project, whose TASKS the page replaces."""
    (tmp_path / "docs_settings.py").write_text(SETTINGS + block("INSTALLED_APPS"))
    backport = "from shop.framework import task\n"
    tasks = [block(word) for word in ("def confirm", "def invoice", "@schedule")]
    (tmp_path / "docs_tasks.py").write_text(
        TASKS + "\n".join(tasks).replace("from django.tasks import task", backport)
    )
    (tmp_path / "docs_look.py").write_text(LOOK)
    migrated.environ |= {
        "DJANGO_SETTINGS_MODULE": "docs_settings",
        "PYTHONPATH": f"{tmp_path}:{paths.ROOT / 'python'}",
    }
    migrated.manage("shell", "-c", "import docs_look")


def test_a_page_without_its_packages_says_which(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "starlette.py").touch()
    project.environ["PYTHONPATH"] = f"{tmp_path}:{paths.ROOT / 'python'}"
    ran = project.run("check")
    assert ran.code == 1
    assert (
        "ImproperlyConfigured: the operator's page needs "
        'pip install "pgpulse[web]": No module named'
    ) in ran.out
