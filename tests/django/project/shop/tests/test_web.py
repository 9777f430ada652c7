"""The operator's page behind Django's login, and links to it in the admin."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import TransactionTestCase, override_settings
from django.urls import path

import pulse
from pulse.django import web
from shop import tasks
from shop.models import Order

PAGE = "/ops/queue/"
API = f"{PAGE}admin/workers/"


class Web(TransactionTestCase):
    def setUp(self) -> None:
        self.staff = User.objects.create_user("ada", is_staff=True)
        self.guest = User.objects.create_user("eve")

    def test_strangers_are_sent_to_the_login(self) -> None:
        for user in (None, self.guest):
            if user:
                self.client.force_login(user)
            answer = self.client.get(PAGE)
            self.assertRedirects(
                answer, f"/admin/login/?next={PAGE}", fetch_redirect_response=False
            )
            self.assertEqual(self.client.get(f"{API}me").status_code, 401)
            self.assertEqual(self.client.get(f"{API}jobs").status_code, 401)

    def test_staff_sees_and_steers(self) -> None:
        job = pulse.enqueue(connection, "x")
        self.client.force_login(self.staff)
        page = self.client.get(PAGE)
        self.assertContains(page, "<title>")
        self.assertIn("default-src 'none'", page["Content-Security-Policy"])
        self.assertEqual(self.client.get(f"{PAGE}static/app.js").status_code, 200)
        me = self.client.get(f"{API}me").json()
        self.assertEqual((me["user"], me["streams"]), ("ada", False))
        self.assertEqual(self.client.get(f"{API}stream").status_code, 503)
        self.assertEqual(self.client.get(f"{API}jobs/{job}").json()["kind"], "x")
        self.assertEqual(self.client.get(f"{API}nothing").status_code, 404)
        self.assertEqual(self.client.get(f"{API}jobs?stat=x").status_code, 422)

        def cancel(**headers: str) -> Any:
            return self.client.post(
                f"{API}jobs/{job}/cancel",
                json.dumps({"reason": "test"}),
                content_type="application/json",
                headers=headers,
            )

        self.assertEqual(cancel().status_code, 403)
        foreign = {"x-pulse": "1", "sec-fetch-site": "cross-site"}
        self.assertEqual(cancel(**foreign).status_code, 403)
        self.assertEqual(cancel(**{"x-pulse": "1"}).json()["state"], "cancelled")

    def test_a_role_may_be_given(self) -> None:
        self.client.force_login(self.staff)
        with override_settings(PULSE_WEB_ROLE="pg_monitor"):
            me = self.client.get(f"{API}me").json()
        self.assertEqual((me["role"], me["rights"]), ("pg_monitor", []))

    def test_the_session_authenticates_beside_an_asgi_app(self) -> None:
        for user, name in ((self.staff, "ada"), (self.guest, None)):
            self.client.force_login(user)
            found = web.signed_in({k: m.value for k, m in self.client.cookies.items()})
            self.assertEqual(found and found.user, name)
        for cookies in ({}, {"sessionid": "made up"}):
            self.assertIsNone(web.signed_in(cookies))

        class Connection:
            cookies: dict[str, str] = {}

        self.assertIsNone(asyncio.run(web.staff(Connection())))

    def test_the_admin_links_to_it_for_those_who_may_look(self) -> None:
        result = tasks.add.enqueue(1)
        Order.objects.create(email="a@b.c", job_id=result.id)
        Order.objects.create(email="d@e.f")
        self.client.force_login(self.staff)
        self.assertEqual(self.client.get("/admin/pulse/queue/").status_code, 403)
        for name in ("view_queue", "view_order"):
            self.staff.user_permissions.add(Permission.objects.get(codename=name))
        index = self.client.get("/admin/")
        self.assertContains(index, "/admin/pulse/queue/")
        self.assertNotContains(index, "/admin/pulse/queue/add/")
        answer = self.client.get("/admin/pulse/queue/")
        self.assertRedirects(answer, PAGE, fetch_redirect_response=False)
        self.assertEqual(self.client.get("/admin/pulse/queue/add/").status_code, 403)
        none = self.client.get("/admin/pulse/queue/1/change/")
        self.assertRedirects(none, "/admin/", fetch_redirect_response=False)
        orders = self.client.get("/admin/shop/order/")
        link = f'<a href="{PAGE}#/jobs/{result.id}">{result.id}</a>'
        self.assertContains(orders, link)

    @override_settings(ROOT_URLCONF="shop.tests.test_web")
    def test_where_it_is_not_mounted_the_admin_says_so(self) -> None:
        Order.objects.create(email="a@b.c", job_id="7")
        self.client.force_login(User.objects.create_superuser("root"))
        answer = self.client.get("/admin/pulse/queue/")
        self.assertContains(answer, "pulse.django.urls", status_code=404)
        self.assertContains(self.client.get("/admin/shop/order/"), "7")


def urls() -> list[Any]:
    from django.contrib import admin

    return [path("admin/", admin.site.urls)]


urlpatterns = urls()
