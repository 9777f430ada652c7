"""PulseBackend and what is around it: the tests of the project itself."""

from __future__ import annotations

import pytest

from tests.django.conftest import Project


@pytest.mark.parametrize("label", ["test_backend", "test_web"])
def test_the_project_is_green(project: Project, label: str) -> None:
    assert "OK" in project.manage("test", f"shop.tests.{label}")
