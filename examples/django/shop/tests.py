from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase

import pulse
from pulse.django.testing import work_off
from shop.models import Order


class Orders(TestCase):
    def test_an_order_is_confirmed(self) -> None:
        made = self.client.post("/orders/", {"email": "a@example.org"}).json()
        page = f"/orders/{made['order']}/"
        self.assertEqual(self.client.get(page).json()["status"], "READY")

        [done] = work_off()
        self.assertEqual(done.outcome, "complete", done.error)

        shown = self.client.get(page).json()
        self.assertEqual(shown["status"], "SUCCESSFUL")
        self.assertIn("confirmed to a@example.org", shown["result"])
        self.assertIsNotNone(Order.objects.get().confirmed_at)

    def test_an_order_that_is_gone_fails_and_is_tried_again(self) -> None:
        self.client.post("/orders/", {"email": "a@example.org"})
        Order.objects.all().delete()
        [done] = work_off()
        self.assertEqual(done.outcome, "fail")
        self.assertIn("DoesNotExist", done.error or "")

    def test_an_order_whose_task_was_cancelled_says_so(self) -> None:
        made = self.client.post("/orders/", {"email": "a@example.org"}).json()
        pulse.Client(connection).cancel(int(made["task"]), "changed my mind")
        shown = self.client.get(f"/orders/{made['order']}/").json()
        self.assertEqual((shown["status"], shown["result"]), ("FAILED", None))
        self.assertIn("changed my mind", shown["errors"][-1])

    def test_only_staff_sees_the_queue(self) -> None:
        self.assertEqual(self.client.get("/ops/queue/").status_code, 302)
        self.client.force_login(User.objects.create_user("ada", is_staff=True))
        self.assertContains(self.client.get("/ops/queue/"), "pulse")
