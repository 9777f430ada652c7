"""path("ops/queue/", include("pulse.django.urls")): the operator's page, for staff."""

from django.core.exceptions import ImproperlyConfigured
from django.urls import re_path

try:
    from pulse.django import web
except ModuleNotFoundError as error:
    raise ImproperlyConfigured(
        f'the operator\'s page needs pip install "pgpulse[web]": {error}'
    ) from error

app_name = "pulse"
urlpatterns = [re_path(r"^(?P<path>.*)$", web.page, name="page")]
