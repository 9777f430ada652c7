"""An order is one job: charge, wait for an approval, ship, remind after a week.

    psql -f tables.sql              once
    python orders.py work           workers, as many as you like
    python orders.py order 7 1999   order 7, of 19.99
    python orders.py approve 7 ann

Each step is done once, whichever worker dies when. While the order waits it holds no
worker and no slot.
"""

import sys

import psycopg

import pulse
from services import connection, mail, pay

worker = pulse.Worker(concurrency=10)


@worker.handle("order")
def order(job: pulse.Job, order_id: int, cents: int) -> str:
    charged = job.step("charge", pay, f"{job.id} charge", order_id, cents)
    try:
        approval = job.wait_for(f"approved {order_id}", timeout="3 days")
    except pulse.TimedOut:
        job.step("refund", pay, f"{job.id} refund", order_id, -charged["cents"])
        return "refunded"
    job.step("ship", ship, job, order_id)
    job.sleep("a week", "7 days")
    subject = f"How was order {order_id}, approved by {approval['by']}?"
    job.step("remind", mail, f"{job.id} remind", subject)
    return "shipped"


def ship(job: pulse.Job, order_id: int) -> None:
    """In this database: the step is saved in the transaction of what it does."""
    with connection().transaction():
        connection().execute(
            "INSERT INTO shop.shipment (order_id) VALUES (%s)", (order_id,)
        )
        connection().execute("SELECT pulse.save_step(%s, 'ship')", (job.lease,))


def take_order(conn: psycopg.Connection, order_id: int, cents: int) -> int:
    """Taken twice, it is one job: the order's number is its key."""
    return pulse.enqueue(
        conn,
        "order",
        {"order_id": order_id, "cents": cents},
        unique_key=f"order {order_id}",
        unique_for="30 days",
        # A worker that dies is an attempt: an order outlives many deploys.
        max_attempts=20,
    )


def approve(conn: psycopg.Connection, order_id: int, by: str) -> int:
    return pulse.signal(conn, f"approved {order_id}", {"by": by})


def main(command: str, *arguments: str) -> None:
    if command == "work":
        worker.run()
        return
    with psycopg.connect() as conn:
        number, last = arguments
        if command == "order":
            print(take_order(conn, int(number), int(last)))
        elif command == "approve":
            print(approve(conn, int(number), last))
        else:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
