"""What users import: exported, documented, and in rooms of a readable size."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

import pulse
from pulse import embedded, hooks, testing
from tools import paths

PACKAGE = paths.ROOT / "python" / "pulse"
PYTHON = (paths.ROOT / "docs" / "python.md").read_text()
EMBEDDED = (paths.ROOT / "docs" / "embedded.md").read_text()


def test_all_lists_what_the_package_exports_and_nothing_else() -> None:
    assert sorted(pulse.__all__) == pulse.__all__
    # One of them is imported when it is first asked for.
    assert all(getattr(pulse, name) for name in pulse.__all__)
    public = {
        name
        for name, value in vars(pulse).items()
        if not name.startswith("_")
        and not isinstance(value, type(pulse))
        and name not in ("Any", "TYPE_CHECKING")
    }
    assert public == set(pulse.__all__)


def test_no_exported_name_hides_a_module() -> None:
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert not modules & set(pulse.__all__)


def members(kind: type) -> set[str]:
    """Methods, properties, attributes set in __init__, fields and parameters."""
    names = set(vars(kind))
    names |= set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(kind)))
    if "__init__" in vars(kind):
        names |= set(inspect.signature(kind).parameters)
    if dataclasses.is_dataclass(kind):
        names |= {field.name for field in dataclasses.fields(kind)}
    return {name for name in names if not name.startswith("_")} - {"args", "kwargs"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((getattr(pulse, name), PYTHON) for name in pulse.__all__),
        (hooks.OpenTelemetry, PYTHON),
        (hooks.Sentry, PYTHON),
        (testing.Done, PYTHON),
        (embedded.EmbeddedServer, EMBEDDED),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_public_name_is_in_the_docs(kind: object, text: str) -> None:
    names = members(kind) if isinstance(kind, type) else set()
    if kind is not testing.Done:
        names.add(getattr(kind, "__name__", ""))
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_the_embedded_exports_are_in_the_docs() -> None:
    missing = [n for n in embedded.__all__ if not re.search(rf"\b{n}\b", EMBEDDED)]
    assert missing == []
