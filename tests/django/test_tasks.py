"""PulseBackend and what is around it: the tests of the project itself."""

from __future__ import annotations

import pytest

from tests.django.conftest import Project


@pytest.mark.parametrize("label", ["test_backend", "test_web"])
def test_the_project_is_green(project: Project, label: str) -> None:
    assert "OK" in project.manage("test", f"shop.tests.{label}")


@pytest.mark.parametrize(
    "label",
    [
        *("test_tasks", "test_dummy_backend", "test_immediate_backend"),
        "test_database_backend",
    ],
)
def test_django_s_own_tests_and_its_database_backend_s_are_green(
    project: Project, label: str
) -> None:
    project.environ["DJANGO_SETTINGS_MODULE"] = "config.judge"
    assert "OK" in project.manage("test", f"judge.tests.{label}")
