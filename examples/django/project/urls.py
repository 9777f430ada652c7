from django.contrib import admin
from django.urls import include, path

from shop import views

urlpatterns = [
    path("orders/", views.take_order),
    path("orders/<int:number>/", views.show_order),
    path("admin/", admin.site.urls),
    path("ops/queue/", include("pulse.django.urls")),
]
