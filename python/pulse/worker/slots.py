"""The slots of a worker, the runs that hold them, and what is still to be reported."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pulse.hooks import AllHooks
from pulse.logs import log, log_job
from pulse.worker.outcomes import RELEASE, Outcome
from pulse.worker.run import Run

# Of a lane with so many slots one half runs while the server claims for the other; in
# a smaller one the additional exchanges cost more than that brings
# (docs/decisions/halves.md).
LARGE = 200
LONGEST_WHY = 1000


class Slots:
    """Kept on the event loop by the coordinator; other threads call only finish."""

    def __init__(
        self,
        worker: str,
        lanes: Mapping[str, int],
        hooks: AllHooks,
        wake: Callable[[], None],
    ) -> None:
        self.runs: dict[int, Run] = {}
        """Claimed and not yet reported, by lease: the leases the heartbeat keeps."""
        self.ended: deque[tuple[Run, Outcome]] = deque()
        self.held: list[Run] = []
        """Ended, but another session holds the job: to be reported later."""
        self._worker = worker
        self._lanes = lanes
        self._hooks = hooks
        self._wake = wake
        # A handler keeps its slot until it has really ended.
        self._used = dict.fromkeys(lanes, 0)
        self._max_batch = {lane: half_if_large(n) for lane, n in lanes.items()}
        self._woken = False
        self._run_time = 1.0
        self.surplus: dict[str, int] = {}
        """Claimed by lane, and without a slot (budget.py)."""

    def finish(self, run: Run, outcome: Outcome) -> None:
        """From any thread: a handler ended. One wake-up for all that end at once."""
        self.ended.append((run, outcome))
        if not self._woken:
            self._woken = True
            self._wake()

    def log_start(self, run: Run) -> None:
        log_job(logging.INFO, run.job, "starts", worker=self._worker)

    def wants(self) -> dict[str, int]:
        """How many jobs to claim: the free slots, of a large lane half at a time."""
        lanes, used, most = self._lanes, self._used, self._max_batch
        return {
            lane: min(n, most[lane])
            for lane in lanes
            if (n := lanes[lane] - used[lane]) > 0
        }

    def reserve(self, wants: Mapping[str, int]) -> Mapping[str, int]:
        """About to claim; take follows, or withdraw. Others may have been faster."""
        return wants

    def withdraw(self) -> None:
        """The server could not be asked."""

    def leave(self) -> None:
        """Nothing is claimed here any more."""

    def miss(self) -> None:
        """There is something to claim for, but no slot."""

    def gives_back(self, lane: str) -> bool:
        """Whether a claimed job of this lane has no slot."""
        return False

    def set_max_batch(self, lane: str, max_batch: int) -> None:
        """The server gives no more than this at a time."""
        self._max_batch[lane] = min(half_if_large(self._lanes[lane]), max_batch)

    def take(self, lanes: Mapping[str, int]) -> None:
        """So many jobs were claimed."""
        for lane, n in lanes.items():
            self._used[lane] += n

    def free(self, lanes: Mapping[str, int]) -> None:
        """So many claimed jobs will not run; their leases are left to lapse."""
        for lane, n in lanes.items():
            self._used[lane] -= n

    def collect(self) -> list[Run]:
        """Free the slots of what has ended; returns what is to be reported."""
        self._woken = False
        now, logs_all = time.monotonic(), self._logs_all
        # By lease: one that was released may have ended by itself as well.
        reports: dict[int, Run] = {}
        while self.ended:
            run, outcome = self.ended.popleft()
            if run.holds_slot:
                self._vacate(run, outcome, now, logs_all)
            if run.lease not in self.runs or run.outcome not in (None, outcome):
                # Released before it ended.
                continue
            run.outcome = outcome
            if outcome.verb in ("drop", "wait"):
                self.runs.pop(run.lease, None)
            else:
                reports[run.lease] = run
        return list(reports.values())

    @property
    def _logs_all(self) -> bool:
        return bool(self._hooks) or log.isEnabledFor(logging.INFO)

    def _vacate(self, run: Run, outcome: Outcome, now: float, logs_all: bool) -> None:
        run.holds_slot = False
        self._used[run.lane] -= 1
        seconds = now - run.started if run.started else 0.0
        self._run_time += (seconds - self._run_time) / 32
        if logs_all or outcome.verb != "complete":
            self._log(run, outcome, seconds)

    def requeue(self, reports: Sequence[Run]) -> None:
        """The server did not answer: to be reported again."""
        for run in reversed(reports):
            if run.outcome is not None:
                self.ended.appendleft((run, run.outcome))

    def retry_held(self) -> None:
        """Report again what another session held."""
        held, self.held = self.held, []
        for run in held:
            if run.outcome is not None:
                self.finish(run, run.outcome)

    def confirm(
        self,
        reports: Sequence[Run],
        refused: Sequence[Run] = (),
        held: Sequence[Run] = (),
    ) -> None:
        """The server has answered: forget these runs, but for what it did not take."""
        self.requeue(refused)
        self.held += held
        for run in reports:
            if (refused and run in refused) or (held and run in held):
                continue
            del self.runs[run.lease]
            # Job and run refer to each other: without this each waits for the
            # garbage collector.
            del run.job

    def more_end_within(self, seconds: float) -> bool:
        """Whether some have ended, and more are likely to in this time."""
        ended = len(self.ended)
        return 0 < ended < sum(self._used.values()) and self._run_time < seconds

    # -- shutdown ---------------------------------------------------------------------

    def stop_runs(self) -> None:
        """Make should_continue() false in every handler."""
        for run in self.runs.values():
            run.stopping = True

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.outcome is None]

    def release(self, *runs: Run) -> None:
        """Give back what has not ended by itself meanwhile."""
        ended = {id(run) for run, _ in list(self.ended)}  # Threads add to it.
        for run in runs:
            run.stopping = True
            if id(run) not in ended:
                self.ended.append((run, RELEASE))

    def _log(self, run: Run, outcome: Outcome, seconds: float) -> None:
        self._hooks.call("finished", run.job, outcome.verb, seconds)
        level, words = {
            "complete": (logging.INFO, "completed"),
            "fail": failed(run, outcome),
            "snooze": (logging.INFO, f"snoozes for {outcome.delay}"),
            "release": (logging.INFO, "is released"),
            "ack_cancel": (logging.INFO, "is cancelled"),
            "wait": (logging.INFO, "waits"),
            "drop": (logging.WARNING, "lost its lease; its result is dropped"),
        }[outcome.verb]
        facts = {"outcome": outcome.verb, "seconds": round(seconds, 6)}
        log_job(level, run.job, words, worker=self._worker, **facts)


def half_if_large(slots: int) -> int:
    return slots if slots < LARGE else math.ceil(slots / 2)


def failed(run: Run, outcome: Outcome) -> tuple[int, str]:
    """The last failure of a job is its death, unless a cancel was asked for."""
    job, why = run.job, last_line(outcome.error)
    if outcome.fatal or job.failures + 1 >= job.max_attempts:
        return logging.ERROR, f"failed and is dead: {why}"
    return logging.WARNING, f"failed: {why}"


def last_line(error: str | None) -> str:
    """For the log; the job has all of it."""
    line = (error or "").rsplit("\n", 1)[-1]
    return line if len(line) <= LONGEST_WHY else f"{line[: LONGEST_WHY - 1]}…"
