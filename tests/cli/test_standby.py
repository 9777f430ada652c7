"""On a standby, which can be read and not changed."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.cluster import Node
from tests.cli.conftest import Pulse
from tools.servers import Server


def test_health_of_a_standby(
    run_pulse: Pulse, new_server: Callable[..., Server]
) -> None:
    primary = new_server(wal_level="replica", max_wal_senders="4")
    name = primary.create(product="extension")
    standby = Node(primary.install, {}, source=primary)
    try:
        dsn = standby.dsn(name)
        ran = run_pulse("health", "--json", "--dsn", dsn)
        checks = {row["check_name"]: row for row in ran.json}
        assert checks["listen"]["status"] == "warn"
        assert "a standby" in checks["listen"]["figure"]
        assert ran.code in (0, 1)
        for verb in ("ps", "lanes", "jobs", "workers"):
            assert run_pulse(verb, "--dsn", dsn).code == 0, verb
        ran = run_pulse("enqueue", "x", "--dsn", dsn)
        assert ran.code == 1
        assert "read-only transaction [25006]" in ran.err
    finally:
        standby.close()
