"""Two pages: one takes an order, one shows what became of it."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import confirm


@csrf_exempt
@require_POST
def take_order(request: HttpRequest) -> JsonResponse:
    seconds = float(request.POST.get("seconds", 0))
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"])
        # Committed with the order, or not at all.
        order.task = confirm.enqueue(order.pk, seconds).id
        order.save(update_fields=["task"])
    return JsonResponse({"order": order.pk, "task": order.task}, status=201)


def show_order(request: HttpRequest, number: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=number)
    result = confirm.get_result(order.task)
    return JsonResponse(
        {
            "order": order.pk,
            "status": result.status,
            "attempts": result.attempts,
            # Of a task that failed it would raise.
            "result": result.return_value if result.status == "SUCCESSFUL" else None,
            "errors": [error.traceback for error in result.errors],
        }
    )
