"""One budget of slots over several nodes, without any server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from pulse.nodes import budget as budget_module
from pulse.nodes.budget import Budget, NodeSlots


class Member:
    """A node whose server has so many jobs."""

    def __init__(self, budget: Budget, jobs: int = 0) -> None:
        self.jobs = jobs
        self.woken = 0
        self.connected = True
        wakeup: Any = self
        connection: Any = self
        self.slots = NodeSlots(budget, wakeup, connection)

    @property
    def is_open(self) -> bool:
        return self.connected

    def poll_now(self) -> None:
        self.woken += 1

    def ask(self) -> int:
        wants = self.slots.reserve()
        if not wants:
            self.slots.record_no_free_slot()
        return wants.get("a", 0)

    def answer(self, wanted: int) -> int:
        got = min(wanted, self.jobs)
        self.jobs -= got
        self.slots.take({"a": got} if got else {})
        return got

    def claim(self) -> int:
        return self.answer(self.ask())

    @property
    def running(self) -> int:
        return self.slots.used["a"]

    def end(self, n: int = 1) -> None:
        self.slots.free({"a": n})
        self.slots.share_freed()


def on_a_loop(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_full_node_does_not_keep_the_slots_it_frees() -> None:
    async def work() -> None:
        budget = Budget({"a": 6})
        full, other = Member(budget, 100), Member(budget, 100)
        while full.claim():
            pass
        assert full.running == 6
        assert other.ask() == 0
        for _ in range(3):
            other.woken = 0
            full.end()
            assert other.woken
            assert full.ask() == 0, "the other node has a share of it"
            assert other.claim() == 1
        assert (full.running, other.running) == (3, 3)
        full.end()
        assert other.ask() == 0
        assert full.claim() == 1

    on_a_loop(work())


def test_one_slot_goes_round() -> None:
    async def work() -> None:
        budget = Budget({"a": 1})
        members = [Member(budget, 100) for _ in range(3)]
        order: list[int] = []
        for _ in range(30):
            for place, member in enumerate(members):
                if member.claim():
                    order.append(place)
                    runs = member
            runs.end()
        assert order[:30].count(0) == order[:30].count(1) == order[:30].count(2) == 10

    on_a_loop(work())


def test_what_one_does_not_use_wakes_the_others() -> None:
    async def work() -> None:
        budget = Budget({"a": 4})
        empty, full = Member(budget), Member(budget, 100)
        first = empty.ask()
        assert first > 0
        while full.claim():
            pass
        before, full.woken = full.running, 0
        assert empty.answer(first) == 0
        assert full.woken, "the reservation came back"
        while full.claim():
            pass
        assert full.running == 4 > before

    on_a_loop(work())


def test_a_server_that_does_not_answer_loses_its_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        budget = Budget({"a": 4})
        hangs, other = Member(budget, 100), Member(budget, 100)
        wanted = hangs.ask()
        assert wanted == 2, "no backlog is known yet: its share"
        while other.claim():
            pass
        assert other.running == 2
        other.woken = 0
        monkeypatch.setattr(budget_module, "RESERVED_FOR", -1.0)
        assert other.ask() == 0
        assert other.woken, "the reservation has expired"
        monkeypatch.undo()
        while other.claim():
            pass
        assert other.running == 4
        # The answer comes after all: none of its jobs may start.
        hangs.slots._reserved_at -= 2 * budget_module.RESERVED_FOR
        assert hangs.answer(wanted) == wanted
        assert hangs.slots.surplus == {"a": wanted}
        assert all(hangs.slots.take_surplus("a") for _ in range(wanted))
        assert not hangs.slots.take_surplus("a")
        other.end(4)
        hangs.slots.free({"a": wanted})
        assert hangs.claim() == 1, "until it answers in time"
        assert not hangs.slots.answers_late

    on_a_loop(work())


def test_nothing_is_kept_for_a_node_that_is_not_connected() -> None:
    async def work() -> None:
        budget = Budget({"a": 6})
        full, down = Member(budget, 100), Member(budget, 100)
        while full.claim():
            pass
        down.connected = False
        assert down.ask() == 0
        full.end(6)
        assert full.ask() == 6
        full.answer(6)
        down.connected = True
        full.end(6)
        assert full.claim() == 3
        assert down.claim() == 3

    on_a_loop(work())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_budget_holds_and_all_jobs_run(seed: int) -> None:
    chance = random.Random(seed)

    async def work() -> None:
        total = chance.randint(1, 12)
        budget = Budget({"a": total})
        members = [Member(budget, chance.randint(0, 60)) for _ in range(4)]
        asked: dict[Member, int] = {}
        for _ in range(20_000):
            if not any(m.jobs or m.running for m in members):
                break
            member = chance.choice(members)
            if member in asked:
                if chance.random() < 0.1:
                    asked.pop(member)
                    member.slots.withdraw()
                else:
                    member.answer(asked.pop(member))
            elif member.running and chance.random() < 0.5:
                member.end()
            elif wanted := member.ask():
                asked[member] = wanted
            assert sum(m.running for m in members) <= budget.taken("a") <= total
        assert not any(m.jobs or m.running for m in members)

    on_a_loop(work())
