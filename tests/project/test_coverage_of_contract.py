"""Every promise has a test that is marked as its proof.

docs/contract.md numbers transitions (T), guarantees (G) and rules (R). The test that
proves one carries its name:

- in Python, the marker `@pytest.mark.proves("G9")`;
- in a pgTAP file, the line `-- proves: G9` before the test;
- in an isolation spec, the line `# proves: G9` before the permutation.

These tests cannot judge whether a proof is good. They notice a promise without one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import paths

TESTS = paths.ROOT / "tests"
LETTERS = {"transition": "T", "guarantee": "G", "rule": "R"}
NUMBERED = {
    "transition": re.compile(r"^\| T(\d+) \|", re.MULTILINE),
    "guarantee": re.compile(r"^- \*\*G(\d+)\*\* ", re.MULTILINE),
    "rule": re.compile(r"^- \*\*R(\d+)\*\* ", re.MULTILINE),
}
# A test or a comment that speaks of a promise by its number.
NAMED = re.compile(r"\b(transition|guarantee|rule) (\d+)\b", re.IGNORECASE)
# What must follow a comment that marks a proof.
PROVING = {
    ".sql": r"-- proves: (.*)\n(?=SELECT|--)",
    ".spec": r"# proves: (.*)\n(?=permutation|#)",
}


def numbers(sort: str, page: str = "contract.md") -> list[int]:
    """The numbers that a page of docs/ gives to transitions, guarantees or rules."""
    text = (paths.ROOT / "docs" / page).read_text()
    return [int(number) for number in NUMBERED[sort].findall(text)]


def promises() -> list[str]:
    return [f"{LETTERS[sort]}{n}" for sort in NUMBERED for n in numbers(sort)]


def marked(file: Path) -> Iterator[str]:
    """The promises that the tests of a file are marked to prove."""
    text = file.read_text()
    if file.suffix == ".py":
        yield from marked_in_python(text)
        return
    found = re.findall(rf"^{PROVING[file.suffix]}", text, re.MULTILINE)
    # A mark that no test follows, or that is spelt otherwise, would be overlooked.
    assert len(found) == len(re.findall(r"proves:", text)), (
        f"a mark in {file} is astray"
    )
    for names in found:
        yield from names.split(", ")


def marked_in_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(
                ".proves"
            ):
                assert node.name.startswith("test_"), f"{node.name} is no test"
                yield from (ast.literal_eval(name) for name in mark.args)


def proofs() -> dict[str, list[str]]:
    """Which files have a proof of each promise that a mark names."""
    files = [
        *TESTS.rglob("test_*.py"),
        *TESTS.glob("sql/**/*.sql"),
        *TESTS.glob("isolation/specs/*.spec"),
    ]
    found: dict[str, list[str]] = {}
    for file in sorted(files):
        for promise in marked(file):
            found.setdefault(promise, []).append(str(file.relative_to(TESTS)))
    return found


@pytest.fixture(scope="module")
def proved() -> dict[str, list[str]]:
    return proofs()


@pytest.mark.parametrize("promise", promises())
def test_every_promise_is_proved_by_a_test(
    proved: dict[str, list[str]], promise: str
) -> None:
    assert proved.get(promise), f"no test is marked to prove {promise}"


def test_every_mark_names_a_promise(proved: dict[str, list[str]]) -> None:
    strays = {name: proved[name] for name in proved.keys() - set(promises())}
    assert strays == {}


@pytest.mark.parametrize("sort", NUMBERED)
def test_the_contract_counts_without_gaps(sort: str) -> None:
    found = numbers(sort)
    assert found == list(range(1, len(found) + 1))
    assert found


def test_reliability_lists_the_guarantees_by_the_same_numbers() -> None:
    assert numbers("guarantee", "reliability.md") == numbers("guarantee")


def test_the_contract_names_every_public_function_and_view_and_no_other() -> None:
    reference = (paths.ROOT / "docs/reference.md").read_text()
    without_types = reference.partition("\n## Types")[0]
    public = set(re.findall(r"^### (?:pulse\.)?(\w+)$", without_types, re.MULTILINE))
    contract = (paths.ROOT / "docs/contract.md").read_text()
    surface = contract.partition("## The SQL surface")[2].partition("\n## ")[0]
    # Arguments and their values are explained in the same sentences.
    words = (
        "unique_key unique_for on_conflict skip replace error follow max_jobs dry_run"
    )
    assert set(re.findall(r"`(\w+)`", surface)) - set(words.split()) == public


def test_every_spec_has_its_expected_output() -> None:
    specs = {file.stem for file in TESTS.glob("isolation/specs/*.spec")}
    expected = {file.stem for file in TESTS.glob("isolation/expected/*.out")}
    assert specs <= expected


def test_no_test_names_a_promise_that_does_not_exist() -> None:
    known = {sort: numbers(sort) for sort in NUMBERED}
    files = [
        *TESTS.glob("sql/**/*.sql"),
        *TESTS.glob("isolation/specs/*.spec"),
        *(paths.EXTENSION / "sql").rglob("*.sql"),
    ]
    strays = [
        f"{file.name}: {word} {number}"
        for file in files
        for word, number in NAMED.findall(file.read_text())
        if int(number) not in known[word.lower()]
    ]
    assert strays == []


def test_no_file_cites_a_contract_that_is_not_in_the_repository() -> None:
    elsewhere = re.compile(r"\b(SPEC|ENGINE|CONCURRENCY)\b(\.md| section| guarantee)")
    files = [
        file
        for folder in ("tests", "extension/sql", "python/pulse", "docs", "tools")
        for file in (paths.ROOT / folder).rglob("*")
        if file.suffix in (".py", ".sql", ".spec", ".md")
    ]
    cited = [str(file) for file in files if elsewhere.search(file.read_text())]
    assert cited == []
