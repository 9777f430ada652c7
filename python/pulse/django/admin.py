"""Links from Django's admin to the operator's page; the admin itself changes nothing.

class OrderAdmin(admin.ModelAdmin):
    list_display = ["email", job_link("job_id")]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from pulse.django.models import Queue

NOT_MOUNTED = (
    'The operator\'s page is not mounted: path("ops/queue/", '
    'include("pulse.django.urls")) in the URLs of the project.'
)


def job_url(job_id: object) -> str:
    """Where the operator's page shows a job; raises NoReverseMatch where it is none."""
    return f"{reverse('pulse:page', args=[''])}#/jobs/{job_id}"


def job_link(field: str) -> Callable[[Any], str]:
    """A column that leads from the id of a job, or of a TaskResult, to its page."""

    def link(row: Any) -> str:
        job_id = getattr(row, field)
        if job_id in (None, ""):
            return "-"
        try:
            return str(format_html('<a href="{}">{}</a>', job_url(job_id), job_id))
        except NoReverseMatch:
            return str(job_id)

    link.short_description = "job"  # type: ignore[attr-defined]
    return link


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):
    """An entry of the admin that leads to the operator's page."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return redirect(reverse("pulse:page", args=[""]))
        except NoReverseMatch:
            return HttpResponse(NOT_MOUNTED, status=404, content_type="text/plain")
