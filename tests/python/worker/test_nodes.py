"""One worker and one client over three real servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import pulse
from pulse import errors
from tests.chaos.cluster import Node
from tests.conftest import Database
from tests.python.worker.conftest import PATIENCE, Start
from tools import paths, servers
from tools.servers import Server

PATIENT = "SELECT pulse.set_kind('k', max_attempts => 50, backoff_base => '1 ms')"
# A sweep may have seen them.
LAPSE = "UPDATE pulse_internal.lease SET lease_until = now(), reap_at = now()"
LEFT = "SELECT count(*) FROM pulse.jobs WHERE state <> 'completed'"


def until(true: object, what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what or true} did not come true"
        time.sleep(0.01)


class Servers:
    """Three servers, each with a database that is a node: 1, 2 and 3."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as starting:
            self.nodes: list[Server] = []
            for _ in range(3):
                self.nodes.append(Server(servers.primary()))
                starting.callback(self.nodes[-1].close)
            self._ends = starting.pop_all()

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


class Nodes:
    """Fresh databases on the three servers; a place is from 0 to 2."""

    def __init__(self, three: Servers) -> None:
        self.servers = three.nodes
        self.names = [s.create(product="extension") for s in self.servers]
        for place in range(3):
            self.ask(place, f"SELECT pulse.set_node({place + 1})")
            self.ask(place, PATIENT)

    def dsn(self, place: int) -> str:
        return self.servers[place].dsn(self.names[place])

    @property
    def dsns(self) -> list[str]:
        return [self.dsn(place) for place in range(3)]

    def ask(self, place: int, query: str) -> str:
        return self.servers[place].psql(self.names[place], "-c", query).strip()

    def fill(self, place: int, jobs: int, kind: str = "k") -> None:
        payloads = f"array_fill('{{}}'::jsonb, ARRAY[{jobs}])"
        self.ask(
            place, f"SELECT count(*) FROM pulse.enqueue_many('{kind}', {payloads})"
        )

    def left(self, *places: int) -> int:
        return sum(int(self.ask(place, LEFT)) for place in places or range(3))

    def check(self) -> None:
        for place in range(3):
            assert self.ask(place, "SELECT * FROM pulse.check()") == ""

    def close(self) -> None:
        for server, name in zip(self.servers, self.names, strict=True):
            server.psql("postgres", "-c", f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def nodes(three: Servers) -> Iterator[Nodes]:
    made = Nodes(three)
    yield made
    made.close()


class Story:
    """Which runs began and ended when, in the order of one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began: list[int] = []
        self.running: Counter[int] = Counter()
        self.most = 0
        self.may_end = threading.Event()
        self.may_end.set()
        self.permits = threading.Semaphore(0)
        """While may_end is not set: so many runs may end."""

    def handle(self, job: pulse.Job) -> None:
        with self._lock:
            self.began.append(job.node)
            self.running[job.node] += 1
            self.most = max(self.most, self.running.total())
        # Long enough that runs overlap.
        time.sleep(0.002)
        while not self.may_end.is_set() and job.should_continue():
            if self.permits.acquire(timeout=0.02):
                break
        with self._lock:
            self.running[job.node] -= 1

    def worker(self, dsns: list[str], slots: int, **options: object) -> pulse.Worker:
        worker = pulse.Worker(dsns, concurrency=slots, **options)  # type: ignore[arg-type]
        worker.handle("k")(self.handle)
        return worker


def until_all_ask(worker: pulse.Worker) -> None:
    """Until each node has claimed or been refused: every one takes part."""
    loops = worker._node_loops
    assert loops is not None
    members = loops._budget._nodes
    until(lambda: all(m.has_backlog and m.is_connected for m in members))


@pytest.fixture
def story() -> Iterator[Story]:
    made = Story()
    yield made
    made.may_end.set()


def test_one_budget_serves_all_nodes_and_starves_none(
    nodes: Nodes, start: Start, story: Story
) -> None:
    story.may_end.clear()
    nodes.fill(0, 500)
    worker = story.worker(nodes.dsns, 5)
    running = start(worker)
    until(lambda: story.running[1] == 5)
    nodes.fill(1, 40)
    nodes.fill(2, 40)
    until_all_ask(worker)
    story.may_end.set()
    until(lambda: nodes.left() == 0)
    running.stop()
    rest = len(story.began) - 1 - max(map(story.began[::-1].index, (2, 3)))
    assert story.began[rest:].count(1) > 200, "the full node was not emptied first"
    assert story.most == 5
    assert Counter(story.began) == {1: 500, 2: 40, 3: 40}
    nodes.check()


def test_slots_that_one_node_does_not_use_are_the_others(
    nodes: Nodes, start: Start, story: Story
) -> None:
    story.may_end.clear()
    worker = story.worker(nodes.dsns[:2], 6)
    start(worker)
    nodes.fill(0, 100)
    until(lambda: story.running[1] == 6)
    nodes.fill(1, 100)
    until_all_ask(worker)
    story.permits.release(3)
    until(lambda: story.running[1] == story.running[2] == 3)
    assert story.most == 6


def test_every_node_rings(nodes: Nodes, start: Start, story: Story) -> None:
    start(story.worker(nodes.dsns, 2, poll_interval=3600))
    for place in (2, 0, 1):
        nodes.fill(place, 1)
        until(lambda: nodes.left() == 0)
    assert story.began == [3, 1, 2]


def test_a_node_that_comes_back_gets_its_part_of_a_full_budget(
    nodes: Nodes, start: Start, story: Story
) -> None:
    worker = story.worker(nodes.dsns[:2], 4)
    start(worker)
    nodes.servers[1].stop()
    try:
        story.may_end.clear()
        nodes.fill(0, 100)
        until(lambda: story.running[1] == 4)
    finally:
        nodes.servers[1].start()
    nodes.fill(1, 100)
    # Its old connection may seem to be open until it is used.
    until_all_ask(worker)
    story.permits.release()
    back = "SELECT count(*) > 0 FROM pg_stat_activity"
    back += " WHERE application_name LIKE 'pulse coordinator%'"
    until(lambda: nodes.ask(1, back) == "t")
    until_all_ask(worker)
    story.permits.release(2)
    until(lambda: story.running[1] == story.running[2] == 2)


@pytest.mark.parametrize("how", ["SIGINT", "SIGQUIT"])
def test_a_node_that_goes_down_leaves_all_slots_to_the_others(
    nodes: Nodes, start: Start, story: Story, how: str
) -> None:
    for place in range(3):
        nodes.fill(place, 100)
    running = start(story.worker(nodes.dsns, 6))
    until(lambda: set(story.began) == {1, 2, 3})
    nodes.servers[1].stop(how)
    try:
        until(lambda: nodes.left(0, 2) == 0)
        # With a node down the others have the whole budget.
        story.may_end.clear()
        nodes.fill(0, 50)
        until(lambda: story.running[1] + story.running[3] == 6)
        story.may_end.set()
        until(lambda: nodes.left(0, 2) == 0)
    finally:
        nodes.servers[1].start()
    # What was killed with its server in the middle of a run is found by its lease.
    nodes.ask(1, LAPSE)
    until(lambda: nodes.left(1) == 0)
    running.stop()
    assert story.most == 6
    nodes.check()


def test_a_node_that_hangs_leaves_all_slots_to_the_others(
    nodes: Nodes, start: Start, story: Story
) -> None:
    for place in range(3):
        nodes.fill(place, 100)
    running = start(story.worker(nodes.dsns, 6))
    until(lambda: set(story.began) == {1, 2, 3})
    with psycopg.connect(nodes.dsn(1)) as stranger:
        stranger.execute("LOCK TABLE pulse_internal.body, pulse_internal.lease")
        until(lambda: nodes.left(0, 2) == 0)
        story.may_end.clear()
        nodes.fill(0, 50)
        until(lambda: story.running[1] + story.running[3] == 6)
        stranger.rollback()
        # The late answers bring jobs, and there is no slot for them.
        assert story.running.total() == 6
        story.may_end.set()
    until(lambda: nodes.left() == 0)
    running.stop()
    assert story.most == 6
    nodes.check()


def test_a_node_is_promoted_under_load(
    nodes: Nodes, start: Start, story: Story
) -> None:
    settings = {"wal_level": "replica", "wal_keep_size": "64MB"}
    with contextlib.ExitStack() as ending:
        old = Node(servers.primary(), settings, waits_for="")
        ending.callback(old.close)
        old.create("app", product="extension")
        old.psql("app", "-c", "SELECT pulse.set_node(9)")
        old.psql("app", "-c", PATIENT)
        old.psql(
            "app",
            "-c",
            "SELECT count(pulse.enqueue('k')) FROM generate_series(1, 300)",
        )
        new = Node(servers.primary(), {}, source=old, waits_for="")
        ending.callback(new.close)
        old.set("synchronous_standby_names", "*")
        pair = (
            f"host={old.socket},{new.socket} port={old.port},{new.port} user=postgres"
            " dbname=app target_session_attrs=read-write"
        )
        nodes.fill(0, 200)
        running = start(story.worker([nodes.dsn(0), pair], 6))
        until(lambda: story.began.count(9) > 20)
        old.stop("SIGKILL")
        new.psql("postgres", "-c", "SELECT pg_promote(true, 60)")
        nodes.fill(0, 50)
        until(lambda: nodes.left(0) == 0)
        new.psql("app", "-c", LAPSE)
        until(lambda: new.psql("app", "-c", LEFT) == "0\n")
        assert new.psql("app", "-c", "SELECT * FROM pulse.check()") == ""
        running.stop()
    assert story.most == 6


def test_nodes_are_added_and_removed_while_it_runs(
    nodes: Nodes, start: Start, story: Story
) -> None:
    worker = story.worker(nodes.dsns[:2], 4)
    running = start(worker)
    nodes.fill(2, 10)
    worker.add_node(nodes.dsn(2))
    until(lambda: nodes.left() == 0)
    story.may_end.clear()
    nodes.fill(0, 10)
    until(lambda: story.running[1] == 4)
    worker.remove_node(nodes.dsn(0), grace=0)
    nodes.fill(2, 10)
    until(lambda: story.running[3] == 4)
    gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pulse %'"
    until(lambda: nodes.ask(0, f"{gone} AND datname = current_database()") == "0")
    assert nodes.ask(0, "SELECT count(*) FROM pulse_internal.lease") == "0"
    assert worker.dsns == nodes.dsns[1:]
    story.may_end.set()
    until(lambda: nodes.left(1, 2) == 0)
    assert nodes.left(0) == 10
    worker.add_node(nodes.dsn(0))
    until(lambda: nodes.left() == 0)
    running.stop()
    nodes.check()


# -- numbers --------------------------------------------------------------------------


def refused(dsns: list[str], story: Story) -> errors.NodeRefused:
    worker = story.worker(dsns, 1)
    bound = threading.Timer(PATIENCE, worker.stop)
    bound.start()
    with pytest.raises(errors.NodeRefused) as caught:
        worker.run()
    bound.cancel()
    assert "pulse.set_node(" in (caught.value.hint or "")
    return caught.value


def test_nodes_without_a_number_of_their_own_are_refused(
    nodes: Nodes, story: Story
) -> None:
    nodes.ask(2, "SELECT pulse.set_node(1)")
    assert "both node 1" in refused(nodes.dsns, story).message
    other_name = f"{nodes.dsn(0)} connect_timeout=9"
    assert "both node 1" in refused([nodes.dsn(0), other_name], story).message
    nodes.ask(2, "UPDATE pulse_internal.node SET system_identifier = 1")
    assert "copy of node 1" in refused([nodes.dsn(1), nodes.dsn(2)], story).message
    server = nodes.servers[0]
    fresh = server.create(product="extension")
    message = refused([nodes.dsn(1), server.dsn(fresh)], story).message
    assert "no node number" in message
    # Alone it needs none.
    worker = story.worker([server.dsn(fresh)], 1)
    worker.stop()
    worker.run()
    server.drop(fresh)


def test_a_node_that_takes_the_number_of_another_is_left_out(
    nodes: Nodes, start: Start, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    running = start(story.worker(nodes.dsns[:2], 2))
    nodes.fill(1, 1)
    until(lambda: nodes.left() == 0)
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    cut += " WHERE application_name LIKE 'pulse %' AND datname = current_database()"
    with caplog.at_level(logging.WARNING, "pulse.worker"):
        nodes.ask(1, "SELECT pulse.set_node(1)")
        nodes.ask(1, cut)
        until(lambda: "both node 1" in caplog.text)
    nodes.fill(0, 5)
    nodes.fill(1, 5)
    until(lambda: nodes.left(0) == 0)
    assert nodes.left(1) == 5
    nodes.ask(1, "SELECT pulse.set_node(2)")
    until(lambda: nodes.left(1) == 0)
    running.stop()


def swap(nodes: Nodes, cut: str) -> None:
    """The numbers of the first two, and the first has to connect again."""
    numbers = [int(nodes.ask(place, "SELECT pulse.node()")) for place in (0, 1)]
    nodes.ask(0, "SELECT pulse.set_node(9)")
    nodes.ask(1, f"SELECT pulse.set_node({numbers[0]})")
    nodes.ask(0, f"SELECT pulse.set_node({numbers[1]})")
    nodes.ask(0, cut)


CUT = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()"""


def test_numbers_may_be_swapped_while_it_runs(
    nodes: Nodes, start: Start, story: Story
) -> None:
    start(story.worker(nodes.dsns[:2], 2))
    nodes.fill(0, 5)
    nodes.fill(1, 5)
    until(lambda: nodes.left() == 0)
    swap(nodes, CUT)
    nodes.fill(0, 5)
    nodes.fill(1, 5)
    until(lambda: nodes.left() == 0)
    nodes.check()


def test_a_client_learns_of_swapped_numbers(nodes: Nodes) -> None:
    def enqueued() -> int:
        with contextlib.suppress(psycopg.OperationalError):
            return client.enqueue("k") >> 43
        return -1

    with pulse.Client(nodes.dsns[:2]) as client:
        assert {enqueued() for _ in range(2)} == {1, 2}
        swap(nodes, CUT)
        # What was cut is told once.
        assert {enqueued() for _ in range(4)} == {-1, 1, 2}

    async def work() -> None:
        async with pulse.AsyncClient(nodes.dsns[:2]) as client:
            assert {await client.enqueue("k") >> 43 for _ in range(2)} == {1, 2}
            await asyncio.to_thread(swap, nodes, CUT)
            found = set()
            for _ in range(4):
                with contextlib.suppress(psycopg.OperationalError):
                    found.add(await client.enqueue("k") >> 43)
            assert found == {1, 2}

    asyncio.run(work())


def test_schedules_are_declared_in_the_first_database(
    nodes: Nodes, start: Start
) -> None:
    worker = pulse.Worker(nodes.dsns, concurrency=1, application="shop")

    @worker.schedule("nightly", every="1 day")
    @worker.handle("report", declare=True, backoff_base="5s")
    def report() -> None: ...

    start(worker)
    kinds = "SELECT count(*) FROM pulse.declarations WHERE item = 'kind'"
    until(lambda: [nodes.ask(place, kinds) for place in range(3)] == ["1"] * 3)
    declared = "SELECT string_agg(name, ' ') FROM pulse.schedules"
    assert [nodes.ask(place, declared) for place in range(3)] == ["nightly", "", ""]


# -- clients --------------------------------------------------------------------------


def test_a_client_sends_jobs_home_and_finds_them(
    nodes: Nodes, start: Start, story: Story
) -> None:
    client = pulse.Client(nodes.dsns, homes={"billing": 2})
    with client:
        anywhere = {client.enqueue("k") >> 43 for _ in range(3)}
        assert anywhere == {1, 2, 3}
        assert {client.enqueue("k", lane="billing") >> 43 for _ in range(3)} == {2}
        keys = [f"key {n}" for n in range(30)]
        first = [client.enqueue("k", unique_key=key) for key in keys]
        again = pulse.Client(nodes.dsns[::-1])
        with again:
            assert [again.enqueue("k", unique_key=key) for key in keys] == first
        assert {job >> 43 for job in first} == {1, 2, 3}
        groups = {client.enqueue("k", group_key="g") >> 43 for _ in range(3)}
        assert len(groups) == 1
        for place in range(3):
            job = client.enqueue("k", delay="1 hour", after=None)
            assert client.why(job)
            assert client.cancel(job) == "cancelled"
            assert nodes.ask(place, "SELECT pulse.node()") == str(place + 1)
        start(story.worker(nodes.dsns, 3))
        for job in first:
            assert client.result(job, timeout=PATIENCE) is None
        later = client.enqueue("k", after=[first[0]])
        assert later >> 43 == first[0] >> 43
        with pytest.raises(
            errors.NodeRefused, match="none of these databases is node 7"
        ):
            client.cancel(7 << 43 | 1)


def test_jobs_of_several_homes_are_not_enqueued_together(nodes: Nodes) -> None:
    with pulse.Client(nodes.dsns, homes={"a": 1, "b": 2}) as client:
        jobs = [{"kind": "k", "lane": "a"}, {"kind": "k"}, {"kind": "k", "lane": "a"}]
        assert {job >> 43 for job in client.enqueue_many(jobs)} == {1}
        assert len({j >> 43 for j in client.enqueue_many("k", [{}] * 3)}) == 1
        with pytest.raises(errors.InvalidArgument, match="several nodes"):
            client.enqueue_many([*jobs, {"kind": "k", "lane": "b"}])
        with pytest.raises(errors.InvalidArgument, match="several nodes"):
            client.enqueue("k", after=[1 << 43 | 1, 2 << 43 | 1])
    assert nodes.ask(1, "SELECT count(*) FROM pulse.jobs") == "0"


def test_a_client_goes_on_without_a_node(nodes: Nodes) -> None:
    down = nodes.servers[1]
    down.stop()
    try:
        with pulse.Client(nodes.dsns, homes={"billing": 2}) as client:
            assert {client.enqueue("k") >> 43 for _ in range(6)} == {1, 3}
            with pytest.raises(errors.Unavailable, match="does not answer"):
                client.enqueue("k", lane="billing")
            with pytest.raises(errors.Unavailable, match="does not answer"):
                client.enqueue("k", unique_key="which node it is nobody knows")
            down.start()
            assert client.enqueue("k", lane="billing") >> 43 == 2
            assert client.enqueue("k", unique_key="key") >> 43 in (1, 2, 3)
    finally:
        if down._guard is None:
            down.start()


def test_an_async_client_does_the_same(
    nodes: Nodes, start: Start, story: Story
) -> None:
    start(story.worker(nodes.dsns, 3))

    async def work() -> None:
        async with pulse.AsyncClient(nodes.dsns, homes={"billing": 2}) as client:
            assert {await client.enqueue("k") >> 43 for _ in range(3)} == {1, 2, 3}
            job = await client.enqueue("k", lane="billing", delay="1 hour")
            assert job >> 43 == 2
            assert await client.why(job)
            assert await client.cancel(job) == "cancelled"
            # It may have ended by the second call.
            one = await client.enqueue("k", unique_key="u", unique_for="1 hour")
            same = await client.enqueue("k", unique_key="u", unique_for="1 hour")
            assert same == one
            assert await client.result(one, timeout=PATIENCE) is None
            jobs = [{"kind": "k", "lane": "billing"}, {"kind": "k"}]
            assert {j >> 43 for j in await client.enqueue_many(jobs)} == {2}
            with pytest.raises(errors.NodeRefused):
                await client.result(7 << 43 | 1)

    asyncio.run(work())


def test_a_task_goes_home_as_well(nodes: Nodes, start: Start) -> None:
    @pulse.task("add", lane="billing")
    def add(a: int, b: int) -> int:
        return a + b

    worker = pulse.Worker(nodes.dsns, lanes={"billing": 1}, tasks=[add])
    start(worker)
    with pulse.Client(nodes.dsns, homes={"billing": 3}) as client:
        handle = add.enqueue(client, 1, 2)
        assert handle.id >> 43 == 3
        assert handle.result(PATIENCE) == 3


def test_the_hello_world_of_the_page_runs(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (paths.ROOT / "docs/scaling.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = re.sub(r"NODES = .*", f"NODES = {nodes.dsns[:2]}", block)
    names: dict[str, Any] = {}
    exec(code.replace("worker.run()", ""), names)
    thread = threading.Thread(target=names["worker"].run)
    thread.start()
    until(lambda: nodes.left() == 0)
    names["worker"].stop()
    thread.join()
    output = capsys.readouterr().out
    assert "hello Ada, from node" in output
    assert "from node 1" in output
    assert "from node 2" in output


def test_homes_need_several_databases(db: Database) -> None:
    with pytest.raises(TypeError, match="several databases"):
        pulse.Client(db.dsn, homes={"a": 1})
    with pytest.raises(ValueError, match="at least one DSN"):
        pulse.Client([])
    with pytest.raises(ValueError, match="at least one DSN"):
        pulse.Worker([])
    with pytest.raises(ValueError, match="twice"):
        pulse.Worker([db.dsn, db.dsn])
    with pytest.raises(TypeError, match="list of DSNs"):
        pulse.Worker(db.dsn).add_node(db.dsn)
    two = pulse.Worker([db.dsn])
    with pytest.raises(ValueError, match="already"):
        two.add_node(db.dsn)
    with pytest.raises(ValueError, match="last database"):
        two.remove_node(db.dsn)
