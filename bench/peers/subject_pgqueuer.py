"""pgqueuer: python subject_pgqueuer.py install|fill|work|feed DSN …"""

import asyncio
import json
import sys
import time

import asyncpg
from meter import PAYLOAD, Meter
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries

verb, dsn, *rest = sys.argv[1:]


def arguments():
    """The DSN of libpq as asyncpg wants it."""
    words = dict(word.split("=", 1) for word in dsn.split())
    return {
        "host": words["host"],
        "port": int(words["port"]),
        "user": words["user"],
        "database": words["dbname"],
    }


async def main():
    if verb == "work":
        meter = Meter()
        pool = await asyncpg.create_pool(**arguments(), min_size=2, max_size=10)
        pgq = PgQueuer(AsyncpgPoolDriver(pool))

        if rest[0] == "async":

            @pgq.entrypoint("noop")
            async def noop_async(job):
                meter.job(json.loads(job.payload)["t"])

        else:

            @pgq.entrypoint("noop")
            async def noop(job):
                # As its error message recommends for sync code.
                await asyncio.to_thread(meter.job, json.loads(job.payload)["t"])

        await pgq.run(batch_size=int(rest[1]))
        return
    connection = await asyncpg.connect(**arguments())
    queries = Queries(AsyncpgDriver(connection))
    if verb == "install":
        await queries.install()
    elif verb == "fill":
        for _ in range(0, int(rest[0]), 1000):
            payloads = [json.dumps(PAYLOAD).encode()] * 1000
            await queries.enqueue(["noop"] * 1000, payloads, [0] * 1000)
    elif verb == "feed":
        for _ in range(int(rest[0])):
            await asyncio.sleep(0.02)
            payload = json.dumps({**PAYLOAD, "t": time.monotonic()}).encode()
            await queries.enqueue(["noop"], [payload], [0])
    await connection.close()


asyncio.run(main())
