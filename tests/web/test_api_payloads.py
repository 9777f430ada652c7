"""What producers put into jobs arrives whole, and breaks nothing for anybody."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.conftest import Connection
from tests.web.calls import claim, enqueue, get, post


def put(connection: Connection, payload: str) -> str:
    row = connection.execute(
        "SELECT pulse.enqueue('k', %s::jsonb)::text", (payload,)
    ).fetchone()
    assert row is not None
    return str(row[0])


def nested(levels: int) -> str:
    """So deep, as jsonb is written; brackets in a string count for nothing."""
    inside = '["]}", ' + "[" * (levels - 2) + "]" * (levels - 2) + "]"
    return '{"a": ' + inside + "}"


def test_payloads_of_any_content_arrive(
    connection: Connection, operator: httpx.Client
) -> None:
    texts = " x" * 5000, "1" + "0" * 5000
    assert (
        get(operator, f"jobs/{put(connection, json.dumps(texts[0]))}")["payload"]
        == texts[0]
    )
    assert get(operator, f"jobs/{put(connection, texts[1])}")["payload"] == texts[1]


def test_a_number_that_a_browser_would_round_is_text(
    connection: Connection, operator: httpx.Client
) -> None:
    numbers = {"n": "1e400", "most": 2**53, "more": 2**53 + 1, "least": -(2**53)}
    payload = json.dumps({**numbers, "less": -(2**53) - 1, "half": 0.5})
    job = put(connection, payload.replace('"1e400"', "1e400"))
    assert get(operator, f"jobs/{job}")["payload"] == {
        **{"n": "1" + "0" * 400, "half": 0.5},
        **{"most": 2**53, "more": str(2**53 + 1)},
        **{"least": -(2**53), "less": str(-(2**53) - 1)},
    }


@pytest.mark.parametrize("levels", [100, 101, 260, 980, 3000])
def test_no_payload_is_too_deep_to_be_shown(
    connection: Connection, operator: httpx.Client, levels: int
) -> None:
    """Beyond 100 levels it is shown as its text, wherever JSON of a user stands."""
    text = nested(levels)
    shown = text if levels > 100 else json.loads(text)
    job = put(connection, text)
    # Deeper ones take more than a list shows.
    in_list = shown if levels <= 260 else None
    (found,) = get(operator, "jobs")["jobs"]
    assert found["payload"] == in_list
    assert get(operator, f"jobs/{job}")["payload"] == shown
    assert post(operator, f"jobs/{job}/move", lane="web")["payload"] == shown
    other = enqueue(connection)
    (lease,) = claim(connection)
    connection.execute("SELECT pulse.complete(%s, %s::jsonb)", (lease, text))
    assert get(operator, f"jobs/{other}")["result"] == shown
    connection.execute(
        "SELECT pulse.schedule('nightly', 'k', %s::jsonb, every => '1 day')", (text,)
    )
    (schedule,) = get(operator, "schedules")["schedules"]
    assert schedule["payload"] == shown
    get(operator, "audit")


def test_a_list_leaves_out_a_payload_that_is_long_however_little_it_takes(
    connection: Connection, operator: httpx.Client
) -> None:
    """A text that repeats itself is stored in a hundredth of its length."""
    text = json.dumps("x" * 150_000)
    long, short = put(connection, text), put(connection, json.dumps("x" * 1998))
    stored = connection.execute(
        "SELECT pg_column_size(payload) FROM pulse.jobs WHERE job_id = %s", (long,)
    ).fetchone()
    assert stored is not None
    assert stored[0] < 2000
    page = get(operator, "jobs")["jobs"]
    shown = {job["job_id"]: job["payload"] for job in page}
    assert shown == {long: None, short: "x" * 1998}
    assert get(operator, f"jobs/{long}")["payload"] == "x" * 150_000
