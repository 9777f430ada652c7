"""What the package knows of verbs beforehand agrees with the database and its types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

from pulse import declarations, job, options, verbs
from pulse.cli import problems
from pulse.sql import operator
from tests.conftest import Connection


def test_the_snapshot_is_what_the_database_says(
    connect: Callable[..., Connection],
) -> None:
    rows = connect().execute("SELECT to_jsonb(v) FROM pulse.verbs() AS v").fetchall()
    assert {row[0]["verb"] for row in rows} == set(verbs.known())
    for (row,) in rows:
        known = verbs.known()[row["verb"]]
        assert list(known.access) == row["access"]
        assert row["states"] == (None if known.states is None else list(known.states))
        if len(known.arguments) == len(row["arguments"]):
            assert list(known.arguments.values()) == row["arguments"]


def words(hint: Any) -> set[str]:
    """The words of a Literal, also of one that may be None."""
    found = {word for each in get_args(hint) for word in get_args(each) or [each]}
    return {word for word in found if isinstance(word, str)}


@pytest.mark.parametrize(
    ("hint", "verb", "argument"),
    [
        (options.OnConflict, "enqueue", "on_conflict"),
        (get_type_hints(options.Options)["after_failed"], "enqueue", "after_failed"),
        (declarations.Backoff, "set_kind", "backoff"),
        (
            get_type_hints(declarations.ScheduleOptions)["catch_up"],
            "schedule",
            "catch_up",
        ),
    ],
)
def test_literals_are_the_choices_of_the_engine(
    hint: Any, verb: str, argument: str
) -> None:
    assert words(hint) == set(verbs.choices(verb, argument))


def test_states_and_notes_are_those_of_the_engine() -> None:
    assert set(operator.STATES) == set(verbs.known()["find_jobs"].states or ())
    assert verbs.most("progress", "note") == job.LONGEST_NOTE


def test_levels_of_functions_and_views_are_true(
    connect: Callable[..., Connection],
) -> None:
    rows = (
        connect()
        .execute(
            "SELECT l.object, array_agg(l.access), bool_or(c.oid IS NOT NULL) "
            "FROM pulse_internal.access_levels() AS l "
            "LEFT JOIN pg_class AS c ON c.relname = l.object AND c.relkind = 'v' "
            "AND c.relnamespace = 'pulse'::regnamespace GROUP BY l.object"
        )
        .fetchall()
    )
    assert any(is_view for _, _, is_view in rows)
    for name, access, is_view in rows:
        if is_view:
            assert verbs.levels(name) == ("viewer",)
            assert "viewer" in access
        else:
            assert set(verbs.levels(name)) == set(access)


def test_a_denied_statement_names_the_level_it_lacks() -> None:
    assert problems.lacking("SELECT * FROM pulse.kinds", []) == ("viewer",)
    assert problems.lacking("SELECT pulse.prune()", ["operator"]) == ("admin",)
    assert problems.lacking("SELECT pulse.cancel(1)", ["viewer"]) == (
        "producer",
        "operator",
    )
    assert problems.lacking("SELECT pulse.cancel(1)", ["producer"]) == ()
