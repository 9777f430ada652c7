"""The models of the hardest protocols hold, and each rule is found when it is missing.

Four modules of TLA+ model the claims, reports, flows and marks; README.md lists them.
TLC explores every interleaving within the bounds of models.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.model import checker, models
from tests.model.models import Bounds, Model
from tools import paths

SQL = paths.EXTENSION / "sql"
RELIABILITY = paths.ROOT / "docs/reliability.md"

needs_tlc = pytest.mark.skipif(
    checker.lacking() is not None, reason=checker.lacking() or ""
)


def each(kind: str) -> list[object]:
    return [
        pytest.param(model, name, id=f"{model.module}-{name}")
        for model in models.ALL.values()
        for name in getattr(model, kind)
    ]


def explore(model: Model, bounds: Bounds, scratch: Path) -> checker.Outcome:
    return checker.run(
        model.module,
        models.constants(bounds, "nothing"),
        model.invariants,
        [model.liveness] if bounds.live else [],
        scratch,
    )


def documented(model: Model, name: str) -> int:
    """The states that docs/reliability.md gives for a model in these bounds."""
    row = re.search(
        rf"^\| `{model.module}` \| {re.escape(name)} \| ([\d,]+) \|",
        RELIABILITY.read_text(),
        re.MULTILINE,
    )
    assert row is not None, f"docs/reliability.md has no row for {model.module}, {name}"
    return int(row[1].replace(",", ""))


@needs_tlc
@pytest.mark.parametrize(("model", "name"), each("bounds"))
def test_protocol_holds_in_every_interleaving(
    model: Model, name: str, tmp_path: Path
) -> None:
    found = explore(model, model.bounds[name], tmp_path)
    assert found.violated is None, found.output
    assert found.states == documented(model, name)


@needs_tlc
@pytest.mark.parametrize(("model", "name"), each("larger"))
def test_protocol_holds_in_larger_bounds(
    model: Model, name: str, tmp_path: Path
) -> None:
    found = explore(model, model.larger[name], tmp_path)
    assert found.violated is None, found.output
    assert found.states == documented(model, name)


@needs_tlc
@pytest.mark.parametrize(("model", "rule"), each("variants"))
def test_checker_notices_a_missing_rule(
    model: Model, rule: str, tmp_path: Path
) -> None:
    bounds, expected = model.variants[rule]
    found = checker.run(
        model.module,
        models.constants(model.bounds[bounds], rule),
        model.invariants,
        [model.liveness] if expected == model.liveness else [],
        tmp_path,
    )
    assert found.violated == expected, found.output


def source(model: Model) -> str:
    return (checker.HERE / f"{model.module}.tla").read_text()


@pytest.mark.parametrize("model", models.ALL.values(), ids=lambda m: m.module)
def test_every_rule_has_a_variant_without_it(model: Model) -> None:
    rules = set(re.findall(r'Without\s*[=#]\s*"([^"]+)"', source(model)))
    assert rules == {rule.partition(" (")[0] for rule in model.variants}


@pytest.mark.parametrize("model", models.ALL.values(), ids=lambda m: m.module)
def test_every_invariant_is_checked_and_documented(model: Model) -> None:
    stated = source(model).rpartition("\n----")[2]
    named = set(re.findall(r"^(\w+) ==", stated, re.MULTILINE))
    assert named == {*model.invariants, model.liveness}
    readme = (checker.HERE / "README.md").read_text()
    assert [name for name in named if f"`{name}`" not in readme] == []


@pytest.mark.parametrize("model", models.ALL.values(), ids=lambda m: m.module)
def test_table_of_a_model_names_what_exists(model: Model) -> None:
    head, _, body = source(model).partition("EXTENDS")
    rows = re.findall(r"^  ([A-Z]\w+(?:, _\w+)*) +\S", head, re.MULTILINE)
    actions = [row.partition(",")[0] for row in rows]
    assert len(actions) > 5
    assert [a for a in actions if not re.search(rf"^{a}\b.*==", body, re.M)] == []
    files = re.findall(r"\b[a-z]+/\w+\.sql", head)
    assert [file for file in files if not (SQL / file).exists()] == []
    cited = set(re.findall(r"(?<![\w/])[a-z]+_[a-z_]+\b", head))
    text = "\n".join(file.read_text() for file in SQL.rglob("*.sql"))
    assert [name for name in cited if not re.search(rf"\b{name}\b", text)] == []
