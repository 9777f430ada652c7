"""PulseBackend and what is around it: the tests of the project itself."""

from __future__ import annotations

from tests.django.conftest import Project


def test_the_project_is_green(project: Project) -> None:
    assert "OK" in project.manage("test", "shop")


def test_django_s_own_tests_and_its_database_backend_s_are_green(
    project: Project,
) -> None:
    project.environ["DJANGO_SETTINGS_MODULE"] = "config.judge"
    assert "OK" in project.manage("test", "judge")
