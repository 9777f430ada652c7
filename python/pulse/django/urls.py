"""path("ops/queue/", include("pulse.django.urls")): the operator's page, for staff."""

from django.urls import re_path

from pulse.django import web

app_name = "pulse"
urlpatterns = [re_path(r"^(?P<path>.*)$", web.page, name="page")]
