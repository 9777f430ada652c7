"""What tests of a project are written with."""

from __future__ import annotations

from django.db import connection
from django.test import TestCase, override_settings

from pulse.django.testing import perform, work_off
from pulse.errors import WrongState
from pulse.testing import assert_enqueued, refute_enqueued
from shop import tasks


class Asserted(TestCase):
    def test_a_task_is_asserted_on_by_itself(self) -> None:
        tasks.confirm.enqueue("a@b.c")
        [found] = assert_enqueued(
            connection, tasks.confirm, {"args": ["a@b.c"]}, lane="mail"
        )
        self.assertEqual(found["state"], "ready")
        assert_enqueued(connection, "shop.tasks.confirm")
        refute_enqueued(connection, tasks.add)
        with self.assertRaisesMessage(AssertionError, "shop.tasks.add"):
            assert_enqueued(connection, tasks.add)

    def test_where_every_queue_is_allowed_those_of_the_tasks_are_worked(self) -> None:
        any_name = {"BACKEND": "pulse.django.PulseBackend", "QUEUES": []}
        with override_settings(TASKS={"default": any_name, "once": any_name}):
            tasks.report.enqueue("May")
            self.assertEqual([d.job.lane for d in work_off()], ["mail"])

    def test_one_task_runs_whenever_it_is_due(self) -> None:
        first = tasks.add.enqueue(1)
        later = tasks.later.enqueue()
        self.assertEqual([d.outcome for d in work_off()], ["complete", "snooze"])
        for job in (tasks.add.enqueue(5), tasks.backend_pid_async.enqueue()):
            self.assertEqual(perform(job).outcome, "complete")
        self.assertEqual(perform(later).outcome, "snooze")
        with self.assertRaises(WrongState):
            perform(first)
