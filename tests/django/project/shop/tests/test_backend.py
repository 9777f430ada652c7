"""PulseBackend, in the transaction of a test."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import skipIf

import django
from asgiref.sync import sync_to_async
from django.core.checks.registry import registry
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, override_settings
from django.utils import timezone

import pulse
from pulse.django import PulseBackend, job_options, results
from pulse.django.apps import check_backport
from pulse.django.framework import Task
from pulse.django.testing import work_off
from shop import tasks
from shop.framework import (
    DoesNotExist,
    InvalidTask,
    Mismatch,
    Status,
    signals,
    task_backends,
)
from shop.models import Order


def job(result: Any) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, lane, kind, priority, max_attempts, tags FROM pulse.jobs"
            " WHERE job_id = %s",
            [result.id],
        )
        names = [column.name for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


class Enqueue(TestCase):
    def test_the_backend_supports_everything(self) -> None:
        backend = task_backends["default"]
        self.assertIsInstance(backend, PulseBackend)
        self.assertTrue(backend.supports_defer and backend.supports_async_task)
        self.assertTrue(backend.supports_get_result and backend.supports_priority)

    def test_a_task_is_a_job(self) -> None:
        result = tasks.confirm.enqueue("a@b.c")
        self.assertEqual(
            job(result),
            {
                "state": "ready",
                "lane": "mail",
                "kind": "shop.tasks.confirm",
                "priority": 7,
                "max_attempts": 3,
                "tags": None,
            },
        )
        self.assertEqual(result.status, Status.READY)
        self.assertIsNotNone(result.enqueued_at)
        self.assertIsNone(result.started_at)
        self.assertIsNone(result.finished_at)
        self.assertEqual((result.args, result.kwargs), (["a@b.c"], {}))
        self.assertEqual((result.attempts, result.errors), (0, []))
        self.assertEqual(result.task, tasks.confirm)
        self.assertEqual(tasks.confirm.get_result(result.id), result)

    def test_options_of_the_backend_are_those_of_enqueue(self) -> None:
        made = job(tasks.refuse.enqueue())
        self.assertEqual((made["max_attempts"], made["tags"]), (1, ["once"]))

    def test_a_task_has_options_of_its_own(self) -> None:
        result = tasks.report.enqueue("May")
        self.assertEqual(job(result)["max_attempts"], 7)
        self.assertEqual(job(result)["tags"], ["slow"])
        self.assertEqual(job(result)["lane"], "mail")
        # They stay when Django's own are changed, and those of the backend come after.
        again = tasks.report.using(priority=3, backend="once", queue_name="default")
        self.assertEqual(
            (
                job(again.enqueue("June"))["max_attempts"],
                job(again.enqueue("June"))["tags"],
            ),
            (7, ["slow"]),
        )
        self.assertEqual(
            again, tasks.report.using(priority=3, backend="once", queue_name="default")
        )

    def test_options_for_one_enqueue(self) -> None:
        once = job_options(unique_key="report of May", max_attempts=1)(tasks.report)
        first, second = once.enqueue("May"), once.enqueue("May")
        self.assertEqual(first.id, second.id)
        self.assertEqual(job(first)["max_attempts"], 1)
        self.assertEqual(job(first)["tags"], ["slow"])
        self.assertNotEqual(tasks.report.enqueue("May").id, first.id)
        [done, _] = work_off()
        self.assertEqual(done.outcome, "complete", done.error)
        self.assertEqual(once.get_result(first.id).return_value, "report of May")

    def test_options_that_mean_nothing_are_refused(self) -> None:
        wrong: Any = {"lane": "mail", "colour": "red"}
        with self.assertRaisesMessage(InvalidTask, "colour, lane: no option of a task"):
            job_options(**wrong)

    def test_a_task_of_another_backend_stays_as_it_is(self) -> None:
        plain = Task(
            func=tasks.add.func,
            queue_name="default",
            backend="default",
            priority=0,
            run_after=None,
        )
        self.assertIs(job_options(max_attempts=9)(plain), plain)
        self.assertEqual(job(plain.enqueue(1))["max_attempts"], 3)

    def test_a_rollback_takes_it_back(self) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            transaction.set_rollback(True)
        with self.assertRaises(DoesNotExist):
            tasks.add.get_result(result.id)

    def test_priorities_run_from_minus_100_to_100(self) -> None:
        for priority in (-100, 0, 100):
            result = tasks.add.using(priority=priority).enqueue(1)
            self.assertEqual(job(result)["priority"], priority)
            self.assertEqual(result.task.priority, priority)
        for priority in (-101, 101, 1.5):
            with self.assertRaises(InvalidTask):
                tasks.add.using(priority=priority)

    def test_run_after_waits(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=due).enqueue(1)
        self.assertEqual(job(result)["state"], "scheduled")
        self.assertEqual(result.status, Status.READY)
        self.assertEqual(result.task.run_after, due)
        self.assertEqual(work_off(), [])

    @override_settings(USE_TZ=False)
    def test_without_time_zones_moments_are_naive(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=due).enqueue(1)
        self.assertEqual(result.task.run_after, due)

    @override_settings(USE_TZ=False)
    def test_without_time_zones_tasks_run(self) -> None:
        result = tasks.add.enqueue(1, b=2)
        [done] = work_off()
        self.assertEqual(done.outcome, "complete")
        result.refresh()
        self.assertEqual(result.return_value, 3)

    def test_a_moment_of_one_enqueue_is_not_of_the_next(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        path = tasks.add.module_path
        first = results.known.pop(path)
        self.addCleanup(results.known.__setitem__, path, first)
        tasks.add.using(run_after=due)
        self.assertIsNone(results.known[path].run_after)

    def test_a_task_that_is_gone_has_failed(self) -> None:
        payload = '{"args": [], "kwargs": {}, "backend": "default"}'
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pulse.enqueue('shop.tasks.gone', %s, lane => 'mail')", [payload]
            )
            [number] = cursor.fetchone()
            cursor.execute(
                "SELECT pulse.fail(lease, 'there is no task', fatal => true)"
                " FROM pulse.claim_batch('w', 'mail')"
            )
        result = task_backends["default"].get_result(str(number))
        self.assertEqual(result.status, Status.FAILED)
        self.assertIn("there is no task", result.errors[0].traceback)
        self.assertIsNone(results.find("shop.tasks.gone"))

    def test_an_unknown_queue_is_refused(self) -> None:
        with self.assertRaises(InvalidTask):
            tasks.add.using(queue_name="unknown")

    def test_arguments_that_are_not_json_are_refused(self) -> None:
        with self.assertRaises(TypeError):
            tasks.add.enqueue(object())

    async def test_async_callers(self) -> None:
        result = await tasks.add.aenqueue(1, b=2)
        again = await tasks.add.aget_result(result.id)
        self.assertEqual(again, result)
        await sync_to_async(work_off)()
        await result.arefresh()
        self.assertEqual(result.return_value, 3)

    def test_what_is_no_result(self) -> None:
        jobs = [
            pulse.enqueue(connection, "os.getcwd"),
            pulse.enqueue(connection, "shop.models.Order"),
            pulse.enqueue(connection, "shop.tasks.gone"),
            pulse.enqueue(connection, "shop.tasks.add", [1]),
            pulse.enqueue(connection, "plain", {"email": "a"}),
        ]
        for number in (*jobs, 4711, 2**63, 2**64, "", "x", "1e3", "²", None, -1):
            with self.subTest(number), self.assertRaises(DoesNotExist):
                task_backends["default"].get_result(str(number))
        result = tasks.add.enqueue(1)
        with self.assertRaises(Mismatch):
            tasks.confirm.get_result(result.id)


class Run(TestCase):
    def test_a_result_comes_back(self) -> None:
        order = Order.objects.create(email="a@b.c")
        result = tasks.confirm.enqueue("a@b.c")
        [done] = work_off()
        self.assertEqual(done.outcome, "complete", done.error)
        result.refresh()
        self.assertEqual(result.status, Status.SUCCESSFUL)
        self.assertEqual(result.return_value, f"order {order.pk}")
        self.assertTrue(result.is_finished)
        self.assertEqual((result.attempts, result.worker_ids), (1, ["test"]))
        self.assertGreaterEqual(result.started_at, result.enqueued_at)
        self.assertGreaterEqual(result.finished_at, result.started_at)
        self.assertEqual(result.last_attempted_at, result.started_at)

    def test_async_tasks_see_the_transaction_of_the_test(self) -> None:
        order = Order.objects.create(email="a@b.c")
        result = tasks.look_up.enqueue("a@b.c")
        number = pulse.enqueue(connection, "plain-async")
        self.assertEqual([done.outcome for done in work_off()], ["complete"] * 2)
        result.refresh()
        self.assertEqual(result.return_value, order.pk)
        self.assertEqual(pulse.Client(connection).result(number, 0), 1)

    def test_plain_tasks_of_pulse_run_too(self) -> None:
        order = Order.objects.create(email="a@b.c")
        first = tasks.plain.enqueue(connection, "a@b.c")
        other = tasks.plain_process.enqueue(connection)
        text = pulse.enqueue(connection, "echo", "a text")
        self.assertEqual([done.outcome for done in work_off()], ["complete"] * 3)
        self.assertEqual((first.result(0), other.result(0)), (order.pk, 1))
        self.assertEqual(pulse.Client(connection).result(text, 0), "a text")

    def test_only_the_lanes_asked_for(self) -> None:
        Order.objects.create(email="a@b.c")
        tasks.confirm.enqueue("a@b.c")
        tasks.add.enqueue(1)
        self.assertEqual([d.job.lane for d in work_off(["mail"])], ["mail"])

    def test_the_context_knows_the_run(self) -> None:
        result = tasks.context_of.enqueue()
        work_off()
        result.refresh()
        self.assertEqual(
            result.return_value,
            {
                "id": result.id,
                "attempt": 1,
                "workers": 1,
                "errors": [],
                "status": "RUNNING",
            },
        )

    def test_a_retry_knows_its_history(self) -> None:
        result = tasks.context_of.enqueue(retry=True)
        work_off()
        result.refresh()
        self.assertEqual(result.status, Status.READY)
        self.assertEqual((result.attempts, len(result.errors)), (1, 1))
        first = result.started_at
        self.assertIsNotNone(first)
        move_to_now()
        work_off()
        result.refresh()
        self.assertEqual(
            result.return_value,
            {
                "id": result.id,
                "attempt": 2,
                "workers": 2,
                "errors": ["shop.tasks.Refused"],
                "status": "RUNNING",
            },
        )
        self.assertEqual(result.started_at, first)
        self.assertGreater(result.last_attempted_at, first)
        self.assertEqual(result.worker_ids, ["test", "test"])

    def test_a_failure_has_class_and_traceback(self) -> None:
        embedded = "no\nTraceback (most recent call last):\nValueError: other"
        for message in ("no", "", "a: b\n\nc", embedded):
            with self.subTest(message):
                result = tasks.refuse.enqueue(message)
                work_off()
                result.refresh()
                self.assertEqual(result.status, Status.FAILED)
                [error] = result.errors
                self.assertIs(error.exception_class, tasks.Refused)
                self.assertIn("KeyError: 'inner'", error.traceback)
                self.assertIn("raise Refused(message) from error", error.traceback)
                self.assertTrue(error.traceback.endswith(f"{message}\n"))
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    _ = result.return_value

    def test_other_ends(self) -> None:
        for task, path in (
            (tasks.give_up, "pulse.errors.Fatal"),
            (tasks.leave, "builtins.SystemExit"),
            (tasks.unstorable, "builtins.TypeError"),
        ):
            with self.subTest(path):
                result = task.enqueue()
                work_off()
                result.refresh()
                self.assertEqual(result.status, Status.FAILED)
                self.assertEqual(result.errors[0].exception_class_path, path)

    def test_a_snoozed_task_is_ready_again(self) -> None:
        result = tasks.later.enqueue()
        self.assertEqual([done.outcome for done in work_off()], ["snooze"])
        result.refresh()
        self.assertEqual((result.status, result.errors), (Status.READY, []))
        self.assertEqual(result.attempts, 1)

    def test_a_cancelled_task_has_failed(self) -> None:
        result = tasks.add.enqueue(1)
        pulse.Client(connection).cancel(int(result.id), "not needed")
        result.refresh()
        self.assertEqual(result.status, Status.FAILED)
        [error] = result.errors
        self.assertIs(error.exception_class, pulse.errors.JobCancelled)
        self.assertIn("not needed", error.traceback)

    def test_a_broken_statement_leaves_the_test_its_transaction(self) -> None:
        Order.objects.create(email="before")
        result = tasks.break_the_transaction.enqueue("a@b.c")
        work_off()
        result.refresh()
        self.assertEqual(
            result.errors[0].exception_class_path, "django.db.utils.IntegrityError"
        )
        self.assertEqual(Order.objects.get().email, "before")

    def test_a_job_that_an_operator_moved_and_raised_runs(self) -> None:
        result = tasks.add.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pulse.move(%s, 'elsewhere', 'test')", [result.id])
            cursor.execute("SELECT pulse.reprioritize(%s, 5000, 'test')", [result.id])
        result.refresh()
        self.assertEqual(result.status, Status.READY)
        [done] = work_off(["elsewhere"])
        self.assertEqual(done.outcome, "complete", done.error)

    def test_whoever_knows_its_path_enqueues_it_with_keywords(self) -> None:
        once = pulse.enqueue(connection, "shop.tasks.add", {"a": 1, "b": 5})
        twice = pulse.enqueue(connection, "shop.tasks.context_of", {"retry": True})
        self.assertEqual(len(work_off()), 2)
        move_to_now()
        [done] = work_off()
        self.assertEqual(done.outcome, "complete", done.error)
        result = tasks.add.get_result(str(once))
        self.assertEqual((result.return_value, result.kwargs), (6, {"a": 1, "b": 5}))
        result = tasks.context_of.get_result(str(twice))
        self.assertEqual((result.attempts, result.backend), (2, "default"))

    def test_foreign_payloads_fail_alone(self) -> None:
        for payload in ([1], {"args": 1}, {"args": [], "kwargs": {}, "backend": "x"}):
            pulse.enqueue(connection, "shop.tasks.add", payload, max_attempts=1)
        tasks.add.enqueue(1)
        ran = work_off()
        outcomes = [done.outcome for done in ran]
        self.assertEqual(outcomes, ["fail", "fail", "fail", "complete"])
        self.assertIn("its members are keyword arguments", ran[0].error or "")


def move_to_now() -> None:
    """The pause before a retry is over."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pulse_internal.waiting SET run_at = clock_timestamp() - "
            "interval '1 second'"
        )
        cursor.execute("SELECT pulse.tick()")


class Signals(TestCase):
    def setUp(self) -> None:
        self.heard: list[tuple[str, Any, str]] = []
        for name in ("task_enqueued", "task_started", "task_finished"):
            signal = getattr(signals, name)

            def hear(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
                self.heard.append((name, sender, task_result.status))

            signal.connect(hear, weak=False, dispatch_uid=name)
            self.addCleanup(signal.disconnect, dispatch_uid=name)

    def names(self) -> list[tuple[str, str]]:
        self.assertTrue(all(sender is PulseBackend for _, sender, _ in self.heard))
        return [(name, status) for name, _, status in self.heard]

    def test_success(self) -> None:
        for task in (tasks.add, tasks.context_of):
            self.heard.clear()
            task.enqueue(*([1] if task is tasks.add else []))
            work_off()
            self.assertEqual(
                self.names(),
                [
                    ("task_enqueued", "READY"),
                    ("task_started", "RUNNING"),
                    ("task_finished", "SUCCESSFUL"),
                ],
            )

    def test_a_failure_that_is_retried_has_not_finished(self) -> None:
        tasks.context_of.enqueue(retry=True)
        work_off()
        self.assertEqual(self.names()[-1], ("task_started", "RUNNING"))

    def test_the_last_failure_has(self) -> None:
        tasks.refuse.enqueue()
        work_off()
        self.assertEqual(self.names()[-1], ("task_finished", "FAILED"))


class Check(SimpleTestCase):
    databases = {"default"}

    def errors(self, **params: Any) -> list[str]:
        return [e.id for e in PulseBackend("default", params).check()]

    def test_settings_are_checked(self) -> None:
        self.assertEqual(self.errors(), [])
        self.assertEqual(self.errors(OPTIONS={"max_attempts": 5}), [])
        self.assertEqual(self.errors(OPTIONS={"database": "x"}), ["pulse.E002"])
        self.assertEqual(self.errors(OPTIONS={"lane": "x"}), ["pulse.E004"])
        self.assertEqual(self.errors(OPTIONS={"executor": "fiber"}), ["pulse.E004"])
        self.assertEqual(self.errors(QUEUES=["x" * 201]), ["pulse.E005"])

    def test_the_app_must_be_installed(self) -> None:
        with override_settings(INSTALLED_APPS=["shop"]):
            self.assertEqual(self.errors(), ["pulse.E001"])

    @skipIf(django.VERSION >= (6, 0), "there Django itself checks TASKS")
    def test_the_app_of_the_backport_is_missed(self) -> None:
        self.assertIn(check_backport, registry.get_checks())
        self.assertEqual(check_backport(), [])
        with override_settings(INSTALLED_APPS=["pulse.django", "shop"]):
            self.assertEqual([e.id for e in check_backport()], ["pulse.W001"])
            with override_settings(TASKS={}):
                self.assertEqual(check_backport(), [])

    def test_it_must_be_postgresql(self) -> None:
        from django.db import connections

        sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        connections.databases["lite"] = connections.configure_settings(
            {"default": sqlite}
        )["default"]
        self.addCleanup(connections.databases.pop, "lite")
        self.assertEqual(self.errors(OPTIONS={"database": "lite"}), ["pulse.E003"])

    def test_an_unknown_backend_is_djangos_error(self) -> None:
        with self.assertRaises(ImproperlyConfigured):
            _ = task_backends["nowhere"]


class ClassPath(SimpleTestCase):
    def test_of_tracebacks(self) -> None:
        for text, path in (
            ("the lease lapsed", results.LOST),
            ("", results.LOST),
            ("ValueError: x", "builtins.ValueError"),
            ("a.b.<locals>.C: x", "a.b.<locals>.C"),
            (
                '+ Exception Group Traceback (most recent call last):\n  |   File "x"\n'
                "  | ExceptionGroup: g (1 sub-exception)\n  +-+--- 1 ---",
                "builtins.ExceptionGroup",
            ),
            (
                'Traceback (most recent call last):\n  File "x", line 1\n    f()\n'
                "  [Previous line repeated 9 more times]\nRecursionError: deep",
                "builtins.RecursionError",
            ),
        ):
            with self.subTest(text):
                self.assertEqual(results.class_path(text), path)
