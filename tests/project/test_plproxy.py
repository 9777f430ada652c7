"""examples/plproxy: the calls of a client, routed over four databases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Connection
from tools import paths, servers
from tools.servers import Server

PLPROXY = paths.plproxy()
pytestmark = pytest.mark.skipif(
    PLPROXY is None or servers.primary().major != 15,
    reason="no PL/Proxy for PostgreSQL 15 here: make setup says why",
)
ROUTER = paths.ROOT / "examples/plproxy/router.sql"


@pytest.fixture(scope="module")
def router() -> Iterator[Connection]:
    assert PLPROXY is not None
    library = PLPROXY / "lib/postgresql/15/lib"
    with Server(
        servers.primary(), {"dynamic_library_path": f"{library}:$libdir"}
    ) as server:
        files = Path(PLPROXY, "share/postgresql/15/extension").glob("plproxy*")
        for file in files:
            shutil.copyfile(file, server.extensions / file.name)
        nodes = [server.create(f"node{n}", product="extension") for n in range(4)]
        for number, name in enumerate(nodes):
            server.psql(name, "-c", f"SELECT pulse.set_node({number})")
        server.create("router")
        ways = [f"host={server.socket} port={server.port} dbname={n}" for n in nodes]
        server.psql(
            "router",
            *("-v", f"nodes={'|'.join(ways)}", "-v", "role=postgres"),
            *("-f", str(ROUTER)),
        )
        with psycopg.connect(server.dsn("router"), autocommit=True) as connection:
            yield connection


def test_a_client_of_any_language_sees_one_queue(router: Connection) -> None:
    ids = [
        row[0]
        for row in router.execute(
            "SELECT pulse.enqueue('k', unique_key => 'key ' || n)"
            " FROM generate_series(1, 40) AS n"
        )
    ]
    assert {job >> 43 for job in ids} == {0, 1, 2, 3}
    again = "SELECT pulse.enqueue('k', unique_key => 'key 7')"
    assert router.execute(again).fetchone() == (ids[6],)
    cancelled = router.execute("SELECT pulse.cancel(%s)", (ids[0],)).fetchone()
    assert cancelled == ("cancelled",)
    lanes = router.execute("SELECT node, depth FROM pulse.lanes WHERE lane = 'default'")
    assert sum(depth for _, depth in lanes.fetchall()) == 39
    done: set[int] = set()
    for _ in range(1000):
        rows = router.execute("SELECT * FROM pulse.claim_batch('w', max_jobs => 5)")
        for lease, job, _kind, _payload, _attempt in rows.fetchall():
            assert lease >> 53 == job >> 43
            router.execute("SELECT pulse.complete(%s)", (lease,))
            done.add(job)
        if len(done) == 39:
            break
    assert done == set(ids[1:])


def test_leases_of_several_nodes_beat_in_one_call(router: Connection) -> None:
    for n in range(40):
        router.execute("SELECT pulse.enqueue('k', unique_key => %s)", (f"beat {n}",))
    leases: set[int] = set()
    while len({lease >> 53 for lease in leases}) < 4:
        rows = router.execute("SELECT lease FROM pulse.claim_batch('w')")
        leases |= {row[0] for row in rows.fetchall()}
    stale = min(leases) + 1
    beats = "SELECT lease, verdict FROM pulse.heartbeat(%s)"
    found = dict(router.execute(beats, ([*leases, stale],)).fetchall())
    assert found == {**dict.fromkeys(leases, "ok"), stale: "lost"}
    given = "SELECT verdict FROM pulse.release(%s)"
    back = router.execute(given, (list(leases),)).fetchall()
    assert back == [("ok",)] * len(leases)
    after = dict(router.execute(beats, (list(leases),)).fetchall())
    assert after == dict.fromkeys(leases, "lost")


def test_a_question_goes_to_the_node_of_the_job(router: Connection) -> None:
    later = "SELECT pulse.enqueue('k', delay => '1 hour', unique_key => 'later')"
    row = router.execute(later).fetchone()
    assert row is not None
    reasons = router.execute("SELECT reason FROM pulse.why(%s)", row).fetchall()
    assert "due" in reasons[0][0]


def test_errors_keep_their_code(router: Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        router.execute("SELECT pulse.complete(1)")
    assert caught.value.sqlstate == "PU101"
