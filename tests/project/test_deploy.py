"""deploy/: rules that fire when they should, a dashboard that asks for what exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pulse.cli.web import web
from pulse.web.routes import metrics
from tests.conftest import Connect
from tools import paths

DEPLOY = paths.ROOT / "deploy"
RULES = DEPLOY / "prometheus/alerts.yml"
PROMTOOL = paths.prometheus("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here: make setup says why"
)


def promtool(*arguments: str | Path, given: str | None = None) -> str:
    done = subprocess.run(
        [str(PROMTOOL), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def served() -> set[str]:
    """Every name of /metrics, as PromQL asks for it."""
    names = {f"{name}_total" for name, *_ in metrics.COUNTERS}
    for name, *_ in metrics.HISTOGRAMS:
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    gauges = (*metrics.LANE_GAUGES, *metrics.KIND_GAUGES, *metrics.GAUGES)
    names |= {name for name, *_ in gauges}
    return names | {"pulse_lane_held", "pulse_workers", "pulse_holds", "pulse_health"}


def named(text: str) -> set[str]:
    return set(re.findall(r"\bpulse_[a-z_]+", text))


def dashboard() -> list[dict[str, Any]]:
    panels = json.loads((DEPLOY / "grafana/pulse.json").read_text())["panels"]
    return [target for panel in panels for target in panel["targets"]]


@needs_promtool
def test_every_alert_fires_in_trouble_and_none_when_it_is_calm() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", RULES.with_name("alerts.test.yml"))
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    tested = set(
        re.findall(r"alertname: (\w+)", RULES.with_name("alerts.test.yml").read_text())
    )
    assert alerts == tested


@needs_promtool
def test_the_example_scrapes_where_pulse_web_listens() -> None:
    example = RULES.with_name("prometheus.yml")
    promtool("check", "config", example)
    (port,) = (option.default for option in web.params if option.name == "port")
    assert f"'127.0.0.1:{port}'" in example.read_text()


def test_keda_asks_for_what_waits_and_runs(connect: Connect) -> None:
    page = (paths.ROOT / "docs/metrics.md").read_text()
    (query,) = re.findall(r"^ +query: (SELECT .*)$", page, re.MULTILINE)
    assert f"{query};" in page, "the block that the docs run is the one of the scaler"
    connection = connect()
    connection.execute("CREATE ROLE scaler LOGIN")
    try:
        scaler = connect(user="scaler")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            scaler.execute(query.encode())
        connection.execute("SELECT pulse.grant_access('scaler', 'viewer')")
        assert scaler.execute(query.encode()).fetchone() == (0,)
        for lane in ("mail", "mail", "mail", "other"):
            connection.execute("SELECT pulse.enqueue('k', lane => %s)", [lane])
        connection.execute("SELECT pulse.claim_batch('w', 'mail')")
        assert scaler.execute(query.encode()).fetchone() == (3,)
        scaler.close()
    finally:
        connection.execute("SELECT pulse.revoke_access('scaler', 'viewer')")
        connection.execute("DROP ROLE scaler")


@needs_promtool
def test_a_rule_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    """The test of the rules can fail."""
    broken = RULES.read_text().replace("pulse_tick_age_seconds > 60", "vector(0) > 1")
    (tmp_path / "alerts.yml").write_text(broken)
    tests = RULES.with_name("alerts.test.yml").read_text()
    (tmp_path / "tests.yml").write_text(tests)
    with pytest.raises(AssertionError, match="PulseTickLate"):
        promtool("test", "rules", tmp_path / "tests.yml")


@needs_promtool
def test_every_query_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for target in dashboard():
        expr = target["expr"].replace("$__rate_interval", "5m")
        lines += [f"  - record: x\n    expr: {json.dumps(expr)}"]
    (tmp_path / "rules.yml").write_text("\n".join(lines))
    promtool("check", "rules", tmp_path / "rules.yml")


def test_alerts_and_dashboard_ask_for_what_is_served() -> None:
    asked = named(RULES.read_text()) | named(" ".join(t["expr"] for t in dashboard()))
    assert asked <= served()
    assert len(asked) > 15
