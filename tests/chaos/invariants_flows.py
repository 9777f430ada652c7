"""What must hold of flows: nothing early, nothing twice, nothing forgotten.

That nothing is stuck is said by the tables: when the faults have stopped everything
drains, blocked jobs and those that wait for a signal included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import Event, Record, Transaction
from tests.chaos.invariants import Invariant, Lives
from tests.chaos.invariants_lanes import claims
from tests.chaos.invariants_numbers import Losses
from tests.chaos.journal import Steps


class DependentsWait(Invariant):
    """No job runs before all that it depends on has ended well enough."""

    def __init__(self) -> None:
        super().__init__()
        self.after: dict[int, list[int]] = defaultdict(list)
        self.takes_any: set[int] = set()
        self.completed: set[int] = set()
        self.ended: set[int] = set()

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "dependency":
                self.after[event.job].append(event.line)
            elif event.op != "+":
                continue
            elif event.place == "body":
                if event.extra.get("flow"):
                    self.counted["jobs in flows"] += 1
                if event.extra.get("after_failed") == "run":
                    self.takes_any.add(event.job)
            elif event.place == "finished":
                self.ended.add(event.job)
                if event.state == "completed":
                    self.completed.add(event.job)
        # By ends that are committed, or its own: one exchange reports and claims.
        for claim in claims(transaction):
            if claim.attempt != 1 or claim.job not in self.after:
                continue
            enough = self.ended if claim.job in self.takes_any else self.completed
            for upstream in self.after[claim.job]:
                self.counted["dependencies waited for"] += 1
                if upstream not in enough:
                    self.violated(
                        f"job {claim.job} was claimed (transaction {transaction.xid})"
                        f" before job {upstream}, which it depends on, had ended"
                    )


class SpawnsHappenOnce(Invariant):
    """A step spawns its jobs once, and who waits for the spawner waits for them."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps
        self.spawned: dict[tuple[int, int], int] = {}
        self.blocked: dict[int, float] = {}
        self.children: dict[int, set[int]] = defaultdict(set)

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "body" and event.op == "+" and "by" in event.extra:
                self._spawn(event)
            elif event.place == "dependency":
                self.children[event.line].add(event.job)
            elif event.place == "job_step" and event.extra.get("jobs"):
                self._compare(transaction, event)
        for event in transaction.events:
            if event.place == "blocked" and event.op == "+":
                self.blocked[event.job] = transaction.committed
            elif event.place == "blocked":
                self.blocked.pop(event.job, None)

    def _spawn(self, event: Event) -> None:
        self.counted["jobs spawned"] += 1
        key = int(event.extra["by"]), int(event.extra["n"])
        if key in self.spawned:
            self.violated(
                f"job {key[0]} spawned its part {key[1]} as job {self.spawned[key]}"
                f" and again as job {event.job}"
            )
        self.spawned[key] = event.job

    def _compare(self, transaction: Transaction, event: Event) -> None:
        """Whoever was certainly blocked when it spawned waits for what it spawned."""
        for child in self.children[event.job]:
            since = self.blocked.get(child)
            if since is None or since >= transaction.started:
                continue
            if self.steps.between(since, transaction.committed):
                continue
            for new in event.extra["jobs"]:
                self.counted["spawned jobs waited for"] += 1
                if child not in self.children[int(new)]:
                    self.violated(
                        f"job {child} waits for job {event.job} and not for job {new},"
                        " which that one spawned"
                    )


class StepsAreDoneOnce(Invariant):
    """A step that has succeeded is not run by an attempt that began later."""

    def __init__(self, records: Iterable[Record], lives: Lives) -> None:
        super().__init__()
        self.lives = lives
        self.run = [record for record in records if record["what"] == "step"]
        self.saved: dict[tuple[int, str], float] = {}

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "job_step" and event.extra.get("saved"):
                self.counted["steps saved"] += 1
                self.saved.setdefault((event.job, event.name), transaction.committed)

    def end(self) -> None:
        for record in self.run:
            self.counted["steps run"] += 1
            job, step = record["job_id"], record["step"]
            life = self.lives.leases.get(record["lease"])
            saved = self.saved.get((job, step))
            if life is None or saved is None or life.job != job:
                continue
            if life.claimed > saved:
                self.violated(
                    f"attempt {life.attempt} of job {job} ran step {step!r}, which was"
                    f" saved {life.claimed - saved:.3f} s before its claim"
                )


class SignalsAreKept(Invariant):
    """A signal that was acknowledged is there, and nobody waits for it in vain."""

    def __init__(self, records: Iterable[Record], losses: Losses) -> None:
        super().__init__()
        self.acknowledged = [r["signal"] for r in records if r["what"] == "signal_ack"]
        self.sent: set[str] = set()
        self.lost = {
            event.name
            for transaction in losses.transactions
            for event in transaction.events
            if event.place == "signal"
        }

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "signal":
                self.sent.add(event.name)
            elif event.place == "job_step" and event.name.startswith("go "):
                verdict = event.extra.get("verdict")
                self.counted["signals received"] += verdict == "received"
                if verdict == "timeout":
                    self.violated(f"job {event.job} waited in vain for {event.name!r}")

    def end(self) -> None:
        for name in self.acknowledged:
            self.counted["signals acknowledged"] += 1
            if name in self.lost - self.sent:
                self.counted["signals lost by a promotion"] += 1
            elif name not in self.sent:
                self.violated(f"the signal {name!r} was answered and is lost")
