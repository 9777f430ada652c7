"""procrastinate: python subject_procrastinate.py install|fill|work|feed DSN …"""

import asyncio
import logging
import sys

import procrastinate
from meter import PAYLOAD, Meter, feed

logging.disable(logging.WARNING)
verb, dsn, *rest = sys.argv[1:]
flavour = rest[0] if verb == "work" else "sync"
meter = Meter() if verb == "work" else None

if verb == "work":
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=4, max_size=20)
else:
    connector = procrastinate.SyncPsycopgConnector(conninfo=dsn)
app = procrastinate.App(connector=connector)

if flavour == "async":

    @app.task(name="noop")
    async def noop(t, **rest):
        meter.job(t)

else:

    @app.task(name="noop")
    def noop(t, **rest):
        meter.job(t)


if verb == "install":
    with app.open():
        app.schema_manager.apply_schema()
elif verb == "fill":
    with app.open():
        for _ in range(0, int(rest[0]), 1000):
            noop.batch_defer(*[PAYLOAD] * 1000)
elif verb == "feed":
    with app.open():
        feed(lambda t: noop.defer(**{**PAYLOAD, "t": t}), int(rest[0]), 0.02)
elif verb == "work":

    async def main():
        async with app.open_async():
            await app.run_worker_async(
                concurrency=int(rest[1]), install_signal_handlers=False
            )

    asyncio.run(main())
