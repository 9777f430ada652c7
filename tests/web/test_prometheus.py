"""Prometheus scrapes a queue at work; in the end its counters are the database's."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Connection, Database
from tests.web.conftest import Serve, Site
from tools import paths

PROMETHEUS = paths.prometheus("prometheus")
PROMTOOL = paths.prometheus("promtool")
ALERTS = paths.ROOT / "deploy/prometheus/alerts.yml"

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="no Prometheus here: make setup says why"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def prometheus(
    db: Database, serve: Serve, tmp_path: Path
) -> Iterator[tuple[httpx.Client, Site]]:
    """A Prometheus that scrapes the app each half second."""
    site = serve(db.dsn)
    target = site.url.removeprefix("http://")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {evaluation_interval: 500ms}\n"
        "scrape_configs:\n- job_name: pulse\n  scrape_interval: 500ms\n"
        f"  scrape_timeout: 500ms\n  static_configs: [{{targets: ['{target}']}}]\n"
        f"rule_files: ['{ALERTS}']\n"
    )
    port = free_port()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield client, site
    finally:
        process.terminate()
        process.wait(30)


def until(client: httpx.Client, query: str, wanted: float) -> None:
    """Wait for what must come; a scrape takes a while on a busy machine."""
    found: Any = None
    for _ in range(600):
        try:
            answer = client.get("/api/v1/query", params={"query": query}).json()
            found = answer["data"]["result"]
        except (httpx.TransportError, ValueError):
            found = "no answer"
        else:
            if found and float(found[0]["value"][1]) == wanted:
                return
        time.sleep(0.1)
    raise AssertionError(f"{query} is {found}, not {wanted}")


def work(db: Database, lane: str) -> None:
    """Jobs of three kinds: completed, retried, dead, cancelled, reaped."""
    connection = db.connect()
    for _ in range(3):
        connection.execute(
            "SELECT pulse.enqueue_many('send', array_fill('{}'::jsonb, ARRAY[40]), %s)",
            [lane],
        )
        for kind in ("report", "thumb"):
            connection.execute(
                "SELECT pulse.enqueue(%s, lane => %s, max_attempts => 2)"
                " FROM generate_series(1, 5)",
                [kind, lane],
            )
        leases = [
            row[0]
            for row in connection.execute(
                "SELECT lease FROM pulse.claim_batch('w', %s, 45)", [lane]
            )
        ]
        connection.execute("SELECT pulse.complete_batch(%s)", [leases[:30]])
        connection.execute(
            "SELECT pulse.fail_batch(%s, retry_in => array_fill('0'::interval,"
            " ARRAY[10]))",
            [leases[30:40]],
        )
        connection.execute(
            "SELECT pulse.fail_batch(%s, fatal => '{true,true}')", [leases[43:]]
        )
        connection.execute(
            "UPDATE pulse_internal.lease SET lease_until = now() - interval '1 s',"
            " reap_at = now() - interval '1 s' WHERE lease = ANY (%s)",
            [leases[40:43]],
        )
        connection.execute("SELECT pulse.reap()")
        connection.execute(
            "SELECT pulse.cancel(job_id) FROM pulse.jobs"
            " WHERE state = 'ready' AND lane = %s ORDER BY job_id LIMIT 4",
            [lane],
        )


# What the tables have, however it was counted.
TRUTH = {
    "pulse_jobs_enqueued_total": "SELECT count(*) FROM pulse_internal.body",
    "pulse_jobs_completed_total": (
        "SELECT count(*) FROM pulse_internal.finished WHERE state = 'completed'"
    ),
    "pulse_jobs_dead_total": "SELECT count(*) FROM pulse_internal.finished WHERE "
    "state = 'dead'",
    "pulse_jobs_cancelled_total": (
        "SELECT count(*) FROM pulse_internal.finished WHERE state = 'cancelled'"
    ),
    "pulse_runs_failed_total": "SELECT count(*) FROM pulse_internal.failure",
    "pulse_runs_reaped_total": (
        "SELECT count(*) FROM pulse_internal.failure WHERE error = 'worker lease "
        "expired'"
    ),
    "pulse_jobs_retried_total": (
        "SELECT count(*) - (SELECT count(*) FROM pulse_internal.finished WHERE "
        "state = 'dead')"
        " FROM pulse_internal.failure"
    ),
    # Ends of runs, and what still runs.
    "pulse_runs_started_total": (
        "SELECT (SELECT count(*) FROM pulse_internal.lease)"
        " + (SELECT count(*) FROM pulse_internal.failure)"
        " + (SELECT count(*) FROM pulse_internal.finished WHERE state = 'completed')"
    ),
}


@needs_prometheus
def test_counters_that_prometheus_scraped_are_the_truth(
    prometheus: tuple[httpx.Client, Site], connection: Connection, db: Database
) -> None:
    client, site = prometheus
    until(client, "up", 1)
    with ThreadPoolExecutor() as pool:
        loads = [pool.submit(work, db, lane) for lane in ("mail", "bulk", "reports")]
        while not all(load.done() for load in loads):
            connection.execute("SELECT pulse_internal.tick('{count,sweep}')")
        for load in loads:
            load.result()
    connection.execute(
        "UPDATE pulse_internal.upkeep_run SET taken_at = now() - interval '1 d'"
    )
    connection.execute("SELECT pulse.tick()")
    for name, query in TRUTH.items():
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        assert row[0] > 0, name
        until(client, f"sum({name})", row[0])
    until(client, "sum(pulse_run_seconds_count)", one_row(connection, RUNS))
    until(client, "count(pulse_jobs_dead_total) - count(pulse_jobs_enqueued_total)", 0)
    text = site.client().get("/metrics").text
    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


# The first is about a transaction that is open for an hour, the other one about no
# answer at all: promtool tries these.
NOT_HERE = {"PulseHorizonPinned", "PulseMetricsMissing"}
TROUBLE = (
    "SELECT pulse.enqueue('forgotten', lane => 'attic')",
    "UPDATE pulse_internal.ready SET ready_at = now() - interval '10 minutes'",
    "SELECT pulse.schedule('nightly', 'sweep', cron => '0 3 * * *')",
    "UPDATE pulse_internal.schedule SET next_at = now() - interval '10 minutes'",
    "UPDATE pulse_internal.finished SET finished_at = now() - interval '9 days'",
    "UPDATE pulse_internal.upkeep_run SET taken_at = now() - interval '10 minutes'",
)


def kill(connection: Connection, jobs: int) -> None:
    connection.execute(
        "SELECT pulse.enqueue('card') FROM generate_series(1, %s)", [jobs]
    )
    connection.execute(
        "SELECT pulse.fail(lease, 'no', fatal => true)"
        " FROM pulse.claim_batch('w', max_jobs => %s)",
        [jobs],
    )
    connection.execute("SELECT pulse.tick()")


@needs_prometheus
def test_every_alert_is_raised_by_a_queue_in_trouble(
    prometheus: tuple[httpx.Client, Site], connection: Connection
) -> None:
    client, _ = prometheus
    kill(connection, 1)
    until(client, "sum(pulse_jobs_dead_total)", 1)
    raised = "count(count by (alertname) (ALERTS)) or vector(0)"
    until(client, raised, 0)
    connection.execute(
        "UPDATE pulse_internal.upkeep_run SET taken_at = now() - interval '1 d'"
    )
    connection.execute("SELECT pulse.set_lane('default', max_batch => 1000)")
    kill(connection, 1000)
    for statement in TROUBLE:
        connection.execute(statement.encode())
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text())) - NOT_HERE
    until(client, raised, len(alerts))
    answer = client.get("/api/v1/query", params={"query": "ALERTS"}).json()
    assert {each["metric"]["alertname"] for each in answer["data"]["result"]} == alerts


RUNS = (
    "SELECT (SELECT count(*) FROM pulse_internal.failure)"
    " + (SELECT count(*) FROM pulse_internal.finished WHERE state = 'completed')"
)


def one_row(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_each_kind_has_its_line(db: Database, serve: Serve) -> None:
    connection = db.connect()
    for lane in ("mail", "mail", "bulk"):
        connection.execute("SELECT pulse.enqueue('send', lane => %s)", [lane])
    connection.execute("SELECT pulse.claim_batch('w', 'bulk')")
    connection.execute("SELECT pulse.hello('w', '{bulk}', '{send}')")
    connection.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '1 hour'"
    )
    connection.execute("SELECT pulse.cancel(pulse.enqueue('gone'))")
    connection.execute("SELECT pulse.tick()")
    connection.execute(
        "SELECT pulse.set_kind('rare' || n, max_attempts => 2)"
        " FROM generate_series(1, 1001) AS n"
    )
    found: dict[str, dict[str, float]] = {}
    text = serve(db.dsn).client().get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("pulse_kind_"):
                found.setdefault(sample.name, {})[sample.labels["kind"]] = sample.value
    assert found["pulse_kind_ready"]["send"] == 2
    assert found["pulse_kind_running"]["send"] == 1
    assert found["pulse_kind_workers"]["send"] == 1
    assert 3600 <= found["pulse_kind_oldest_ready_seconds"]["send"] < 7200
    # Counted, and nothing of it is there now.
    assert found["pulse_kind_ready"]["gone"] == 0
    # A thousand have a series of their own, and the rest are one.
    assert len(found["pulse_kind_ready"]) == 1002
    assert "" in found["pulse_kind_ready"]


def test_what_never_happened_is_zero(db: Database, serve: Serve) -> None:
    connection = db.connect()
    connection.execute("SELECT pulse.enqueue('send', lane => 'mail')")
    connection.execute("SELECT pulse.tick()")
    samples = {
        (sample.name, sample.labels.get("lane"), sample.labels.get("kind")): sample
        for family in text_string_to_metric_families(
            serve(db.dsn).client().get("/metrics").text
        )
        for sample in family.samples
    }
    assert samples["pulse_jobs_enqueued_total", "mail", "send"].value == 1
    for name in ("pulse_jobs_dead_total", "pulse_runs_failed_total"):
        assert samples[name, "mail", "send"].value == 0
    assert samples["pulse_lane_dead", "mail", None].value == 0
    assert samples["pulse_lane_workers", "mail", None].value == 0
    assert samples["pulse_lane_oldest_ready_seconds", "default", None].value == 0
    assert ("pulse_lane_slots", "mail", None) not in samples

    # A lane of which retention has left nothing but counters.
    connection.execute("TRUNCATE pulse_internal.ready, pulse_internal.body CASCADE")
    assert connection.execute(
        "SELECT count(*) FROM pulse.lanes WHERE name = 'mail'"
    ).fetchone() == (0,)
    text = serve(db.dsn).client().get("/metrics").text
    for line in (
        'pulse_lane_ready{lane="mail"} 0.0',
        'pulse_lane_dead{lane="mail"} 0.0',
        'pulse_lane_enabled{lane="mail"} 1.0',
        'pulse_lane_held{lane="mail"} 0.0',
    ):
        assert line in text.splitlines()

    connection.execute("SELECT pulse.pause('deploy')")
    connection.execute("SELECT pulse.pause('deploy', lane => 'default')")
    text = serve(db.dsn).client().get("/metrics").text
    assert 'pulse_lane_held{lane="mail"} 1.0' in text.splitlines()
    assert 'pulse_lane_held{lane="default"} 2.0' in text.splitlines()
