"""Every verb against a real database: what it does and what it prints."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from pulse.cli.session import Session
from pulse.sql.idle import IDLE_LIMIT
from tests.cli.conftest import Pulse
from tests.conftest import Connection, Database

Connect = Callable[..., Connection]


def value(connection: Connection, query: str, *values: object) -> object:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return row[0]


def claim(connection: Connection, lane: str = "default", n: int = 1) -> list[int]:
    rows = connection.execute(
        "SELECT lease FROM pulse.claim_batch('w1', %s, %s)", [lane, n]
    ).fetchall()
    return [row[0] for row in rows]


# -- producing --------------------------------------------------------------------


def test_enqueue_takes_json_or_words(pulse: Pulse, connect: Connect) -> None:
    assert pulse("enqueue", "mail", '{"to": "a", "n": 1}').code == 0
    assert pulse("enqueue", "mail", "to=a", "n:=1").out == "2  enqueued\n"
    found = connect().execute("SELECT DISTINCT payload FROM pulse.jobs").fetchall()
    assert found == [({"to": "a", "n": 1},)]
    assert pulse("enqueue", "mail", "nonsense").code == 2
    assert pulse("enqueue", "mail", "n:=oops").code == 2


def test_enqueue_hands_its_options_on(pulse: Pulse, connect: Connect) -> None:
    ran = pulse(
        *("enqueue", "mail", "--lane", "bulk", "-p", 7, "--delay", "1 hour"),
        *("--tag", "a", "--tag", "b", "--unique-key", "k", "--json"),
    )
    assert ran.json == {"job_id": "1", "created": True}
    row = connect().execute(
        "SELECT state, lane, priority, tags, unique_key FROM pulse.jobs"
    )
    assert row.fetchone() == ("scheduled", "bulk", 7, ["a", "b"], "k")
    again = pulse("enqueue", "mail", "--lane", "bulk", "--unique-key", "k")
    assert again.out == "1  has this unique key already\n"
    newer = ("--unique-key", "k", "--on-conflict", "cancel", "--json")
    ran = pulse("enqueue", "mail", "--lane", "bulk", *newer)
    assert ran.json == {"job_id": "4", "created": True}


def test_enqueue_reads_a_file_of_payloads(
    pulse: Pulse, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(2500))
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    ran = pulse("enqueue", "mail", "--from", "-")
    assert ran.out == "2,500 jobs enqueued  (1 … 2500)\n"
    # All or nothing.
    monkeypatch.setattr("sys.stdin", io.StringIO(lines + "oops"))
    assert pulse("enqueue", "mail", "--from", "-").code == 2
    assert value(connect(), "SELECT count(*) FROM pulse.jobs") == 2500


def test_the_server_ends_an_enqueue_of_a_file_that_is_left_idle(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[object] = []
    rows = Session.rows

    def noted(session: Session, *query: Any) -> Any:
        show = "SHOW idle_in_transaction_session_timeout"
        limits.extend(rows(session, show))
        return rows(session, *query)

    monkeypatch.setattr("sys.stdin", io.StringIO("{}\n"))
    monkeypatch.setattr(Session, "rows", noted)
    assert pulse("enqueue", "mail", "--from", "-").code == 0
    assert limits == [{"idle_in_transaction_session_timeout": IDLE_LIMIT}]


def test_schedules_come_and_go(pulse: Pulse) -> None:
    assert "No schedules" in pulse("schedule").out
    assert pulse("schedule", "add", "n", "report", "--cron", "30 3 * * *").code == 0
    assert (
        pulse("schedule", "add", "p", "poll", "x=1", "--every", "15 minutes").code == 0
    )
    assert pulse("schedule", "add", "q", "poll").code == 2
    listed = pulse("schedule", "list").out
    assert "30 3 * * *" in listed
    assert "every 15m" in listed
    assert pulse("schedule", "pause", "p", "--reason", "moving").out == "p  paused\n"
    assert "paused by postgres: moving" in pulse("schedule").out
    assert pulse("schedule", "resume", "p").out.startswith("p  next at ")
    assert pulse("schedule", "rm", "n", "p").out == "n  removed\np  removed\n"
    assert pulse("schedule", "list", "--json").json == []
    assert pulse("schedule", "runs").code == 0
    assert "schedule 'n' does not exist" in pulse("schedule", "rm", "n").err


def test_runs_of_a_schedule_that_is_not_there(pulse: Pulse, connect: Connect) -> None:
    for how in ((), ("--json",)):
        ran = pulse("schedule", "runs", "nope", *how)
        assert ran.code == 1
        assert "there is no schedule nope" in ran.err
    # One that has not fired yet, and one that was removed after it had.
    pulse("schedule", "add", "n", "report", "--every", "1 hour")
    assert pulse("schedule", "runs", "n", "--json").json == []
    connection = connect()
    connection.execute(
        "UPDATE pulse_internal.schedule SET next_at = next_at - interval '1 hour'"
    )
    connection.execute("SELECT pulse.tick()")
    assert pulse("schedule", "rm", "n").code == 0
    assert len(pulse("schedule", "runs", "n", "--json").json) == 1


# -- seeing -----------------------------------------------------------------------


def test_ps_shows_who_runs_what(pulse: Pulse, connect: Connect) -> None:
    assert "Nothing runs" in pulse("ps").out
    connection = connect()
    connection.execute("SELECT pulse.enqueue('render')")
    (lease,) = claim(connection)
    connection.execute("SELECT pulse.progress(%s, 0.25, 'frame 1')", [lease])
    output = pulse("ps").out
    assert "1  render  default" in output
    assert "w1" in output
    assert "25%  frame 1" in output
    (row,) = pulse("ps", "--json").json
    assert row["job_id"] == "1"
    assert row["progress"] == 0.25
    assert isinstance(row["running_for"], float)
    assert pulse("ps", "--lane", "other", "--json").json == []


def test_lanes_and_workers(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    connection.execute("SELECT pulse.set_lane('mail', max_slots => 3)")
    connection.execute("SELECT pulse.enqueue('m', lane => 'mail')")
    connection.execute("SELECT pulse.hello('w1', '{mail}', '{m}')")
    connection.execute("SELECT pulse.drain_lane('mail')")
    lines = pulse("lanes").out.splitlines()
    assert lines[0].split() == (
        ["LANE", "SLOTS", "READY", "OLDEST", "DELAYED", "PER", "MIN", "STATUS"]
    )
    assert lines[2].split()[:3] == ["mail", "0/3", "1"]
    assert lines[2].endswith("drained")
    rows = {row["lane"]: row for row in pulse("lanes", "--json").json}
    assert rows["mail"]["max_slots"] == 3
    assert "w1" in pulse("workers").out


def test_kinds_over_all_lanes(pulse: Pulse, connect: Connect) -> None:
    assert pulse("kinds").out.startswith("No kind waits")
    connection = connect()
    for n in range(12):
        connection.execute("SELECT pulse.enqueue('m', lane => %s)", [f"l{n:02}"])
    connection.execute("SELECT pulse.claim_batch('w1', 'l00')")
    connection.execute("SELECT pulse.hello('w1', '{l00}', '{n}')")
    lines = pulse("kinds").out.splitlines()
    head = ["KIND", "READY", "OLDEST", "RUNNING", "WORKERS", "SCHEDULES"]
    assert lines[0].split() == [*head, "READY", "IN"]
    row = lines[1].split()
    assert (row[:2], row[3:6]) == (["m", "11"], ["1", "0", "0"])
    assert lines[1].endswith("l10 and 1 more")
    assert lines[2].split()[3:5] == ["0", "1"]
    found = pulse("kinds", "--json").json[0]
    assert (found["kind"], found["ready"], found["ready_estimated"]) == ("m", 11, False)
    assert len(found["ready_in"]) == 11


def test_a_worker_is_live_for_two_minutes(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    connection.execute("SELECT pulse.hello('w1')")
    for seconds, live in ((100, True), (121, False)):
        connection.execute(
            "UPDATE pulse_internal.worker SET seen_at = clock_timestamp() - %s * "
            "'1s'::interval",
            [seconds],
        )
        assert [row["live"] for row in pulse("workers", "--json").json] == [live]
        state = "live" if live else "stopped"
        assert pulse("workers").out.splitlines()[1].split()[:2] == ["w1", state]
    connection.execute("SELECT pulse.enqueue('m')")
    connection.execute("SELECT pulse.claim_batch('w1')")
    connection.execute(
        "UPDATE pulse_internal.lease SET claimed_at = now() - interval '9 min', "
        "lease_until = now() - interval '5 min'"
    )
    connection.execute(
        "UPDATE pulse_internal.worker SET seen_at = now() - interval '9 min'"
    )
    assert pulse("workers").out.splitlines()[1].split()[:2] == ["w1", "lost"]


def test_stats_are_what_prometheus_counts(pulse: Pulse, connect: Connect) -> None:
    assert pulse("stats").out.startswith("Nothing was counted.")
    connection = connect()
    for kind in ("letter", "letter", "bill"):
        connection.execute("SELECT pulse.enqueue(%s, lane => 'mail')", [kind])
    connection.execute(
        "SELECT pulse.complete(lease) FROM pulse.claim_batch('w', 'mail', 2)"
    )
    connection.execute(
        "SELECT pulse.fail(lease, 'e', fatal => true) "
        "FROM pulse.claim_batch('w', 'mail')"
    )
    connection.execute("SELECT pulse.tick()")
    for since in ([], ["--since", "1 hour"]):
        lines = [line.split() for line in pulse("stats", *since).out.splitlines()]
        assert lines[0][:5] == ["LANE", "KIND", "ENQ", "START", "DONE"]
        bill, letter = lines[1:]
        assert bill[:8] == ["mail", "bill", "1", "1", "0", "1", "1", "0"]
        assert letter[:8] == ["mail", "letter", "2", "2", "2", *"000"]
        # Nothing was cancelled or reaped: its columns give room to the names.
        assert "CANC" not in lines[0]
        (row,) = pulse("stats", *since, "--kind", "letter", "--json").json
        assert (row["completed"], row["wait_p95"] > 0) == (2, True)
    connection.execute("UPDATE pulse_internal.stat SET at = at - interval '2 hours'")
    assert pulse("stats", "--since", "1 hour", "--json").json == []
    assert pulse("stats", "--lane", "none", "--json").json == []
    assert pulse("stats", "--since", "soon").code == 1


def test_what_producers_write_does_not_steer_the_terminal(
    pulse: Pulse, connect: Connect
) -> None:
    connect().execute(
        "SELECT pulse.enqueue(%s, lane => %s, tags => ARRAY[NULL, 'x'])",
        ("\x1b]0;pwn\x07k\u202e", "l\x1b[31m"),
    )
    for words in (["jobs"], ["jobs", 1], ["lanes"], ["why", 1], ["health"]):
        ran = pulse(*words)
        assert ran.code == 0 or words == ["health"], ran.err
        output = (ran.out + ran.err).replace("\x1b[0m", "")
        assert not set("\x1b\x07\u202e") & set(output)
        assert "pwn" in output or "l\ufffd" in output or words == ["health"]
    refused = pulse("drain", "\x1b[2Jlane")
    assert refused.code == 1
    assert "\x1b" not in refused.err


def test_no_text_of_others_steers_the_terminal(pulse: Pulse, connect: Connect) -> None:
    """Notes and reasons of producers, handlers and operators, in tables and in JSON."""
    evil = "x\x1b[2J\x9b31m\u202e\u2066\u200f"
    database = connect()
    for _ in range(2):
        database.execute("SELECT pulse.enqueue('k')")
    database.execute(
        "SELECT pulse.progress(lease, 0.5, %s)"
        " FROM pulse.claim_batch('w', max_jobs => 2)",
        (evil,),
    )
    database.execute("SELECT pulse.cancel(1, reason => %s)", (evil,))
    database.execute("SELECT pulse.schedule('s', 'k', every => '1 day')")
    database.execute("SELECT pulse.pause_schedule('s', reason => %s)", (evil,))
    database.execute("SELECT pulse.pause(%s, reason => %s)", (evil, evil))
    for words in ("ps", "schedule list", "lanes", "health", "audit", "jobs"):
        for options in ((), ("--json",)):
            ran = pulse(*words.split(), *options)
            assert ran.code == 0 or words == "health", ran.err
            output = (ran.out + ran.err).replace("\x1b[0m", "")
            assert not set("\x1b\x9b\u202e\u2066\u200f") & set(output), words
    noted = [row["progress_note"] for row in pulse("ps", "--json").json]
    assert noted == [evil, evil]


def test_jobs_newest_first_and_filtered(pulse: Pulse, connect: Connect) -> None:
    assert "No jobs" in pulse("jobs").out
    connection = connect()
    connection.execute("SELECT pulse.enqueue('old', tags => '{rare}')")
    connection.execute(
        "SELECT pulse.enqueue_many('new', array_fill('{}'::jsonb, ARRAY[5000]))"
    )
    rows = pulse("jobs", "-n", 3, "--json").json
    assert [row["job_id"] for row in rows] == [str(n) for n in (5001, 5000, 4999)]
    # The one that is far behind is found as well.
    assert pulse("jobs", "--tag", "rare", "--json").json[0]["job_id"] == "1"
    assert pulse("jobs", "--kind", "old", "--state", "dead", "--json").json == []
    output = pulse("jobs").out
    assert "The newest 20; older ones with --before 4982." in output


def test_one_job_in_full(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    connection.execute("SELECT pulse.enqueue('x', '{\"a\": [1]}')")
    (lease,) = claim(connection)
    connection.execute("SELECT pulse.fail(%s, 'it [broke]')", [lease])
    output = pulse("jobs", 1).out
    assert '{"a": [1]}' in output
    assert "it [broke]" in output
    (row,) = pulse("jobs", 1, "--json").json
    assert row["job_id"] == "1"
    assert row["errors"][0]["error"] == "it [broke]"
    assert pulse("jobs", 4711).code == 1


def test_why_in_words(pulse: Pulse, connect: Connect) -> None:
    connect().execute("SELECT pulse.enqueue('x')")
    connect().execute("SELECT pulse.pause('deploy', 'rolling out')")
    output = pulse("why", 1).out
    assert "everything is paused by deploy: rolling out" in output
    assert pulse("why", 1, "--json").json["reasons"][0]["position"] == 1


def test_health_fails_when_a_check_fails(pulse: Pulse, connect: Connect) -> None:
    connect().execute("SELECT pulse.tick()")
    assert pulse("health").code == 0
    assert pulse("health", "--strict").code == 1
    names = [row["check_name"] for row in pulse("health", "--json").json]
    assert {"last_tick", "watchdog", "package", "listen"} <= set(names)
    connect().execute("DELETE FROM pulse_internal.upkeep_run")
    ran = pulse("health")
    assert ran.code == 1
    assert "→ Delayed jobs, schedules and lost workers wait for tick" in ran.out


def test_health_names_kinds_that_nobody_handles(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    connection.execute("SELECT pulse.enqueue('orphan')")
    connection.execute(
        "UPDATE pulse_internal.ready SET ready_at = clock_timestamp() - interval '3 "
        "minutes'"
    )
    connection.execute("SELECT pulse.hello('w1', '{default}', '{other}')")
    assert "orphan in lane default" in pulse("health").out


# -- steering ---------------------------------------------------------------------


def test_cancel_by_id_and_by_filter(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    connection.execute("SELECT pulse.enqueue('x', lane => 'a')")
    claim(connection, "a")
    connection.execute(
        "SELECT pulse.enqueue_many('x', array_fill('{}'::jsonb, ARRAY[2500]))"
    )
    assert pulse("cancel", 1).out == "1  asked to stop\n"
    assert pulse("cancel", 1, "--force").out == "1  cancelled\n"
    ran = pulse("cancel", 2, 9999, 3)
    assert ran.code == 1
    assert ran.out == "2  cancelled\n3  cancelled\n"
    assert "9999" in ran.err
    ran = pulse("cancel", "--lane", "default", "--dry-run")
    assert ran.out == "cancel: would act on 2,498 jobs\n"
    ran = pulse("cancel", "--lane", "default", "--reason", "no longer wanted", "-y")
    assert ran.out == "cancel: 2,498 jobs\n"
    assert pulse("cancel", "--all", "--json", "--yes").json["done"] == 0
    reasons = "SELECT count(*) FROM pulse.audit WHERE reason = 'no longer wanted'"
    assert value(connection, reasons) != 0
    assert pulse("cancel", "--where", "nonsense").code == 2
    assert pulse("cancel", 1, "--all").code == 2


def test_retry_reprioritize_approve_reject(pulse: Pulse, connect: Connect) -> None:
    connection = connect()
    for _ in range(3):
        connection.execute("SELECT pulse.enqueue('x', requires_approval => true)")
    assert pulse("approve", 1).out == "1  ready\n"
    assert pulse("reject", 2, "--reason", "no").out == "2  cancelled\n"
    ran = pulse("approve", "--state", "awaiting_approval", "--yes")
    assert ran.out == "approve: 1 job\n"
    assert pulse("reprioritize", 1, "-p", 5).out == "1  ready\n"
    assert value(connection, "SELECT max(priority) FROM pulse.jobs") == 5
    # Its name elsewhere.
    ran = pulse("nice", "--kind", "x", "-p", -1, "--yes")
    assert ran.out == "reprioritize: 2 jobs\n"
    # To retry is not to approve.
    assert pulse("retry", 2).out == "2  awaiting_approval\n"
    ran = pulse("retry", 2)
    assert ran.code == 1
    assert "cannot retry job 2: it is awaiting_approval [PU105]" in ran.err
    assert pulse("retry", "--state", "dead", "--json", "--yes").json["done"] == 0


@pytest.mark.parametrize(
    "verb", ["cancel", "retry", "approve", "reject", "reprioritize", "nice"]
)
def test_a_filter_needs_yes_where_nobody_can_be_asked(
    pulse: Pulse, connect: Connect, verb: str
) -> None:
    """However many it matches: a script finds out on its first run."""
    priority = ("-p", 1) if verb in ("reprioritize", "nice") else ()
    for _ in range(2):
        for how in ((), ("--json",)):
            ran = pulse(verb, "--all", *priority, *how)
            assert ran.code == 2
            assert "Standard input is not a terminal." in ran.err
            assert "--yes" in ran.err
        assert pulse(verb, "--all", "--dry-run", *priority).code == 0
        connect().execute("SELECT pulse.enqueue('x', requires_approval => true)")
    states = "SELECT string_agg(DISTINCT state, ',') FROM pulse.jobs"
    assert value(connect(), states) == "awaiting_approval"
    assert value(connect(), "SELECT max(priority) FROM pulse.jobs") == 0


def test_a_lane_that_nothing_names_is_refused(pulse: Pulse, connect: Connect) -> None:
    for verb in ("drain", "pause", "resume"):
        ran = pulse(verb, "nolane")
        assert ran.code == 1
        assert "there is no lane nolane: no job, setting, kind, worker" in ran.err
        assert "Fix: pulse lanes" in ran.err
    # All or nothing.
    assert pulse("drain", "default", "nolane").code == 1
    assert value(connect(), "SELECT count(*) FROM pulse.audit") == 0
    assert pulse("drain", "nolane", "--new").out == "nolane  drained\n"
    assert pulse("resume", "nolane").code == 0
    assert pulse("pause", "nolane2", "--new").code == 0


@pytest.mark.parametrize(
    "named_by",
    [
        "SELECT pulse.set_lane('mail', max_slots => 3)",
        "SELECT pulse.enqueue('x', lane => 'mail')",
        "SELECT pulse.enqueue('x', lane => 'mail', delay => '1 day')",
        "SELECT pulse.enqueue('x', lane => 'mail', requires_approval => true)",
        "SELECT pulse.cancel(pulse.enqueue('x', lane => 'mail'))",
        "SELECT pulse.set_kind('x', lane => 'mail')",
        "SELECT pulse.hello('w1', '{mail}')",
        "SELECT pulse.pause('ada', lane => 'mail', new => true)",
    ],
)
def test_a_lane_is_known_by_whatever_names_it(
    pulse: Pulse, connect: Connect, named_by: str
) -> None:
    connect().execute(named_by.encode())
    ran = pulse("drain", "mail")
    assert ran.code == 0, ran.err
    assert ran.out == "mail  drained\n"


def test_drain_waits_until_nothing_runs(pulse: Pulse, connect: Connect) -> None:
    import threading

    connection = connect()
    connection.execute("SELECT pulse.enqueue('x', lane => 'mail')")
    (lease,) = claim(connection, "mail")
    ran = pulse("drain", "mail", "--wait", "--timeout", 0.3)
    assert ran.code == 6
    assert "1 job still running after 0.3 s" in ran.err
    assert "Fix: pulse ps --lane mail" in ran.err
    other = connect()
    finish = threading.Timer(
        0.5, lambda: other.execute("SELECT pulse.complete(%s)", [lease])
    )
    finish.start()
    ran = pulse("drain", "mail", "--wait")
    finish.join()
    assert ran.code == 0
    assert "mail  was drained already" in ran.out
    assert "No job runs. Open again: pulse resume mail" in ran.out
    assert pulse("resume", "mail").out == "lane mail: resumed\n"
    assert pulse("drain", "mail", "--json").json == [{"lane": "mail", "running": 0}]


def test_pause_and_resume_nest_by_holder(pulse: Pulse) -> None:
    assert pulse("pause", "--holder", "ada").out == "everything paused by ada\n"
    assert pulse("pause", "--holder", "bob", "--reason", "why").code == 0
    output = pulse("resume", "--holder", "ada").out
    assert "everything: resumed\n  still held by bob since" in output
    assert "(pulse resume --holder bob)" in output
    assert pulse("resume", "--holder", "bob", "--json").json["holds"] == []
    assert (
        pulse("pause", "mail", "--new", USER="eve").out == "lane mail paused by eve\n"
    )
    assert pulse("resume", "mail", USER="eve").out == "lane mail: resumed\n"
    assert "no hold of eve" in pulse("resume", "default", USER="eve").out


# -- the whole --------------------------------------------------------------------


def test_help_names_every_verb(run_pulse: Pulse) -> None:
    output = run_pulse("--help").out
    for verb in (
        *("work", "enqueue", "schedule", "ps", "lanes", "top", "jobs", "why", "health"),
        *("cancel", "reprioritize", "retry", "approve", "drain", "pause", "resume"),
        *("install", "dev", "demo"),
    ):
        assert f"\n  {verb} " in output
        helped = run_pulse(verb, "--help")
        assert helped.code == 0
        assert f"Usage: pulse {verb}" in helped.out
    assert "nice" not in output
    for lists in (output, run_pulse("schedule", "--help").out):
        assert "..." not in lists.partition("Options:")[2]
    assert "Exit codes: 0 done" in " ".join(output.split())
    assert run_pulse("--version").out.startswith("pulse, version 1.0")


def test_the_dsn_comes_from_where_people_put_it(run_pulse: Pulse, db: Database) -> None:
    assert run_pulse("--dsn", db.dsn, "lanes").code == 0
    assert run_pulse("lanes", "--dsn", db.dsn, PULSE_DSN="postgresql:///no").code == 0
    assert run_pulse("lanes", PULSE_DSN=db.dsn, DATABASE_URL="nonsense").code == 0
    url = f"postgresql+psycopg://postgres@/{db.name}?host={db.server.socket}"
    assert run_pulse("lanes", DATABASE_URL=url).code == 0
    ours = {
        "PGHOST": str(db.server.socket),
        "PGUSER": "postgres",
        "PGDATABASE": db.name,
    }
    assert run_pulse("lanes", **ours).code == 0


def test_jobs_that_wait_get_another_time(pulse: Pulse, connect: Connect) -> None:
    pulse("enqueue", "mail", "--delay", "1 hour")
    assert pulse("reschedule", 1, "--in", "3 hours").out == "1  scheduled\n"
    assert pulse("reschedule", 1, "--at", "2099-01-01", "--json").json == [
        {"job_id": "1", "state": "scheduled"}
    ]
    assert pulse("reschedule", 1).code == 2
    assert pulse("reschedule", 1, "--at", "nonsense").code == 1
    assert pulse("run-now", "--all", "--dry-run").out == (
        "run-now: would act on 1 job\n"
    )
    assert pulse("run-now", 1).out == "1  ready\n"
    pulse("reschedule", "--kind", "mail", "--in", "1 hour", "--yes")
    assert value(connect(), "SELECT state FROM pulse.jobs") == "scheduled"


def test_jobs_that_ended_run_again_or_go(pulse: Pulse, connect: Connect) -> None:
    pulse("enqueue", "mail")
    pulse("cancel", 1)
    assert pulse("rerun", 1).out == "1  runs again as 2\n"
    assert pulse("rerun", 1, "--json").json == [{"job_id": "1", "rerun_as": "3"}]
    assert pulse("rerun", 2).code == 1
    assert pulse("discard", 2).code == 1
    assert pulse("discard", 1).out == "1  deleted\n"
    pulse("cancel", "--all", "--yes")
    assert pulse("discard", "--state", "cancelled", "--yes").out == "discard: 2 jobs\n"
    assert value(connect(), "SELECT count(*) FROM pulse.jobs") == 0


def test_a_schedule_is_run_now(pulse: Pulse, connect: Connect) -> None:
    pulse("schedule", "add", "nightly", "mail", "--every", "1 day")
    assert pulse("schedule", "run", "nightly").out == "nightly  job 1\n"
    assert pulse("schedule", "run", "nothing").code == 1
    assert value(connect(), "SELECT kind FROM pulse.jobs") == "mail"
