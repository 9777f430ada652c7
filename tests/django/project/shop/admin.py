from django.contrib import admin

from pulse.django.admin import job_link
from shop.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["email", job_link("job_id")]
