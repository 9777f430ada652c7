"""A queue outlives pg_dump and pg_restore: nothing is lost, and everything goes on."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection, Database
from tools.servers import Server

CACHES = [
    *("roster", "mark", "due_mark", "horizon", "upkeep_run"),
    *("group_notice", "group_state", "group_mark", "quota"),
]
STATES = {
    *("awaiting_approval", "scheduled", "ready", "running", "retrying"),
    *("completed", "dead", "cancelled"),
}


def one(connection: Connection, query: str, *values: Any) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    return row and row[0]


def job(connection: Connection, kind: str, **more: Any) -> int:
    named = "".join(f", {name} => %s" for name in more)
    found = one(connection, f"SELECT pulse.enqueue(%s{named})", kind, *more.values())
    assert isinstance(found, int)
    return found


def claim(connection: Connection, lane: str, n: int = 1) -> list[tuple[int, int]]:
    """(lease, job) of what was claimed, for an hour."""
    return connection.execute(
        "SELECT lease, job_id FROM pulse.claim_batch('w', %s, %s, lease_for => '1 h')",
        [lane, n],
    ).fetchall()


def states(connection: Connection) -> dict[int, str]:
    return dict(connection.execute("SELECT job_id, state FROM pulse.jobs").fetchall())


def tables(connection: Connection) -> list[str]:
    return [
        name
        for (name,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'pulse_internal'::regnamespace ORDER BY relname"
        )
    ]


def contents(connection: Connection) -> dict[str, list[str]]:
    """All that must be the same in the copy: rows of every table, and sequences."""
    seen = {}
    for table in tables(connection):
        if table not in CACHES:
            query = f"SELECT t::text FROM pulse_internal.{table} AS t ORDER BY 1"
            seen[table] = [row for (row,) in connection.execute(query.encode())]
    for (name,) in connection.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'S'"
        " AND relnamespace = 'pulse_internal'::regnamespace"
    ).fetchall():
        query = (
            f"SELECT s.last_value || ' ' || s.is_called FROM pulse_internal.{name} AS s"
        )
        seen[name] = [one(connection, query)]
    return seen


class Queue:
    """A queue in use: jobs in every state, and all that stands around them."""

    def __init__(self, connection: Connection) -> None:
        run = connection.execute
        run("SELECT pulse.set_node(7)")
        run("SELECT pulse.set_lane('narrow', max_slots => 2, max_runtime => '3 h')")
        run("SELECT pulse.set_lane('off', enabled => false)")
        run("SELECT pulse.set_kind('mail', backoff => 'fixed', backoff_base => '1 h')")
        run("SELECT pulse.set_kind('risky', requires_approval => true)")
        run("SELECT pulse.grant_access('dump_shop', 'producer')")
        run("SELECT pulse.grant_access('dump_ops', 'operator')")
        run("SELECT pulse.hello('w', ARRAY['narrow'], ARRAY['mail'])")

        self.awaiting = job(connection, "risky")
        self.scheduled = job(connection, "late", delay="1 h", unique_key="k")

        self.completed = job(connection, "mail", unique_key="done", unique_for="1 day")
        [(self.completed_by, _)] = claim(connection, "default")
        run("SELECT pulse.complete(%s, '{\"n\": 1}')", [self.completed_by])
        self.retrying = job(connection, "mail")
        [(lease, _)] = claim(connection, "default")
        run("SELECT pulse.checkpoint(%s, '{\"page\": 3}')", [lease])
        run("SELECT pulse.fail(%s, 'it''s broken')", [lease])
        self.dead = job(connection, "mail", max_attempts=2)
        for retry_in in ("0 s", "1 s"):
            [(lease, _)] = claim(connection, "default")
            run("SELECT pulse.fail(%s, 'worse', %s)", [lease, retry_in])
        self.cancelled = job(connection, "mail")
        run("SELECT pulse.cancel(%s, 'not needed')", [self.cancelled])

        self.running = [job(connection, "mail", lane="narrow") for _ in range(2)]
        self.leases = [lease for lease, _ in claim(connection, "narrow", 5)]
        assert len(self.leases) == 2
        run("SELECT pulse.progress(%s, 0.5, 'half')", [self.leases[0]])
        run("SELECT pulse.heartbeat(%s)", [self.leases])
        self.ready = [
            job(connection, "mail", lane="narrow", priority=priority)
            for priority in (0, 5, 5, -1)
        ]
        self.held = [job(connection, "mail", lane=name) for name in ("held", "drained")]
        run("SELECT pulse.pause('deploy', 'a new schema', 'held')")
        run("SELECT pulse.drain_lane('drained', new => true)")
        rate = "rate => 1000, rate_per => '1 hour'"
        run(f"SELECT pulse.set_lane('tenants', group_slots => 1, {rate})")
        tenant = {"lane": "tenants", "group_key": "a"}
        self.tenants = [job(connection, "mail", **tenant) for _ in range(3)]
        [(self.tenant_lease, _)] = claim(connection, "tenants", 2)
        self.tenants.append(job(connection, "mail", lane="tenants", group_key="b"))

        run("SELECT pulse.schedule('often', 'mail', every => '1 s', lane => 'cron')")
        run("SELECT pulse.schedule('nightly', 'mail', cron => '@daily')")
        run("SELECT pulse.schedule('never', 'mail', every => '1 second')")
        run("SELECT pulse.pause_schedule('never', 'quiet')")
        run("SELECT pulse.tick()")
        for _ in range(3):
            run("SELECT pulse_internal.tick_marks()")
            time.sleep(0.03)
        run("SELECT pulse.reap()")
        assert set(states(connection).values()) == STATES
        assert not run("SELECT * FROM pulse.check()").fetchall()
        for cache in CACHES:
            assert one(connection, f"SELECT count(*) FROM pulse_internal.{cache}"), (
                cache
            )


@pytest.fixture
def roles(request: pytest.FixtureRequest) -> Iterator[Callable[[Server], None]]:
    """Roles are the cluster's: dropped when the databases that use them are."""
    used: list[Server] = []

    def make(server: Server) -> None:
        used.append(server)
        server.psql("postgres", "-c", "CREATE ROLE dump_owner LOGIN")
        server.psql("postgres", "-c", "CREATE ROLE dump_shop LOGIN")
        server.psql("postgres", "-c", "CREATE ROLE dump_ops LOGIN")

    yield make
    for server in used:
        server.psql("postgres", "-c", "DROP ROLE dump_owner, dump_shop, dump_ops")


@pytest.fixture
def new_copy(
    roles: Callable[[Server], None], request: pytest.FixtureRequest
) -> Callable[..., tuple[Database, Queue, Database]]:
    """Install, fill, dump and restore; (the original, what is in it, the copy)."""
    new_db: Callable[..., Database] = request.getfixturevalue("new_db")

    def make(
        server: Server, product: str, user: str
    ) -> tuple[Database, Queue, Database]:
        roles(server)
        original = new_db(product=None, on=server)
        copy = new_db(product=None, on=server)
        for database in (original, copy):
            database.psql("-c", f"ALTER DATABASE {database.name} OWNER TO {user}")
        if product == "extension":
            original.psql("-c", f"SET ROLE {user}; CREATE EXTENSION pulse")
        else:
            script = str(server.tree / "pulse.sql")
            original.psql("-c", f"SET ROLE {user}", "-f", script)
        queue = Queue(original.connect())
        dump_and_restore(server, user, original.name, copy.name)
        return original, queue, copy

    return make


def dump_and_restore(server: Server, user: str, original: str, copy: str) -> None:
    environ = {**server.environ(), "PGUSER": user}
    dump = subprocess.run(
        [str(server.install.program("pg_dump")), "-Fc", original],
        env=environ,
        capture_output=True,
        check=False,
    )
    assert dump.returncode == 0, dump.stderr.decode()
    restored = subprocess.run(
        [str(server.install.program("pg_restore")), "--exit-on-error", "-d", copy],
        env=environ,
        input=dump.stdout,
        capture_output=True,
        check=False,
    )
    assert restored.returncode == 0, restored.stderr.decode()


CASES = {
    "extension": ("server", "extension", "postgres"),
    "extension, ordinary owner": ("server", "extension", "dump_owner"),
    "plain script, ordinary owner": ("server", "plain", "dump_owner"),
    "extension on 18": ("server18", "extension", "dump_owner"),
}


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def copied(
    request: pytest.FixtureRequest,
    new_copy: Callable[..., tuple[Database, Queue, Database]],
) -> tuple[Database, Queue, Database, str]:
    server, product, user = request.param
    return (*new_copy(request.getfixturevalue(server), product, user), product)


def an_hour_passes(connection: Connection) -> None:
    """What is delayed comes due."""
    connection.execute(
        "WITH w AS (DELETE FROM pulse_internal.waiting RETURNING *) INSERT INTO "
        "pulse_internal.waiting"
        " SELECT w.lane, clock_timestamp(), w.job, w.kind, w.rank, w.attempts,"
        " w.failures, w.keyed, w.retrying, w.last_lease, w.last_verb FROM w"
    )


def complete_all(connection: Connection, lane: str) -> list[int]:
    """Work a lane until it is empty; the jobs in the order of their claims."""
    done = []
    while got := claim(connection, lane):
        done += [job for _, job in got]
        connection.execute("SELECT pulse.complete(%s)", [got[0][0]])
    return done


@pytest.mark.proves("G13", "R6")
def test_a_copy_is_equal_and_all_jobs_go_on(
    copied: tuple[Database, Queue, Database, str],
) -> None:
    original, queue, database, product = copied
    before = original.connect()
    copy = database.connect()
    run = copy.execute

    # The same, and sound.
    assert states(copy) == states(before)
    assert contents(copy) == contents(before)
    assert not run("SELECT * FROM pulse.check()").fetchall()
    if product == "extension":
        for cache in CACHES:
            assert one(copy, f"SELECT count(*) FROM pulse_internal.{cache}") == 0, cache
    newest_id = max(states(before))

    # The slots are counted anew from the leases: both are taken.
    assert claim(copy, "narrow", 5) == []
    beats = run("SELECT verdict FROM pulse.heartbeat(%s)", [queue.leases]).fetchall()
    assert beats == [("ok",), ("ok",)]

    # Groups too: one of a runs, its other jobs come in order when it has ended.
    assert complete_all(copy, "tenants") == [queue.tenants[3]]
    run("SELECT pulse.complete(%s)", [queue.tenant_lease])
    assert complete_all(copy, "tenants") == queue.tenants[1:3]

    # Leases fence as before, and reports may be repeated as before.
    kept, given = queue.leases
    run("SELECT pulse.complete(%s, '1')", [kept])
    run("SELECT pulse.complete(%s, '1')", [kept])
    run("SELECT pulse.complete(%s)", [queue.completed_by])
    run("SELECT pulse.release(ARRAY[%s::bigint])", [given])
    with pytest.raises(psycopg.DatabaseError) as lost:
        run("SELECT pulse.complete(%s)", [given])
    assert lost.value.sqlstate == "PU101"

    # By priority, then in order; who was given back joined the end.
    zero, five, fifth, below = queue.ready
    assert complete_all(copy, "narrow") == [five, fifth, zero, queue.running[1], below]
    assert one(
        copy, "SELECT min(lease) FROM pulse_internal.finished WHERE lease > %s", given
    )

    # Holds hold.
    for lane in ("held", "drained"):
        assert claim(copy, lane) == []
    assert one(copy, "SELECT reason FROM pulse.pause_status()") == "a new schema"
    assert one(copy, "SELECT pulse.resume('deploy', 'held')")
    assert one(copy, "SELECT pulse.resume_lane('drained')")
    assert complete_all(copy, "held") + complete_all(copy, "drained") == queue.held

    # Keys are taken; that of a finished job as well, for as long as it said.
    assert job(copy, "late", unique_key="k", delay="2 h") == queue.scheduled
    assert job(copy, "mail", unique_key="done") == queue.completed

    # What waits goes on to the end.
    assert one(copy, "SELECT pulse.approve(%s)", queue.awaiting) == "ready"
    assert one(copy, "SELECT pulse.retry(%s)", queue.dead) == "ready"
    assert one(copy, "SELECT pulse.retry(%s)", queue.cancelled) == "ready"
    an_hour_passes(copy)
    saved = run(
        "SELECT job_id, lease, attempt, checkpoint"
        " FROM pulse.claim_batch('w', max_jobs => 9)"
    ).fetchall()
    assert {row[0] for row in saved} == {
        *(queue.awaiting, queue.dead, queue.cancelled, queue.retrying, queue.scheduled)
    }
    seen = {row[0]: row[2:] for row in saved}
    assert seen[queue.retrying] == (2, {"page": 3})
    assert seen[queue.dead] == (3, None)
    for _, lease, *_ in saved:
        run("SELECT pulse.complete(%s)", [lease])
    assert all(states(copy)[number] == "completed" for number in states(before))

    # New ids come after the old ones and carry the node; the copy is set to choose.
    fresh = job(copy, "mail")
    assert fresh > newest_id
    assert fresh >> 43 == 7
    assert (
        one(copy, "SELECT status FROM pulse.health() WHERE check_name = 'node'")
        == "warn"
    )

    # Schedules fire, once per occurrence; a paused one does not.
    ticked = time.monotonic()
    while not claim(copy, "cron"):
        assert time.monotonic() < ticked + 20
        run("SELECT pulse.tick()")
        time.sleep(0.1)
    assert (
        one(copy, "SELECT count(*) FROM pulse.schedule_runs WHERE name = 'never'") == 0
    )
    assert one(
        copy, "SELECT next_at > now() FROM pulse.schedules WHERE name = 'nightly'"
    )

    # Caches are made again.
    job(copy, "mail", delay="1 h")
    for _ in range(3):
        run("SELECT pulse_internal.tick_marks()")
        time.sleep(0.03)
    run("SELECT pulse.reap()")
    # Notices were all read.
    for cache in set(CACHES) - {"group_notice"}:
        assert one(copy, f"SELECT count(*) FROM pulse_internal.{cache}"), cache
    assert not run("SELECT * FROM pulse.check()").fetchall()


def test_access_comes_along(copied: tuple[Database, Queue, Database, str]) -> None:
    _, queue, database, _ = copied
    shop = database.connect(user="dump_shop")
    mine = job(shop, "mail")
    assert list(states(shop)) == [mine]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        claim(shop, "default")
    operator = database.connect(user="dump_ops")
    assert one(operator, "SELECT pulse.cancel(%s)", queue.ready[0]) == "cancelled"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        one(operator, "SELECT pulse.set_node(8)")


NAMES = ("dump_one", "dump_two", "dump_missing")


@pytest.fixture
def two_clusters(server: Server, server18: Server) -> Iterator[tuple[Server, Server]]:
    """The roles of one in another order in the other, one of them missing."""
    there = ("dump_filler", "dump_two", "dump_one")
    for name in NAMES:
        server.psql("postgres", "-c", f"CREATE ROLE {name} LOGIN")
    for name in there:
        server18.psql("postgres", "-c", f"CREATE ROLE {name} LOGIN")
    yield server, server18
    for name in NAMES:
        server.psql("postgres", "-c", f"DROP ROLE {name}")
    for name in (*there, "dump_missing", "dump_found"):
        server18.psql("postgres", "-c", f"DROP ROLE IF EXISTS {name}")


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_in_another_cluster_jobs_belong_to_the_roles_of_the_same_names(
    two_clusters: tuple[Server, Server], new_db: Callable[..., Database], product: str
) -> None:
    """Oids differ there, a role is missing, and another role may have its oid."""
    here, there = two_clusters
    original = new_db(product=product)
    original.psql("-c", "DROP EXTENSION IF EXISTS pgtap")
    copy = new_db(product=None, on=there)
    for name in NAMES:
        original.psql("-c", f"SELECT pulse.grant_access('{name}', 'producer')")
    jobs = {name: job(original.connect(user=name), "mail") for name in NAMES}

    dump = subprocess.run(
        [str(here.install.program("pg_dump")), "-Fc", original.name],
        env={**here.environ(), "PGUSER": "postgres"},
        capture_output=True,
        check=True,
    )
    restored = subprocess.run(
        [str(there.install.program("pg_restore")), "-d", copy.name],
        env={**there.environ(), "PGUSER": "postgres"},
        input=dump.stdout,
        capture_output=True,
        check=False,
    )
    errors = [
        line for line in restored.stderr.decode().splitlines() if "ERROR:" in line
    ]
    missing = 'role "dump_missing" does not exist'
    assert [line for line in errors if missing not in line] == []

    # Who is there has its jobs; those of the missing role are nobody's. pg_restore
    # gives up all grants on an object when one grantee is missing.
    run = copy.connect().execute
    run("SELECT pulse_internal.apply_grants()")
    for name in ("dump_one", "dump_two"):
        assert list(states(copy.connect(user=name))) == [jobs[name]]
    orphans = "SELECT name FROM pulse_internal.role WHERE role_oid IS NULL"
    assert run(orphans).fetchall() == [("dump_missing",)]

    # Once it is there it has them again, and keeps them through a rename.
    there.psql("postgres", "-c", "CREATE ROLE dump_missing LOGIN")
    run("SELECT pulse.grant_access('dump_missing', 'producer')")
    found = copy.connect(user="dump_missing")
    assert list(states(found)) == [jobs["dump_missing"]]
    later = job(found, "mail")
    there.psql("postgres", "-c", "ALTER ROLE dump_missing RENAME TO dump_found")
    there.psql("postgres", "-c", "CREATE ROLE dump_missing LOGIN")
    renamed = copy.connect(user="dump_found")
    assert sorted(states(renamed)) == sorted([jobs["dump_missing"], later])
    run("SELECT pulse.grant_access('dump_missing', 'producer')")
    assert states(copy.connect(user="dump_missing")) == {}
    assert not run("SELECT * FROM pulse.check()").fetchall()


@pytest.mark.parametrize("product", ["extension", "plain"])
def test_a_queue_can_be_dumped_while_it_works(
    server: Server, new_db: Callable[..., Database], product: str
) -> None:
    original = new_db(product=product)
    copy = new_db(product=None)
    original.psql("-c", "DROP EXTENSION IF EXISTS pgtap")
    over = threading.Event()

    def work(lane: str) -> None:
        connection = original.connect()
        while not over.is_set():
            with connection.transaction():
                for _ in range(20):
                    job(connection, "mail", lane=lane)
                job(connection, "mail", lane=lane, delay="50 ms")
            leases = [lease for lease, _ in claim(connection, lane, 15)]
            connection.execute("SELECT pulse.complete_batch(%s)", [leases[:10]])
            connection.execute("SELECT pulse.release(%s)", [leases[10:12]])
            connection.execute("SELECT pulse.tick()")

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(work, lane) for lane in ("a", "b")]
        try:
            time.sleep(2)
            dump_and_restore(server, "postgres", original.name, copy.name)
        finally:
            over.set()
        for worker in workers:
            worker.result()

    connection = copy.connect()
    assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []
    assert {"ready", "running", "completed"} <= set(states(connection).values())
    connection.execute(
        "SELECT pulse.release(array_agg(lease)) FROM pulse_internal.lease"
    )
    an_hour_passes(connection)
    for lane in ("a", "b"):
        while leases := [lease for lease, _ in claim(connection, lane, 100)]:
            connection.execute("SELECT pulse.complete_batch(%s)", [leases])
    assert set(states(connection).values()) == {"completed"}
    assert connection.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_a_lapsed_lease_in_a_copy_is_reaped(
    server: Server, new_copy: Callable[..., tuple[Database, Queue, Database]]
) -> None:
    _, queue, database = new_copy(server, "extension", "postgres")
    copy = database.connect()
    copy.execute(
        "UPDATE pulse_internal.lease SET reap_at = NULL, lease_until = "
        "clock_timestamp()"
    )
    assert one(copy, "SELECT pulse.reap()") == len(queue.leases) + 1
    assert {states(copy)[number] for number in queue.running} == {"retrying"}


def test_a_publication_for_all_tables_does_not_stop_the_queue(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(wal_level="logical")
    database = Database(server, server.create(product="extension"))
    connection = database.connect()
    run = connection.execute
    run("CREATE PUBLICATION everything FOR ALL TABLES")

    # UPDATE and DELETE are refused on a published table without a replica identity.
    assert (
        run(
            "SELECT c.relname FROM pg_class AS c WHERE c.relkind = 'r'"
            " AND c.relnamespace = 'pulse_internal'::regnamespace AND NOT EXISTS ("
            "SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND (i.indisreplident"
            " OR (c.relreplident = 'd' AND i.indisprimary)))"
        ).fetchall()
        == []
    )

    server.psql("postgres", "-c", "CREATE ROLE dump_shop LOGIN")
    server.psql("postgres", "-c", "CREATE ROLE dump_ops LOGIN")
    queue = Queue(connection)
    for number in (*queue.ready, queue.scheduled, queue.retrying):
        run("SELECT pulse.reprioritize(%s, 3)", [number])
        run("SELECT pulse.move(%s, 'else')", [number])
    run("SELECT pulse.complete(%s)", [queue.leases[0]])
    run("SELECT pulse.progress(%s, 0.9)", [queue.leases[1]])
    run("SELECT pulse.cancel(%s)", [queue.running[1]])
    run("SELECT pulse.ack_cancel(%s)", [queue.leases[1]])
    run("SELECT pulse.approve(%s)", [queue.awaiting])
    run("SELECT pulse.retry(%s)", [queue.dead])
    run("SELECT pulse.delete_job(%s)", [queue.cancelled])
    run("SELECT pulse.resume('deploy', 'held')")
    run("SELECT pulse.resume_lane('drained')")
    run("SELECT pulse.unschedule('often')")
    run("SELECT pulse.set_lane('narrow', max_slots => 1)")
    run("SELECT pulse.set_kind('mail', priority => 1)")
    an_hour_passes(connection)
    for lane in ("default", "narrow", "else", "held", "drained", "cron"):
        complete_all(connection, lane)
    run(
        "UPDATE pulse_internal.finished SET finished_at = finished_at - interval "
        "'1 year'"
    )
    assert one(connection, "SELECT pulse.prune()")
    run("SELECT pulse.revoke_access('dump_shop', 'producer')")
    run("DELETE FROM pulse_internal.upkeep_run WHERE step <> 'watch'")
    errors = run(
        "SELECT step, error FROM pulse.tick() WHERE error IS NOT NULL"
    ).fetchall()
    assert errors == []
    assert not run("SELECT * FROM pulse.check()").fetchall()
    database.close()
