from django.contrib import admin

from pulse.django.admin import job_link
from shop.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["email", "confirmed_at", job_link("task")]
