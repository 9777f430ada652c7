"""What clients were told must be what was committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import Record, Transaction
from tests.chaos.invariants import Invariant, Life, Lives
from tests.chaos.invariants_numbers import Losses
from tests.chaos.journal import Steps

REPORTS = ("complete", "fail", "snooze", "release", "ack_cancel")


class AcknowledgedEnqueuesExist(Invariant):
    """An acknowledged enqueue is one job; a rolled back one is none."""

    def __init__(self, records: Iterable[Record], losses: Losses) -> None:
        super().__init__()
        self.losses = losses
        self.keys: dict[str, str | None] = {}
        self.acknowledged: list[tuple[str, int]] = []
        self.rolled_back: set[str] = set()
        self.jobs: dict[str, list[int]] = defaultdict(list)
        self.ops: dict[int, set[str]] = defaultdict(set)
        for record in records:
            what = record["what"]
            if what.startswith("enqueue"):
                self.counted[what] += 1
            if what == "enqueue_try":
                self.keys[record["op"]] = record["unique_key"]
            elif what == "enqueue_ack":
                self.acknowledged.append((record["op"], record["job_id"]))
            elif what == "enqueue_rolled_back":
                self.rolled_back.add(record["op"])

    def commit(self, transaction: Transaction) -> None:
        for event in transaction.events:
            if event.place == "body" and event.op != "-":
                op = event.extra.get("op") or ""
                self.ops[event.job].add(op)
                if event.op == "+" and op in self.keys:
                    self.jobs[op].append(event.job)

    def end(self) -> None:
        for op, job in self.acknowledged:
            if job not in self.ops and self._lost(op, job):
                self.counted["acknowledged and lost by a promotion"] += 1
            elif job not in self.ops:
                self.violated(
                    f"the enqueue of job {job} ({op}) was answered and is lost"
                )
            elif op not in self.ops[job] and not self._found_by_key(op, job):
                self.violated(
                    f"the enqueue {op} was answered with job {job}, which is another"
                )
        for op, jobs in self.jobs.items():
            if len(jobs) > 1:
                self.violated(f"one enqueue ({op}) became the jobs {jobs}")
            if op in self.rolled_back:
                self.violated(f"job {jobs[0]} ({op}) exists, but was rolled back")

    def _found_by_key(self, op: str, job: int) -> bool:
        return any(self._same_key(op, other) for other in self.ops[job])

    def _lost(self, op: str, job: int) -> bool:
        lost = self.losses.jobs.get(job)
        return lost is not None and (lost == op or self._same_key(op, lost))

    def _same_key(self, op: str, other: str) -> bool:
        key = self.keys.get(op)
        return key is not None and self.keys.get(other) == key


class AcceptedReportsHappened(Invariant):
    """A report that was accepted ended its run, and a stale lease is refused."""

    def __init__(self, records: Iterable[Record], lives: Lives, losses: Losses) -> None:
        super().__init__()
        self.lives = lives
        self.losses = losses
        self.accepted: list[Record] = []
        for record in records:
            if record["what"].startswith("verb"):
                self.counted[record["what"]] += 1
            if record["what"] == "verb_ack" and record["verb"] in REPORTS:
                self.accepted.append(record)

    def end(self) -> None:
        for record in self.accepted:
            verb, lease, job = record["verb"], record["lease"], record["job_id"]
            told = f"{record['who']} was told that its {verb} of lease {lease} was done"
            life = self.lives.leases.get(lease)
            if self.losses.reports.get(lease) == verb:
                self.counted["reports lost by a promotion"] += 1
            elif life is None or life.job != job:
                self.violated(f"{told}, but job {job} never had that lease")
            elif life.verb != verb:
                self.violated(f"{told}, but {life.verb or 'nothing'} ended it")


class EffectsHaveALiveLease(Invariant):
    """Every effect began once, under a lease that was live."""

    def __init__(
        self, records: Iterable[Record], lives: Lives, losses: Losses, steps: Steps
    ) -> None:
        super().__init__()
        self.lives = lives
        self.losses = losses
        self.steps = steps
        self.begun: list[Record] = []
        # Between its look at the clock and its first step a handler may be stopped for
        # any time; nothing can prevent that. It happens to one at a time.
        self.stops: dict[str, list[float]] = defaultdict(list)
        for record in records:
            if record["what"] == "effect_begin":
                self.begun.append(record)
            elif record["what"] == "fault" and "stopped" in record:
                self.stops[record["stopped"]].append(record["until"])

    def end(self) -> None:
        seen: set[int] = set()
        for record in self.begun:
            lease, job, at = record["lease"], record["job_id"], record["t"]
            self.counted["effects"] += 1
            what = f"attempt {record['attempt']} of job {job} began in {record['who']}"
            if lease in seen:
                self.violated(f"{what} twice under lease {lease}")
            seen.add(lease)
            life = self.lives.leases.get(lease)
            if self.losses.runs.get(lease) == (job, record["attempt"]):
                self.counted["effects of claims lost by a promotion"] += 1
                continue
            if life is None or (life.job, life.attempt) != (job, record["attempt"]):
                self.violated(f"{what} under lease {lease}, which was never granted")
                continue
            if at < life.claimed:
                self.violated(
                    f"{what} {life.claimed - at:.3f} s before its claim committed"
                )
            if at > life.ended and not self._excused(record["who"], at, life):
                self.violated(
                    f"{what} {at - life.ended:.3f} s after its lease {lease} had ended"
                    f" by {life.verb}"
                )

    def _excused(self, who: str, at: float, life: Life) -> bool:
        believed = self.steps.machine_time(life.until, life.asked, life.ended)
        if life.verb == "cancel" and at <= believed:
            # Taken away by force before its time: the next heartbeat would have told.
            self.counted["begun after a forced cancel"] += 1
            return True
        if self.steps.between(life.asked, life.ended) and at <= believed:
            # Its time was over when the clock stepped; a worker's clock did not. That
            # may happen within its claim, which reaps too.
            self.counted["begun after a step of the clock"] += 1
            return True
        if self.losses.heartbeat(life.claimed, at):
            self.counted["begun after a lost heartbeat"] += 1
            return True
        return self._stopped(who, at)

    def _stopped(self, who: str, at: float) -> bool:
        """Whether this process just woke from a stop that excuses one late effect."""
        process = who.split(".child.")[0]
        for woken in self.stops[process]:
            if woken <= at <= woken + 1.0:
                self.stops[process].remove(woken)
                self.counted["late after a stop"] += 1
                return True
        return False
