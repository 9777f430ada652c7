from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

import pulse
from shop.models import Order


def jobs() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pulse.jobs")
        return int(cursor.fetchone()[0])


class InATestCase(TestCase):
    def test_a_job_belongs_to_the_transaction(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            Order.objects.create(email="a@b.c")
            pulse.enqueue(connection, "mail", {"to": "a@b.c"})
            self.assertEqual(jobs(), 1)
            _ = 1 / 0
        self.assertEqual(jobs(), 0)


class InATransactionTestCase(TransactionTestCase):
    def test_a_job_is_committed(self) -> None:
        before = jobs()
        pulse.enqueue(connection, "mail", {"to": "a@b.c"})
        connection.close()
        self.assertEqual(jobs(), before + 1)
