"""An import is a flow: fetch, 1,000 parts, merge, notify; cleanup in any case.

    psql -f tables.sql                                  once
    python imports.py work                              workers, as many as you like
    python imports.py import may file:///tmp/may.csv    lines of sku,cents
    pulse flow may                                      how far it is

Only fetch knows how many parts there are, so it spawns them. Who waits for fetch then
waits for the parts as well: merge, and cleanup, which takes any end of them.
"""

import sys
import urllib.request

import psycopg

import pulse
from services import connection, mail

PARTS = 1000

worker = pulse.Worker(concurrency=10)


def start(conn: psycopg.Connection, name: str, url: str, parts: int = PARTS) -> None:
    payload = {"name": name, "url": url, "parts": parts}
    # A worker that dies is an attempt.
    common = {"flow": name, "max_attempts": 20}
    pulse.enqueue_many(
        conn,
        [
            {"kind": "fetch", "name": "fetch", "payload": payload, **common},
            {"kind": "merge", "name": "merge", "after": ["fetch"], **common},
            {"kind": "notify", "name": "notify", "after": ["merge"], **common},
            {
                **{"kind": "cleanup", "name": "cleanup", **common},
                **{"after": ["fetch", "merge", "notify"], "after_failed": "run"},
            },
        ],
    )


@worker.handle("fetch")
def fetch(job: pulse.Job, name: str, url: str, parts: int) -> int:
    made = job.step("stage", stage, job, name, url, parts)
    job.spawn(
        "parts",
        [
            {
                **{"kind": "part", "name": "part", "max_attempts": 20},
                "payload": {"name": name, "part": part},
            }
            for part in range(made)
        ],
    )
    return int(made)


def stage(job: pulse.Job, name: str, url: str, parts: int) -> int:
    """The lines, dealt out to the parts; saved in the transaction that writes them."""
    with urllib.request.urlopen(url) as file:
        lines = [
            f"{number},{line.decode().strip()}" for number, line in enumerate(file)
        ]
    with connection().transaction():
        with (
            connection().cursor() as cursor,
            cursor.copy("COPY shop.staged (import, part, lines) FROM STDIN") as copy,
        ):
            for part in range(parts):
                copy.write_row((name, part, lines[part::parts]))
        connection().execute(
            "SELECT pulse.save_step(%s, 'stage', to_jsonb(%s))", (job.lease, parts)
        )
    return parts


@worker.handle("part")
def part(job: pulse.Job, name: str, part: int) -> dict[str, int]:
    row = connection().execute(
        "SELECT lines FROM shop.staged WHERE import = %s AND part = %s", (name, part)
    )
    [(lines,)] = row.fetchall()
    sales = [sale_of(line) for line in lines]
    with connection().cursor() as cursor:
        cursor.executemany(
            "INSERT INTO shop.sale (import, line, sku, cents) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            [(name, *sale) for sale in sales],
        )
    return {"sales": len(sales), "cents": sum(cents for _, _, cents in sales)}


def sale_of(line: str) -> tuple[int, str, int]:
    number, sku, cents = line.split(",")
    if not cents.isdigit():
        raise pulse.Fatal(f"line {number}: {cents!r} is no amount")
    return int(number), sku, int(cents)


@worker.handle("merge")
def merge(job: pulse.Job) -> dict[str, int]:
    parts = [u.result for u in job.upstream() if u.name == "part"]
    total = {
        "sales": sum(part["sales"] for part in parts),
        "cents": sum(part["cents"] for part in parts),
    }
    connection().execute(
        "INSERT INTO shop.total (import, sales, cents) VALUES (%s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        (job.flow, total["sales"], total["cents"]),
    )
    return total


@worker.handle("notify")
def notify(job: pulse.Job) -> str:
    [merged] = job.upstream()
    subject = f"{job.flow}: {merged.result['sales']} sales"
    return mail(f"{job.id} notify", subject)


@worker.handle("cleanup")
def cleanup(job: pulse.Job) -> dict[str, int]:
    """Nothing of the import runs any more, however it ended."""
    states = [upstream.state for upstream in job.upstream()]
    connection().execute("DELETE FROM shop.staged WHERE import = %s", (job.flow,))
    return {state: states.count(state) for state in sorted(set(states))}


def main(command: str, *arguments: str) -> None:
    if command == "work":
        worker.run()
    elif command == "import":
        with psycopg.connect() as conn:
            start(conn, *arguments)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
