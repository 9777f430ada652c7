"""What is kept of an error: the handler's frames, and none of pulse's before them."""

from __future__ import annotations

import os
import re
import sys

import pytest

import pulse
from pulse import Job, Worker
from pulse.worker.outcomes import PACKAGE, described
from tests.python.worker import handlers
from tests.python.worker.conftest import Queue, Start
from tools import paths


class Around(pulse.Hooks):
    """Hooks that wrap the handler add frames of their own."""

    from contextlib import nullcontext

    def around(self, job: Job) -> nullcontext[None]:
        return self.nullcontext()


def files(error: str) -> list[str]:
    return [os.path.basename(name) for name in re.findall(r'File "([^"]+)"', error)]


def test_a_traceback_begins_in_the_handler_wherever_it_runs(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.modules.setdefault("tests.python.worker.handlers", handlers)
    monkeypatch.setenv("PYTHONPATH", f"{paths.ROOT}:{paths.ROOT / 'python'}")
    worker = Worker(queue.db.dsn, tasks=[handlers.boom], hooks=[Around()])

    @worker.handle("thread")
    def thread(job: Job, n: int) -> None:
        raise ValueError(n)

    @worker.handle("async")
    async def async_one(job: Job, n: int) -> None:
        raise ValueError(n)

    @worker.handle("calls pulse")
    def calls_pulse(job: Job) -> None:
        pulse.enqueue(queue.connection, "x", no_such_option=1)  # type: ignore[call-overload]

    start(worker)
    expected = {
        queue.enqueue("thread", {"n": 1}, max_attempts=1): ["test_outcomes.py"],
        queue.enqueue("async", {"n": 1}, max_attempts=1): ["test_outcomes.py"],
        queue.enqueue("boom", max_attempts=1): ["handlers.py"],
        # What the handler called is of interest, also in pulse.
        queue.enqueue("calls pulse", max_attempts=1): [
            "test_outcomes.py",
            "producer.py",
            "options.py",
        ],
    }
    for job, names in expected.items():
        queue.until_state(job, "dead")
        error = queue.job(job)["last_error"]
        assert error.startswith("Traceback"), error
        assert files(error) == names, error


def test_only_frames_of_the_package_are_left_out() -> None:
    beside = PACKAGE.rstrip(os.sep) + "_app" + os.sep + "handlers.py"
    inside = PACKAGE + "worker" + os.sep + "executors.py"
    space: dict[str, object] = {}
    exec(compile("def handler(): 1 / 0", beside, "exec"), space)
    exec(compile("def call(): handler()", inside, "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        eval(compile("call()", inside, "eval"), space)
    caught.value.__traceback__ = caught.tb.tb_next
    assert re.findall(r'File "([^"]+)"', described(caught.value)) == [beside]
    assert os.path.basename(os.path.dirname(PACKAGE)) == "pulse"
