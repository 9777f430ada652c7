"""What a SQLSTATE becomes: a class, a title, a fix and an HTTP status."""

from __future__ import annotations

import re

import psycopg
import pytest

from pulse import errors
from tests.conftest import Connect
from tools import paths


def raised_by(connect: Connect, statement: str, *values: object) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        connect().execute(statement.encode(), values or None)
    return caught.value


@pytest.mark.parametrize(
    ("statement", "kind", "status", "fix"),
    [
        ("SELECT pulse.cancel(1)", errors.NoSuchJob, 404, None),
        ("SELECT pulse.enqueue('')", errors.InvalidArgument, 422, None),
        ("SELECT pulse.complete(1)", errors.LeaseLost, 409, None),
        ("SELECT pulse.from_the_future()", errors.VersionTooOld, 503, "UPDATE"),
        ("SELECT FROM pulse.from_the_future", errors.VersionTooOld, 503, "UPDATE"),
        (
            "SET ROLE pg_monitor; SELECT pulse.tick()",
            errors.PermissionDenied,
            403,
            "grant_access",
        ),
    ],
)
def test_an_error_of_pulse_is_translated(
    connect: Connect,
    statement: str,
    kind: type[errors.PulseError],
    status: int,
    fix: str | None,
) -> None:
    error = raised_by(connect, statement)
    ours = errors.translate(error)
    assert ours is not None
    assert type(ours) is kind
    assert ours.http_status == status
    assert ours.message == error.diag.message_primary
    assert fix is None or fix in (ours.hint or "")
    assert str(errors.describe(error)) == str(ours)


@pytest.mark.parametrize(
    ("statement", "kind", "status"),
    [
        ("SELECT 1 / 0", errors.InvalidArgument, 422),
        ("SELECT no_such_function()", errors.VersionTooOld, 503),
        (
            "SET statement_timeout = 1; SELECT pg_sleep(9)",
            errors.Unavailable,
            503,
        ),
        (
            "BEGIN READ ONLY; CREATE TABLE public.t ()",
            errors.Unavailable,
            503,
        ),
        ("SELECT pg_terminate_backend(pg_backend_pid())", errors.Unavailable, 503),
        (
            "DO $$BEGIN RAISE unique_violation; END$$",
            errors.PulseError,
            500,
        ),
    ],
)
def test_another_error_is_described_and_stays_the_drivers(
    connect: Connect, statement: str, kind: type[errors.PulseError], status: int
) -> None:
    error = raised_by(connect, statement)
    assert errors.translate(error) is None
    shown = errors.describe(error)
    assert (type(shown), shown.http_status) == (kind, status)
    assert shown.sqlstate == error.sqlstate
    assert shown.message
    assert shown.hint == error.diag.message_hint


def test_an_error_without_a_sqlstate_is_described(connect: Connect) -> None:
    refused = errors.describe(raised_by(connect, "SELECT %s", "a\0b"))
    assert (type(refused), refused.http_status) == (errors.InvalidArgument, 422)
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect("host=127.0.0.1 port=1 connect_timeout=2")
    away = errors.describe(caught.value)
    assert (type(away), away.http_status) == (errors.Unavailable, 503)
    assert "127.0.0.1" in away.message
    assert errors.describe(away) is away


def test_every_code_in_the_list_of_errors_has_a_class() -> None:
    listed = re.findall(
        r"^\| `(PU\d+)`", (paths.ROOT / "docs/errors.md").read_text(), re.M
    )
    assert listed
    assert set(listed) <= set(errors.BY_SQLSTATE)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, (errors.PulseError, errors.HandlerExit))
    }
    assert {*drawn, "PulseError", "HandlerExit"} == classes
