"""manage.py pulse_worker: finds the tasks, keeps connections fresh, reloads."""

from __future__ import annotations

import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import pulse
from tests.django.conftest import PATIENCE, PROJECT, Project, Worker
from tests.project.killed import LAPSE

Work = Callable[..., Worker]


def test_it_runs_all_kinds_of_tasks_in_all_lanes(work: Work, migrated: Project) -> None:
    migrated.db.psql("-c", "INSERT INTO shop_order (email, job_id) VALUES ('a', '')")
    worker = work()
    number = worker.enqueue("confirm", "a", lane="mail")
    assert worker.result(number) == "order 1"
    assert worker.result(worker.enqueue("look_up", "a")) == 1
    assert worker.result(worker.enqueue("add", 1)) == 2
    assert worker.job(number)["worker"] in worker.out
    context = worker.result(worker.enqueue("context_of"))
    assert (context["attempt"], context["workers"]) == (1, 1)
    child = worker.result(
        worker.enqueue("count_in_a_process", lane="heavy", backend="heavy")
    )
    assert child["orders"] == 1
    assert child["pid"] != worker.process.pid
    connection = migrated.db.connect()
    plain = pulse.enqueue(connection, "plain", {"email": "a"})
    process = pulse.enqueue(connection, "plain-process", lane="heavy")
    on_the_loop = pulse.enqueue(connection, "plain-async")
    assert [worker.result(job) for job in (plain, process, on_the_loop)] == [1, 1, 1]
    assert worker.stop() == 0
    assert "has stopped" in worker.out


@pytest.mark.parametrize("kept", [False, True], ids=["closed", "kept"])
def test_a_lost_connection_costs_one_run(
    work: Work, migrated: Project, kept: bool
) -> None:
    if kept:
        migrated.environ["CONN_MAX_AGE"] = "None"
    worker = work("--concurrency", "1")
    for breaks, looks, lane in (
        ("end_own_connection", "backend_pid", "default"),
        ("end_own_connection_async", "backend_pid_async", "default"),
        ("end_connection_of_the_process", "count_in_a_process", "heavy"),
    ):
        for _ in range(2):
            worker.result(worker.enqueue(looks, lane=lane, backend=lane))
            error = worker.error(worker.enqueue(breaks, lane=lane, backend=lane))
            assert "OperationalError" in error
        worker.result(worker.enqueue(looks, lane=lane, backend=lane))


def test_connections_of_handlers_are_closed_as_after_a_request(
    work: Work, migrated: Project
) -> None:
    worker = work()
    ours = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name NOT LIKE 'pulse%' AND pid <> pg_backend_pid()"
    )
    before = int(migrated.db.psql("-c", ours))
    for name in ("backend_pid", "backend_pid_async"):
        worker.result(worker.enqueue(name))
    worker.until(lambda: int(migrated.db.psql("-c", ours)) == before)


def test_a_lane_may_have_its_own_slots(work: Work) -> None:
    worker = work("--lanes", "mail=2", "default", "--concurrency", "3", "--name", "me")
    assert worker.result(worker.enqueue("add", 1)) == 2
    assert "worker me starts: 2 in mail, 3 in default" in worker.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--lanes", "mail=0"), "'mail=0' is not LANE or LANE=SLOTS"),
        (("--concurrency", "0"), "every lane needs at least one slot"),
        ((), "Run manage.py migrate."),
    ],
)
def test_what_it_cannot_do_it_says(
    project: Project, arguments: tuple[str, ...], says: str
) -> None:
    ran = project.run("pulse_worker", *arguments)
    assert ran.code != 0
    assert says in ran.out
    assert "Traceback" not in ran.out


def test_it_starts_anew_when_code_changes(
    migrated: Project, work: Work, tmp_path: Path
) -> None:
    migrated.directory = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    # Bytecode would be taken for that of a file of the same size and the same second.
    migrated.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    code = migrated.directory / "shop/tasks.py"
    worker = work("--reload")
    assert worker.result(worker.enqueue("add", 1)) == 2
    running = pulse.enqueue(migrated.db.connect(), "hold")
    worker.until(lambda: worker.job(running)["state"] == "running")
    code.write_text(code.read_text().replace("return a + b", "return a - b"))
    written = time.monotonic()

    def restarted() -> bool:
        nonlocal written
        if time.monotonic() - written > 3:
            # Django takes a change before it has seen the file for the old state.
            code.touch()
            written = time.monotonic()
        return worker.out.count(" starts: ") >= 2

    worker.until(restarted)
    assert worker.result(worker.enqueue("add", 1)) == 0
    # It was not charged for the reload.
    worker.until(lambda: worker.job(running)["attempts"] >= 2)
    assert worker.job(running)["failures"] == 0
    worker.process.terminate()
    assert worker.process.wait(PATIENCE) == 0


def test_schedules_beside_the_tasks_are_written_and_run(
    work: Work, migrated: Project
) -> None:
    worker = work()
    connection = migrated.db.connect()
    number = worker.enqueue("add", 1)
    assert worker.result(number) == 2
    rows = connection.execute(
        "SELECT name, kind, cron, payload, options FROM pulse.schedules ORDER BY name"
    )
    assert rows.fetchall() == [
        ("hourly", "echo", None, [1, 2], {}),
        (
            *("monthly", "shop.tasks.report", "0 7 1 * *", {"month": "May"}),
            {
                "lane": "mail",
                "tags": ["slow"],
                "priority": 0,
                "max_attempts": 2,
                "max_runtime": "00:05:00",
            },
        ),
    ]

    def now(name: str) -> int:
        ran = connection.execute("SELECT pulse.run_schedule_now(%s)", [name])
        return int(ran.fetchall()[0][0])

    assert worker.result(now("monthly")) == "report of May"
    assert worker.result(now("hourly")) == [1, 2]


def test_schedules_need_to_know_whose_they_are(project: Project) -> None:
    project.environ["PULSE_APPLICATION"] = ""
    ran = project.run("pulse_worker")
    assert ran.code == 1
    assert "the schedules hourly, monthly need PULSE_APPLICATION" in ran.out
    assert "Traceback" not in ran.out


def test_a_database_that_settings_do_not_have(project: Project) -> None:
    ran = project.run("pulse_worker", "--database", "nope")
    assert ran.code == 1
    assert ran.out == "CommandError: The connection 'nope' doesn't exist.\n"


def test_it_restarts_and_answers_probes(work: Work) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    worker = work("--max-jobs", "1", "--max-memory", "2GB", "--health-port", str(port))
    assert worker.result(worker.enqueue("add", 1)) == 2
    worker.until(lambda: worker.out.count(" starts: ") == 2)
    assert "restarting: it has run 1 jobs" in worker.out
    first, second = (
        line.split()[4] for line in worker.out.splitlines() if " starts: " in line
    )
    assert first != second

    def is_live() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    worker.until(is_live)


# The cases of processes in django-tasks-db; there a killed worker's task runs for ever.


def test_a_signal_lets_tasks_end(work: Work, tmp_path: Path) -> None:
    worker = work()
    job = worker.enqueue("wait_for", str(tmp_path / "go"))
    # Not the log: what a signal meets before its handler begins is given back.
    worker.until((tmp_path / "go.begun").exists)
    worker.process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert worker.process.wait(PATIENCE) == 0
    assert worker.job(job)["state"] == "completed"


def test_a_second_signal_gives_them_back(work: Work, tmp_path: Path) -> None:
    worker = work()
    job = worker.enqueue("wait_for", str(tmp_path / "go"))
    # Not the log: what a signal meets before its handler begins is given back.
    worker.until((tmp_path / "go.begun").exists)
    # Of one number the second could be lost in the first.
    worker.process.send_signal(signal.SIGINT)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(PATIENCE) == 0
    assert (worker.job(job)["state"], worker.job(job)["failures"]) == ("ready", 0)


def test_what_a_killed_worker_had_runs_elsewhere(
    work: Work, migrated: Project, tmp_path: Path
) -> None:
    killed = work()
    job = killed.enqueue("wait_for", str(tmp_path / "go"), max_attempts=2)
    killed.until(lambda: killed.job(job)["state"] == "running")
    killed.process.kill()
    assert killed.process.wait(PATIENCE) == -signal.SIGKILL
    assert killed.job(job)["state"] == "running"
    migrated.db.psql("-c", LAPSE)
    (tmp_path / "go").touch()
    worker = work()
    assert worker.result(job) == str(tmp_path / "go")
    assert (worker.job(job)["attempts"], worker.job(job)["failures"]) == (2, 1)


def test_two_workers_share_the_tasks_and_survive_what_they_raise(work: Work) -> None:
    workers = [work(), work()]
    workers[0].until(lambda: all(" starts: " in each.out for each in workers))
    jobs = [workers[0].enqueue("add", n) for n in range(40)]
    for name in ("leave", "interrupt"):
        raised = workers[0].enqueue(name, backend="once")
        assert workers[0].error(raised).strip() != ""
    assert [workers[0].result(job) for job in jobs] == [n + 1 for n in range(40)]
    assert {workers[0].job(job)["attempts"] for job in jobs} == {1}
    assert [worker.stop() for worker in workers] == [0, 0]
