"""pulse flow, pulse signal, pulse enqueue --after."""

from __future__ import annotations

import json

from tests.cli.conftest import Pulse
from tests.conftest import Connect


def test_a_flow_is_enqueued_shown_and_drawn(pulse: Pulse) -> None:
    first = pulse("enqueue", "fetch", "--flow", "f", "--name", 'the "first"', "--json")
    job = json.loads(first.out)["job_id"]
    pulse("enqueue", "merge", "--after", job, "--flow", "f", "--after-failed", "run")
    shown = pulse("flow", "f").out
    assert "1 ready" in shown
    assert "1 blocked" in shown
    rows = json.loads(pulse("flow", "f", "--json").out)
    assert [(row["name"], row["jobs"]) for row in rows] == [
        ('the "first"', 1),
        ("merge", 1),
    ]
    for chosen, count in (("--flow f", 2), ("--flow f --state blocked", 1)):
        found = json.loads(pulse("jobs", *chosen.split(), "--json").out)
        assert len(found) == count
        preview = pulse("cancel", *chosen.split(), "--dry-run").out
        assert f"would act on {count} job{'s' * (count > 1)}\n" in preview
    drawn = pulse("flow", "f", "--dot").out
    assert drawn.startswith('digraph "f" {')
    assert '"the \\"first\\"" -> "merge";' in drawn


def test_a_flow_that_is_not_there(pulse: Pulse) -> None:
    ran = pulse("flow", "nothing")
    assert ran.code == 1
    assert "there is no flow 'nothing'" in ran.err


def test_a_job_after_nothing_is_refused(pulse: Pulse) -> None:
    ran = pulse("enqueue", "merge", "--after", 987654321)
    assert ran.code == 1
    assert "[PU004]" in ran.err


def test_a_signal_wakes_who_waits(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    connection.execute("SELECT pulse.enqueue('order')")
    connection.execute(
        "SELECT w.* FROM pulse.claim_batch('me') AS c,"
        " pulse.wait_for(c.lease, 'a', '1 day', 'approved') AS w"
    )
    assert pulse("signal", "approved", "by=ann").out == "sent; 1 job woke\n"
    assert pulse("signal", "approved", "7").out == "sent; 0 jobs woke\n"
    assert json.loads(pulse("signal", "other", "--json").out) == {"woke": 0}
    rows = connection.execute(
        "SELECT signal, payload FROM pulse_internal.signal ORDER BY 1"
    )
    assert rows.fetchall() == [("approved", {"by": "ann"}), ("other", None)]
