import os
import time

from django.db import connection

import pulse
from pulse.django import job_options, schedule
from shop.framework import task
from shop.models import Order


class Refused(Exception):
    pass


@task
def add(a, b=1):
    return a + b


@task(queue_name="mail", priority=7)
def confirm(email):
    order = Order.objects.get(email=email)
    return f"order {order.pk}"


@schedule("monthly", cron="0 7 1 * *", payload={"month": "May"}, max_attempts=2)
@job_options(max_attempts=7, max_runtime="5 minutes", tags=["slow"])
@task(queue_name="mail")
def report(month):
    return f"report of {month}"


@task
async def look_up(email):
    return (await Order.objects.aget(email=email)).pk


@task(takes_context=True)
def context_of(context, retry=False):
    if retry and context.attempt == 1:
        raise Refused("once")
    result = context.task_result
    return {
        "id": result.id,
        "attempt": context.attempt,
        "workers": len(result.worker_ids),
        "errors": [error.exception_class_path for error in result.errors],
        "status": result.status,
    }


@task(backend="once")
def refuse(message="no"):
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Refused(message) from error


@task(backend="once")
def give_up():
    raise pulse.Fatal("not today")


@task(backend="once")
def leave():
    raise SystemExit("bye")


@task(backend="once")
def unstorable():
    return lambda: True


@task(backend="once")
def break_the_transaction(email):
    Order.objects.create(email=email)
    Order.objects.create(email=email)


@task
def later():
    raise pulse.Snooze(60)


@task
def backend_pid():
    """Which connection of Django's the handler has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@task
def end_own_connection():
    """As a failover does: the connection is gone in the middle of a task."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@task
async def end_own_connection_async():
    from asgiref.sync import sync_to_async

    await sync_to_async(end_own_connection.func)()


@task
async def backend_pid_async():
    from asgiref.sync import sync_to_async

    return await sync_to_async(backend_pid.func)()


@task(backend="heavy", queue_name="heavy")
def count_in_a_process():
    return {"orders": Order.objects.count(), "pid": os.getpid()}


@task(backend="heavy", queue_name="heavy")
def end_connection_of_the_process():
    end_own_connection.func()


@task
def wait_for(path):
    """Says that it has begun; runs until there is such a file, whatever it is told."""
    open(f"{path}.begun", "w").close()
    while not os.path.exists(path):
        time.sleep(0.01)
    return path


@task(backend="once")
def interrupt():
    raise KeyboardInterrupt


@pulse.task("plain")
def plain(job: pulse.Job, email: str) -> int:
    return Order.objects.get(email=email).pk


@pulse.task("plain-process", lane="heavy", executor="process")
def plain_process(job: pulse.Job) -> int:
    return Order.objects.count()


@pulse.task("plain-async")
async def plain_async(job: pulse.Job) -> int:
    return await Order.objects.acount()


@pulse.task("hold")
def hold(job: pulse.Job) -> None:
    """Runs until it is told to stop."""
    while job.should_continue():
        time.sleep(0.01)


@schedule("hourly", every="1 hour", payload=[1, 2])
@pulse.task("echo")
def echo(job: pulse.Job) -> object:
    return job.payload
