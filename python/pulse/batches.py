"""Tasks that take many jobs at once: @worker.handle("index", batch=100, within=0.5).

pulse.task and worker.handle make a BatchTask when they are given batch. The executor
collects the jobs (worker/executors.py), calls the function with a list of them and
reads one result for each from what it returned (results_of).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pulse.job import Job
from pulse.tasks import Task

if TYPE_CHECKING:
    from pulse.options import Options


class BatchTask(Task[..., Any]):
    """A function of a list of jobs, each of which ends on its own.

    The function gets up to batch jobs, fewer if no more came within so many seconds. It
    returns None when all are completed, or a list with a result or an exception for
    each job, in their order. What it raises fails all of them.

    Args:
        kind: The name under which jobs of the function are enqueued.
        function: What runs a list of jobs.
        batch: How many jobs one call takes at most.
        within: How many seconds a batch waits to fill.
        options: Options of the jobs (pulse.options.Options).
        settings: Settings of the kind that the worker of an application declares.

    Raises:
        ValueError: batch is below 1, or within below 0.

    Example:
        >>> @worker.handle("index", batch=100, within=0.5)
        ... def index(jobs):
        ...     return [job.payload["page"] for job in jobs]
        >>> job_id = index.using(priority=5).enqueue(connection, page=7).id
        >>> [done] = work_off(connection, worker)
        >>> done.outcome
        'complete'
    """

    def __init__(
        self,
        kind: str,
        function: Callable[[list[Job]], Any],
        batch: int,
        within: float,
        options: Options | None = None,
        settings: Any = None,
    ) -> None:
        super().__init__(kind, function, options, "auto", settings)
        if batch < 1 or within < 0:
            raise ValueError("batch is at least 1 and within not below 0")
        self.batch = batch
        self.within = within

    def payload(self, **members: Any) -> dict[str, Any]:
        """Make a payload of these members; the function reads job.payload."""
        return members

    def run(self, job: Job) -> Any:
        """Call the function with a batch of one job."""
        if self.is_async:
            return self._run_async(job)
        return self._only([job], self.function([job]))

    async def _run_async(self, job: Job) -> Any:
        return self._only([job], await self.function([job]))

    def _only(self, jobs: list[Job], returned: Any) -> Any:
        [result] = results_of(jobs, returned)
        if isinstance(result, BaseException):
            raise result
        return result

    def using(self, **options: Any) -> BatchTask:
        both: Any = {**self.options, **options}
        return BatchTask(
            self.kind, self.function, self.batch, self.within, both, self.settings
        )


class BatchDecorator:
    """The decorator of task and handle, where they are given batch."""

    def __init__(
        self,
        make: Callable[[Callable[[list[Job]], Any]], BatchTask],
        then: Callable[[Task[Any, Any]], None] | None,
    ) -> None:
        self._make = make
        self._then = then

    def __call__(self, function: Callable[[list[Job]], Any]) -> BatchTask:
        made = self._make(function)
        if self._then is not None:
            self._then(made)
        return made


def results_of(jobs: Sequence[Job], returned: Any) -> list[Any]:
    """Read one result or exception for each job from what the function returned."""
    if returned is None:
        return [None] * len(jobs)
    if not isinstance(returned, (list, tuple)):
        raise TypeError(
            f"a batch handler returns None or a list with a result for each job, and "
            f"not a {type(returned).__name__}"
        )
    if len(returned) != len(jobs):
        raise TypeError(f"{len(returned)} results came back for {len(jobs)} jobs")
    return list(returned)
