"""What is elsewhere: a payment service and a mail service, each asked with a key.

A worker may die after the service has acted and before the step is saved. The next
attempt asks again with the same key, and the service answers as it did the first time:
real ones have an Idempotency-Key for this.
"""

import threading
from typing import Any

import psycopg

_threads = threading.local()


def connection() -> psycopg.Connection[Any]:
    """One for each thread of the worker; PGHOST, PGDATABASE … lead to the server."""
    kept: psycopg.Connection[Any] | None = getattr(_threads, "connection", None)
    if kept is None or kept.closed:
        kept = _threads.connection = psycopg.connect(autocommit=True)
    return kept


def pay(key: str, order_id: int, cents: int) -> dict[str, Any]:
    """Charge so much; a negative amount is a refund."""
    connection().execute(
        "INSERT INTO shop.payment (key, order_id, cents) VALUES (%s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        (key, order_id, cents),
    )
    return {"payment": key, "cents": cents}


def mail(key: str, subject: str) -> str:
    connection().execute(
        "INSERT INTO shop.mail (key, subject) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        (key, subject),
    )
    return key
