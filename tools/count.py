"""How much the tests assert: to compare two commits.

    .venv/bin/python -m tools.count

Counts what is written, each once: planned pgTAP assertions, permutations of isolation
specs, Python tests with their parameters. The servers that they run on do not matter.
"""

import re
import subprocess
import sys

from tools import paths

PLAN = re.compile(r"\bplan\((\d+)\)")
# The versions of PostgreSQL that a test runs on are no tests of their own.
MAJOR = re.compile(r"(?<=[\[-])pg\d+-?|-pg\d+(?=\])")


def main() -> None:
    tests = paths.ROOT / "tests"
    files = [p for p in (tests / "sql").rglob("*.sql") if PLAN.search(p.read_text())]
    assertions = sum(int(PLAN.findall(p.read_text())[0]) for p in files)
    specs = sorted((tests / "isolation/specs").glob("*.spec"))
    outputs = [tests / "isolation/expected" / f"{spec.stem}.out" for spec in specs]
    permutations = sum(p.read_text().count("starting permutation:") for p in outputs)
    print(f"pgTAP: {assertions:,} assertions in {len(files)} files")
    print(f"isolation: {permutations:,} permutations in {len(specs)} specs")
    print(f"pytest: {len(python_tests()):,} tests")


def python_tests() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "tests"],
        cwd=paths.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    names = [line for line in done.stdout.splitlines() if ".py::" in line]
    return {MAJOR.sub("", name).replace("[]", "") for name in names}


if __name__ == "__main__":
    main()
