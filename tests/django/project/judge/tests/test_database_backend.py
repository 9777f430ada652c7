"""The cases of django-tasks-db's backend and worker, adapted to PulseBackend.

After tests/tests.py of django-tasks-db 0.13 (BSD licence). Those of its
processes are in tests/django/test_worker.py. Cases of its model, its pruning and its
command's own options have no counterpart here.
"""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

import pulse
from judge import tasks as test_tasks
from judge.tests.judging import LOGGER, jobs
from pulse.django import PulseBackend
from pulse.django.testing import work_off
from shop.framework import DoesNotExist as TaskResultDoesNotExist
from shop.framework import InvalidTask, framework, signals, task_backends
from shop.framework import Status as TaskResultStatus

default_task_backend = framework.default_task_backend


def settings(**params: Any) -> Any:
    return override_settings(
        TASKS={"default": {"BACKEND": "pulse.django.PulseBackend", **params}}
    )


def execute(query: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(query, values)


class Backend(TestCase):
    def setUp(self) -> None:
        self.received: list[tuple[Any, Any]] = []

        def capture(sender: Any, task_result: Any, **_: Any) -> None:
            self.received.append((sender, task_result))

        signals.task_enqueued.connect(capture, weak=False, dispatch_uid="judge")
        self.addCleanup(signals.task_enqueued.disconnect, dispatch_uid="judge")

    def is_ready(self, result: Any, task: Any, args: Any, kwargs: Any) -> None:
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertFalse(result.is_finished)
        self.assertIsNone(result.started_at)
        self.assertIsNone(result.last_attempted_at)
        self.assertIsNone(result.finished_at)
        with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
            result.return_value
        self.assertEqual(result.task, task)
        self.assertEqual((result.args, result.kwargs), (args, kwargs))
        self.assertEqual(result.attempts, 0)
        self.assertEqual(self.received.pop(), (PulseBackend, result))

    def has_succeeded(self, result: Any) -> None:
        self.assertIsNotNone(result.started_at)
        self.assertIsNotNone(result.last_attempted_at)
        self.assertIsNotNone(result.finished_at)
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertTrue(result.is_finished)
        self.assertEqual(result.return_value, 42)
        self.assertEqual(result.attempts, 1)

    def test_using_correct_backend(self) -> None:
        self.assertEqual(default_task_backend, task_backends["default"])
        self.assertIsInstance(task_backends["default"], PulseBackend)
        self.assertEqual(default_task_backend.alias, "default")

    def test_enqueue_task(self) -> None:
        for task in [test_tasks.noop_task, test_tasks.noop_task_async]:
            # One to enqueue, one to read back what the server made of it.
            with self.subTest(task), self.assertNumQueries(2):
                self.is_ready(task.enqueue(1, two=3), task, [1], {"two": 3})

    async def test_enqueue_task_async(self) -> None:
        for task in [test_tasks.noop_task, test_tasks.noop_task_async]:
            with self.subTest(task):
                self.is_ready(await task.aenqueue(), task, [], {})

    def test_get_result(self) -> None:
        result = default_task_backend.enqueue(test_tasks.noop_task, [], {})
        with self.assertNumQueries(1):
            new_result = default_task_backend.get_result(result.id)
        self.assertEqual(result, new_result)

    async def test_get_result_async(self) -> None:
        result = await default_task_backend.aenqueue(test_tasks.noop_task, [], {})
        self.assertEqual(result, await default_task_backend.aget_result(result.id))

    def test_refresh_result(self) -> None:
        result = test_tasks.calculate_meaning_of_life.enqueue()
        work_off()
        self.is_ready(result, test_tasks.calculate_meaning_of_life, [], {})
        with self.assertNumQueries(1):
            result.refresh()
        self.has_succeeded(result)

    async def test_refresh_result_async(self) -> None:
        result = await test_tasks.calculate_meaning_of_life.aenqueue()
        await sync_to_async(work_off)()
        self.is_ready(result, test_tasks.calculate_meaning_of_life, [], {})
        await result.arefresh()
        self.has_succeeded(result)

    def test_get_missing_result(self) -> None:
        for missing in ("123", "12345678901234567890123", str(uuid.uuid4())):
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(missing)

    async def test_async_get_missing_result(self) -> None:
        for missing in ("123", str(uuid.uuid4())):
            with self.assertRaises(TaskResultDoesNotExist):
                await default_task_backend.aget_result(missing)

    def test_task_paths_that_are_none(self) -> None:
        payload = {"args": [["exit", "1"]], "kwargs": {}, "backend": "default"}
        for path in ("subprocess.check_output", "missing.func", "judge.tasks.missing"):
            with self.subTest(path), self.assertRaises(TaskResultDoesNotExist):
                job = pulse.enqueue(connection, path, payload)
                default_task_backend.get_result(str(job))

    def test_check(self) -> None:
        self.assertEqual(list(default_task_backend.check()), [])

    @override_settings(INSTALLED_APPS=[])
    def test_database_backend_app_missing(self) -> None:
        [error] = default_task_backend.check()
        self.assertIn("pulse.django", error.hint)

    def test_enqueue_logs(self) -> None:
        with self.assertLogs(LOGGER, level="DEBUG") as captured_logs:
            result = test_tasks.noop_task.enqueue()
        self.assertEqual(len(captured_logs.output), 1)
        self.assertIn("enqueued", captured_logs.output[0])
        self.assertIn(result.id, captured_logs.output[0])

    def test_run_after_tz(self) -> None:
        for use_tz in [True, False]:
            with self.subTest(use_tz=use_tz), override_settings(USE_TZ=use_tz):
                result = test_tasks.noop_task.enqueue()
                self.assertIsNone(
                    default_task_backend.get_result(result.id).task.run_after
                )

    def test_validate_on_enqueue(self) -> None:
        with settings(QUEUES=["unknown_queue"]):
            task = test_tasks.noop_task.using(queue_name="unknown_queue")
        with self.assertRaisesMessage(
            InvalidTask, "Queue 'unknown_queue' is not valid for backend"
        ):
            task.enqueue()

    async def test_validate_on_aenqueue(self) -> None:
        with settings(QUEUES=["unknown_queue"]):
            task = test_tasks.noop_task.using(queue_name="unknown_queue")
        with self.assertRaisesMessage(
            InvalidTask, "Queue 'unknown_queue' is not valid for backend"
        ):
            await task.aenqueue()


class Commit(TransactionTestCase):
    def seen_by_others(self, result: Any) -> bool:
        other = connections.create_connection("default")
        try:
            with other.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pulse.jobs WHERE job_id = %s", [result.id]
                )
                return cursor.fetchone() == (1,)
        finally:
            other.close()

    def test_doesnt_wait_until_transaction_commit(self) -> None:
        with transaction.atomic():
            result = test_tasks.noop_task.enqueue()
            self.assertIsNotNone(result.enqueued_at)
            self.assertIn(result.id, jobs())
            self.assertFalse(self.seen_by_others(result))
        self.assertTrue(self.seen_by_others(result))
        work_off()


class Worker(TestCase):
    def test_run_enqueued_task(self) -> None:
        for task in [test_tasks.noop_task, test_tasks.noop_task_async]:
            with self.subTest(task):
                result = task.enqueue()
                self.assertEqual(jobs("ready"), [result.id])
                work_off()
                self.assertEqual(result.status, TaskResultStatus.READY)
                self.assertEqual(result.attempts, 0)
                result.refresh()
                self.assertGreaterEqual(result.started_at, result.enqueued_at)
                self.assertGreaterEqual(result.finished_at, result.started_at)
                self.assertIsNotNone(result.last_attempted_at)
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertEqual(result.attempts, 1)
                self.assertEqual(jobs("ready"), [])

    def test_batch_processes_all_tasks(self) -> None:
        for _ in range(3):
            test_tasks.noop_task.enqueue()
        test_tasks.failing_task_value_error.enqueue()
        work_off()
        self.assertEqual(len(jobs("ready")), 0)
        self.assertEqual(len(jobs("completed")), 3)
        self.assertEqual(len(jobs("dead")), 1)

    def test_no_tasks(self) -> None:
        self.assertEqual(work_off(), [])

    def test_doesnt_process_different_queue(self) -> None:
        test_tasks.noop_task.using(queue_name="queue-1").enqueue()
        work_off(["default"])
        self.assertEqual(len(jobs("ready")), 1)
        work_off(["queue-1"])
        self.assertEqual(len(jobs("ready")), 0)

    def test_process_all_queues(self) -> None:
        test_tasks.noop_task.using(queue_name="queue-1").enqueue()
        test_tasks.noop_task.enqueue()
        work_off()
        self.assertEqual(len(jobs("ready")), 0)

    def has_failed(self, result: Any, exception: type[BaseException]) -> str:
        work_off()
        self.assertEqual(result.status, TaskResultStatus.READY)
        result.refresh()
        self.assertGreaterEqual(result.started_at, result.enqueued_at)
        self.assertGreaterEqual(result.finished_at, result.started_at)
        self.assertIsNotNone(result.last_attempted_at)
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            result.return_value
        self.assertIsNone(result._return_value)
        self.assertEqual(result.errors[0].exception_class, exception)
        self.assertEqual(jobs("ready"), [])
        return str(result.errors[0].traceback)

    def test_failing_task(self) -> None:
        result = test_tasks.failing_task_value_error.enqueue()
        traceback = self.has_failed(result, ValueError)
        message = "ValueError: This Task failed due to ValueError\n"
        self.assertTrue(traceback.endswith(message), traceback)

    def test_complex_exception(self) -> None:
        traceback = self.has_failed(test_tasks.complex_exception.enqueue(), ValueError)
        self.assertIn('ValueError(ValueError("This task failed"))', traceback)

    def test_complex_return_value(self) -> None:
        traceback = self.has_failed(
            test_tasks.complex_return_value.enqueue(), TypeError
        )
        self.assertIn("Unsupported type", traceback)

    def test_worker_doesnt_exit_on_failure(self) -> None:
        self.has_failed(test_tasks.exit_task.enqueue(), SystemExit)

    def test_doesnt_process_different_database(self) -> None:
        result = test_tasks.noop_task.enqueue()
        with settings(OPTIONS={"database": "other"}):
            self.assertEqual(work_off(), [])
        self.assertEqual(jobs("ready"), [result.id])

    def test_run_after(self) -> None:
        hours = timedelta(hours=10)
        result = test_tasks.noop_task.using(run_after=timezone.now() + hours).enqueue()
        self.assertEqual(work_off(), [])
        self.assertEqual(jobs("scheduled"), [result.id])
        execute("UPDATE pulse_internal.waiting SET run_at = clock_timestamp()")
        execute("SELECT pulse.tick()")
        work_off()
        self.assertEqual(jobs("completed"), [result.id])

    def test_run_after_priority(self) -> None:
        def enqueue(**options: Any) -> str:
            return str(test_tasks.noop_task.using(**options).enqueue().id)

        past, future = (timezone.now() + timedelta(hours=n) for n in (-2, 2))
        old = enqueue(priority=20, run_after=past)
        enqueue(run_after=future)
        enqueue(priority=10, run_after=future)
        high = enqueue(priority=10)
        low = enqueue(priority=2)
        lower = enqueue(priority=-2)
        ran = [str(done.job.id) for done in work_off(["default"])]
        self.assertEqual(ran, [old, high, low, lower])

    def test_higher_priority_tasks_come_first(self) -> None:
        for priority in (-1, 0, 1):
            test_tasks.noop_task.using(priority=priority).enqueue()
        self.assertEqual([done.job.priority for done in work_off()], [1, 0, -1])

    def test_earlier_enqueued_comes_first_given_same_priority(self) -> None:
        results = [test_tasks.noop_task.enqueue().id for _ in range(3)]
        self.assertEqual([str(done.job.id) for done in work_off()], results)

    def test_paths_that_are_no_tasks_are_not_run(self) -> None:
        payload = {"args": [["exit", "1"]], "kwargs": {}, "backend": "default"}
        for path in ("subprocess.check_output", "missing.func", "judge.tasks.missing"):
            pulse.enqueue(connection, path, payload)
        self.assertEqual(work_off(), [])
        self.assertEqual(len(jobs("ready")), 3)

    def test_max_tasks(self) -> None:
        results = [test_tasks.noop_task.enqueue() for _ in range(5)]
        work_off(max_jobs=2)
        for result in results:
            result.refresh()
        statuses = Counter(result.status for result in results)
        self.assertEqual(statuses[TaskResultStatus.SUCCESSFUL], 2)
        self.assertEqual(statuses[TaskResultStatus.READY], 3)

    def test_takes_context(self) -> None:
        result = test_tasks.get_task_id.enqueue()
        work_off()
        result.refresh()
        self.assertEqual(result.return_value, result.id)

    def test_context(self) -> None:
        result = test_tasks.test_context.enqueue(1)
        work_off()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)

    def test_logging(self) -> None:
        result = test_tasks.noop_task.enqueue()
        with self.assertLogs(LOGGER, level="DEBUG") as captured_logs:
            work_off()
        path = f"id={result.id} path=judge.tasks.noop_task"
        self.assertEqual(
            [line.partition("Task ")[2] for line in captured_logs.output],
            [f"{path} state=RUNNING", f"{path} state=SUCCESSFUL"],
        )


class LockedRows(TransactionTestCase):
    def test_worker_with_locked_rows(self) -> None:
        first = test_tasks.noop_task.enqueue()
        other = connections.create_connection("default")
        try:
            with other.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT FROM pulse_internal.ready FOR UPDATE")
            second = test_tasks.noop_task.enqueue()
            work_off()
        finally:
            other.close()
        first.refresh()
        second.refresh()
        self.assertEqual(first.status, TaskResultStatus.READY)
        self.assertEqual(second.status, TaskResultStatus.SUCCESSFUL)
        work_off()
