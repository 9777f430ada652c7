"""The docstrings of public functions and classes: their sections, and their Examples.

An Example runs as it stands. Besides pulse it may use dsn, connection (a psycopg
connection), client (a Client, in coroutines an AsyncClient), worker (without handlers),
double (a task), work_off (pulse.testing) and run_worker.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import pulse
import pulse.testing
from pulse import codecs, errors, install, logs
from pulse.batches import BatchTask
from tests.conftest import Database

OTHERS = {
    "codecs": (codecs, ["register"]),
    "errors": (errors, ["describe"]),
    "install": (install, ["inspect", "plan", "removal", "sql", "version"]),
    "logs": (logs, ["JsonFormatter"]),
}
# Called by the worker or by Python, not by users: Hooks are overridden.
CALLED_BY_THE_WORKER = {
    *(f"Hooks.{name}" for name in ("claimed", "started", "finished", "disconnected")),
    *("BatchTask.payload", "BatchTask.run", "BatchTask.using"),
}
# Without arguments, and made by a call that has an Example.
DESCRIBED_ELSEWHERE = {"Upstream", "TimedOut", "Suspended", "testing.Done"}


def public() -> Iterator[tuple[str, Any]]:
    """The public functions and classes by name, and the methods of the classes."""
    found = {name: getattr(pulse, name) for name in pulse.__all__}
    found |= {f"testing.{n}": getattr(pulse.testing, n) for n in pulse.testing.__all__}
    found["BatchTask"] = BatchTask
    for module, (where, names) in OTHERS.items():
        found |= {f"{module}.{name}": getattr(where, name) for name in names}
    for name, documented in found.items():
        yield name, documented
        if inspect.isclass(documented) and not issubclass(documented, BaseException):
            for method, function in vars(documented).items():
                own = inspect.isfunction(function) and not method.startswith("_")
                if own and not name.startswith(("logs.", "testing.")):
                    yield f"{name}.{method}", function


PUBLIC = dict(public())
WITH_EXAMPLE = {n: d for n, d in PUBLIC.items() if "Example:" in (d.__doc__ or "")}


def test_every_public_function_and_class_has_an_example() -> None:
    without = PUBLIC.keys() - WITH_EXAMPLE.keys()
    assert without == CALLED_BY_THE_WORKER | DESCRIBED_ELSEWHERE


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_names_every_argument(name: str) -> None:
    documented: Any = PUBLIC[name]
    if inspect.isclass(documented) or name in CALLED_BY_THE_WORKER:
        return
    arguments = list(inspect.signature(documented).parameters)
    head, _, described = (documented.__doc__ or "").partition("Args:")
    missing = [a for a in arguments if a != "self" and f" {a}: " not in described]
    assert head.strip()
    assert missing == []


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_sections_of_a_docstring_are_in_order(name: str) -> None:
    text = WITH_EXAMPLE[name].__doc__
    sections = ("Args:", "Returns:", "Raises:", "Example:")
    places = [text.index(section) for section in sections if section in text]
    assert places == sorted(places)


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_of_a_docstring_runs(db: Database, name: str) -> None:
    text = WITH_EXAMPLE[name].__doc__
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples
    with psycopg.connect(db.dsn) as connection:
        run(example, names_for(db, connection, text))


def names_for(
    db: Database, connection: psycopg.Connection[Any], text: str
) -> dict[str, Any]:
    """The names that an Example may use without making them."""

    @pulse.task("double")
    def double(n: int) -> int:
        return 2 * n

    def run_worker() -> None:
        with psycopg.connect(db.dsn) as own:
            pulse.testing.work_off(own, pulse.Worker(db.dsn, tasks=[double]))

    is_async = "await " in text or "async with" in text
    return {
        "pulse": pulse,
        "asyncio": asyncio,
        "dsn": db.dsn,
        "connection": connection,
        "client": (pulse.AsyncClient if is_async else pulse.Client)(db.dsn),
        "worker": pulse.Worker(db.dsn, name="example"),
        "double": double,
        "work_off": pulse.testing.work_off,
        "run_worker": run_worker,
    }


def run(example: doctest.DocTest, names: dict[str, Any]) -> None:
    """Run the statements, await at the top level included; compare their output."""
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS
    loop = asyncio.new_event_loop()
    try:
        for part in example.examples:
            printed = output_of(part, names, loop)
            same = checker.check_output(part.want, printed, flags)
            assert same, checker.output_difference(part, printed, flags)
    finally:
        closing = names["client"].close()
        if inspect.isawaitable(closing):
            loop.run_until_complete(closing)
        loop.close()


def output_of(
    part: doctest.Example, names: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> str:
    """The output of a statement; the Example's own, if it expects this error."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(part.source, "<example>", "single", flags)
    output = io.StringIO()
    shown, sys.displayhook = sys.displayhook, sys.__displayhook__
    try:
        with contextlib.redirect_stdout(output):
            result = eval(code, names)
            if inspect.isawaitable(result):
                loop.run_until_complete(result)
    except Exception as error:
        if part.exc_msg is None:
            raise
        message = "".join(traceback.format_exception_only(error))
        assert message.startswith(part.exc_msg.removesuffix("...\n")), message
        return part.want
    finally:
        sys.displayhook = shown
    return output.getvalue()
