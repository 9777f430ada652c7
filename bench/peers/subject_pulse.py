"""pulse: python subject_pulse.py install|fill|work|feed DSN …"""

import itertools
import sys

import psycopg
from meter import PAYLOAD, Meter, feed

import pulse

verb, dsn, *rest = sys.argv[1:]
LANES = [f"lane{n}" for n in range(10)]

if verb == "install":
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE EXTENSION pulse")
elif verb == "fill":
    with psycopg.connect(dsn) as connection:
        for _ in range(0, int(rest[0]), 1000):
            pulse.enqueue_many(connection, "noop", [PAYLOAD] * 1000)
elif verb == "feed":
    # One after the other.
    lanes = itertools.cycle(LANES if rest[1] == "lanes" else ["default"])
    with psycopg.connect(dsn, autocommit=True) as connection:
        feed(
            lambda t: pulse.enqueue(
                connection, "noop", {**PAYLOAD, "t": t}, lane=next(lanes)
            ),
            int(rest[0]),
            0.02,
        )
elif verb == "work":
    meter = Meter()
    slots = int(rest[1])
    if slots > 100:
        # As docs/python.md says for very short jobs.
        with psycopg.connect(dsn) as connection:
            connection.execute("SELECT pulse.set_lane('default', max_batch => 500)")
    if rest[0] == "lanes":
        worker = pulse.Worker(dsn, lanes=dict.fromkeys(LANES, slots))
    else:
        worker = pulse.Worker(dsn, concurrency=slots)
    if rest[0] in ("async", "lanes"):

        @worker.handle("noop")
        async def noop_async(job: pulse.Job, t: float, **rest: object) -> None:
            meter.job(t)

    else:

        @worker.handle("noop")
        def noop(job: pulse.Job, t: float, **rest: object) -> None:
            meter.job(t)

    worker.run()
