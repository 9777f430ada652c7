"""The runs of a worker: who holds a slot, who has ended, what is still to be told."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pulse.hooks import AllHooks
from pulse.logs import say
from pulse.worker.executors import Run
from pulse.worker.outcomes import RELEASE, Outcome

# Of a lane with so many slots one half runs while the server claims for the other; in
# a smaller one the additional exchanges cost more than that brings
# (docs/decisions/halves.md).
LARGE = 200


class Ledger:
    """Kept by the coordinator on the event loop; only done is called from elsewhere."""

    def __init__(
        self,
        worker: str,
        lanes: Mapping[str, int],
        hooks: AllHooks,
        wake: Callable[[], None],
    ) -> None:
        self.runs: dict[int, Run] = {}
        """Claimed and not yet told, by lease: what the heartbeat keeps alive."""
        self.ended: deque[tuple[Run, Outcome]] = deque()
        self._worker = worker
        self._lanes = lanes
        self._hooks = hooks
        self._wake = wake
        # A handler keeps its slot until it has really ended.
        self._used = dict.fromkeys(lanes, 0)
        self._most = {lane: share(n) for lane, n in lanes.items()}
        self._woken = False
        self._run_time = 1.0

    def done(self, run: Run, outcome: Outcome) -> None:
        """From any thread: a handler ended. One wake-up for all that end at once."""
        self.ended.append((run, outcome))
        if not self._woken:
            self._woken = True
            self._wake()

    def wants(self) -> dict[str, int]:
        """How many jobs to ask for: the free slots, of a large lane half at a time."""
        lanes, used, most = self._lanes, self._used, self._most
        return {
            lane: min(n, most[lane])
            for lane in lanes
            if (n := lanes[lane] - used[lane]) > 0
        }

    def limit(self, lane: str, max_batch: int) -> None:
        """The server gives no more than this at a time."""
        self._most[lane] = min(share(self._lanes[lane]), max_batch)

    def hold(self, lanes: Mapping[str, int]) -> None:
        """So many jobs have been claimed: they hold their slots from now on."""
        for lane, n in lanes.items():
            self._used[lane] += n

    def let_go(self, lanes: Mapping[str, int]) -> None:
        """They will not be run after all; their leases are left to lapse."""
        for lane, n in lanes.items():
            self._used[lane] -= n

    def collect(self) -> list[Run]:
        """What has ended: frees the slots and returns what is to be reported."""
        self._woken = False
        now = time.monotonic()
        # By lease: one that was given back may have ended by itself as well.
        reports: dict[int, Run] = {}
        while self.ended:
            run, outcome = self.ended.popleft()
            if run.slot:
                run.slot = False
                self._used[run.lane] -= 1
                seconds = now - run.started if run.started else 0.0
                self._run_time += (seconds - self._run_time) / 32
                if self._hooks or outcome.verb != "complete":
                    self._tell(run, outcome, seconds)
            if run.lease not in self.runs or run.outcome not in (None, outcome):
                # Given back before it ended.
                continue
            run.outcome = outcome
            if outcome.verb == "drop":
                self.runs.pop(run.lease, None)
            else:
                reports[run.lease] = run
        return list(reports.values())

    def take_back(self, reports: Sequence[Run]) -> None:
        """Not answered: to be sent again."""
        for run in reversed(reports):
            if run.outcome is not None:
                self.ended.appendleft((run, run.outcome))

    def settle(self, reports: Sequence[Run]) -> None:
        """Answered: no more to be said about these."""
        for run in reports:
            del self.runs[run.lease]
            # A job knows its run: without this every one would wait for the collector.
            del run.job

    def others_end_within(self, seconds: float) -> bool:
        """Whether some have ended, and more are likely to in this time."""
        ended = len(self.ended)
        return 0 < ended < sum(self._used.values()) and self._run_time < seconds

    # -- the end ----------------------------------------------------------------------

    def tell_all_to_stop(self) -> None:
        for run in self.runs.values():
            run.stopping = True

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.outcome is None]

    def give_back(self, *runs: Run) -> None:
        """Release what has not ended by itself meanwhile."""
        ended = {id(run) for run, _ in list(self.ended)}  # Threads add to it.
        for run in runs:
            run.stopping = True
            if id(run) not in ended:
                self.ended.append((run, RELEASE))

    def _tell(self, run: Run, outcome: Outcome, seconds: float) -> None:
        job = run.job
        self._hooks.call("finished", job, outcome.verb, seconds)
        level, said = {
            "complete": (logging.DEBUG, "completed"),
            "fail": (logging.WARNING, f"failed: {last_line(outcome.error)}"),
            "snooze": (logging.INFO, f"snoozes for {outcome.delay}"),
            "release": (logging.INFO, "is given back"),
            "ack_cancel": (logging.INFO, "is cancelled"),
            "drop": (logging.WARNING, "lost its lease; its result is dropped"),
        }[outcome.verb]
        say(
            level,
            f"job {job.id} ({job.kind}, attempt {job.attempt}) {said}",
            worker=self._worker,
            job_id=job.id,
            kind=job.kind,
            lane=job.lane,
            attempt=job.attempt,
            outcome=outcome.verb,
            seconds=round(seconds, 6),
        )


def share(slots: int) -> int:
    return slots if slots < LARGE else math.ceil(slots / 2)


def last_line(error: str | None) -> str:
    return (error or "").rsplit("\n", 1)[-1]
