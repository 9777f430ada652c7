"""The Examples in docstrings of public functions and classes run as they stand."""

from __future__ import annotations

import doctest
from typing import Any

import psycopg
import pytest

import pulse
from tests.conftest import Database

WITH_EXAMPLE = {
    "enqueue": pulse.enqueue,
    "enqueue_many": pulse.enqueue_many,
    "signal": pulse.signal,
    "task": pulse.task,
    "Worker": pulse.Worker,
}


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_of_a_docstring_runs(db: Database, name: str) -> None:
    documented: Any = WITH_EXAMPLE[name]
    text = documented.__doc__
    assert text.index("Args:") < text.index("Raises:") < text.index("Example:")
    with psycopg.connect(db.dsn) as connection:
        names = {"pulse": pulse, "dsn": db.dsn, "connection": connection}
        example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
        assert example.examples
        output: list[str] = []
        result = doctest.DocTestRunner().run(example, out=output.append)
        assert result.failed == 0, "".join(output)


@pytest.mark.parametrize("client", [pulse.Client, pulse.AsyncClient])
def test_every_method_of_a_client_says_what_it_takes_and_returns(client: Any) -> None:
    for name in ("enqueue", "enqueue_many", "cancel", "result", "why"):
        text = getattr(client, name).__doc__
        assert text.index("Args:") < text.index("Returns:"), name
