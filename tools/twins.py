"""Write sync code from its async twin: the package has both, one is written by hand.

python -m tools.twins           write what differs
python -m tools.twins --check   print what differs, as `make lint` does

Below a comment

    # Made from AsyncClient by tools/twins.py.

the tool makes the class, function or method from AsyncClient, which is in the same
file (a method: in the same class). The async one is the source. Without `async` and
`await`, and with the names of RENAMED, it is the sync one; `ruff format` lays it out.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import paths

PACKAGE = paths.ROOT / "python/pulse"
MARK = re.compile(r"^ *# Made from (\w+) by tools/twins\.py\.$", re.MULTILINE)
# Beside these: Async… and …_async are left off.
RENAMED = {
    "asyncio.Lock": "threading.Lock",
    "asyncio.sleep": "time.sleep",
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "WorkerConnection": "BlockingConnection",
    "_require_async": "_require_sync",
}
# In docstrings and messages. Lines of an Example lose await and async as well.
EXAMPLE = re.compile(r"^ *(>>>|\.\.\.) ")
WORDS = {"between asyncio tasks": "between threads"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[Path]:
    """Those that have twins."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if MARK.search(path.read_text()):
            yield path


def made(text: str) -> str:
    """The file with every twin made anew."""
    lines = text.splitlines(keepends=True)
    # From the last to the first, so that line numbers stay valid.
    for number in reversed(range(len(lines))):
        if mark := MARK.match(lines[number].rstrip("\n")):
            body = body_around(ast.parse("".join(lines)), number + 1)
            source = span(lines, named(body, mark[1]))
            twin = sync("".join(lines[source]))
            old = span(lines, named(body, sync_name(mark[1])))
            if old.start != number + 1:
                raise SystemExit(f"twins: line {number + 1} is not above its twin")
            lines[old] = twin.splitlines(keepends=True)
    return formatted("".join(lines))


def body_around(tree: ast.Module, line: int) -> Sequence[ast.stmt]:
    """The statements of the class that this line is in, else of the module."""
    for node in tree.body:
        inside = node.lineno <= line <= (node.end_lineno or 0)
        if isinstance(node, ast.ClassDef) and inside:
            return node.body
    return tree.body


def named(body: Sequence[ast.stmt], name: str) -> list[Definition]:
    """The definition of a name, with its overloads."""
    found = [x for x in body if isinstance(x, Definition) and x.name == name]
    if not found:
        raise SystemExit(f"twins: there is no {name}")
    return found


def span(lines: Sequence[str], found: Sequence[Definition]) -> slice:
    """Where these are, decorators included."""
    first, last = found[0], found[-1]
    start = min([first.lineno, *(d.lineno for d in first.decorator_list)])
    assert last.end_lineno is not None
    return slice(start - 1, last.end_lineno)


def sync(source: str) -> str:
    """An async definition as a sync one, not laid out yet."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for index in reversed(range(len(tokens))):
        token = tokens[index]
        (row, start), (end_row, end) = token.start, token.end
        if token.type == tokenize.NAME:
            new = sync_name(token.string)
            if token.string in ("async", "await"):
                new, end = "", tokens[index + 1].start[1]
            elif token.string == "asyncio":
                # With its attribute.
                end = tokens[index + 2].end[1]
                new = RENAMED[lines[row - 1][start:end]]
            lines[row - 1] = lines[row - 1][:start] + new + lines[row - 1][end:]
        elif token.type == tokenize.STRING:
            for line in range(row - 1, end_row):
                if EXAMPLE.match(lines[line]):
                    lines[line] = sync_example(lines[line])
                for words, instead in WORDS.items():
                    lines[line] = lines[line].replace(words, instead)
    return "".join(lines)


def sync_example(line: str) -> str:
    """A line of an Example without async and await, and with the sync names."""
    line = re.sub(r"\b(async|await) ", "", line)
    return re.sub(r"\b\w+\b", lambda name: sync_name(name[0]), line)


def sync_name(name: str) -> str:
    return RENAMED.get(name, name.removeprefix("Async").removesuffix("_async"))


def formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [str(ruff), "format", "--quiet", "-"],
        input=text,
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    differing = 0
    for path in files():
        before = path.read_text()
        after = made(before)
        if before == after:
            continue
        differing += 1
        if "--check" in arguments:
            name = str(path.relative_to(paths.ROOT))
            lines = (before.splitlines(), after.splitlines())
            found = difflib.unified_diff(*lines, name, "make format", lineterm="", n=1)
            print("\n".join(found))
        else:
            path.write_text(after)
    return differing if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
