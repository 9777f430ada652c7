"""graphile-worker, but for its worker: python subject_graphile.py fill|feed DSN …"""

import json
import sys

import psycopg
from meter import PAYLOAD, feed

verb, dsn, *rest = sys.argv[1:]

with psycopg.connect(dsn, autocommit=True) as connection:
    if verb == "fill":
        for _ in range(0, int(rest[0]), 1000):
            connection.execute(
                "SELECT count(*) FROM graphile_worker.add_jobs(array("
                "SELECT ROW('noop', %s::json, NULL, NULL, NULL, NULL, NULL, NULL)"
                "::graphile_worker.job_spec FROM generate_series(1, 1000)))",
                [json.dumps(PAYLOAD)],
            )
    elif verb == "feed":
        query = "SELECT graphile_worker.add_job('noop', %s::json)"
        feed(
            lambda t: connection.execute(query, [json.dumps({**PAYLOAD, "t": t})]),
            int(rest[0]),
            0.02,
        )
