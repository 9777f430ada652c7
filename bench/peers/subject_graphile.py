"""graphile-worker, but for its worker: python subject_graphile.py fill|feed DSN …"""

import sys

import psycopg
from meter import feed

verb, dsn, *rest = sys.argv[1:]

with psycopg.connect(dsn, autocommit=True) as connection:
    if verb == "fill":
        for _ in range(0, int(rest[0]), 1000):
            connection.execute(
                "SELECT count(*) FROM graphile_worker.add_jobs(array("
                "SELECT ROW('noop', '{\"t\": 0}', NULL, NULL, NULL, NULL, NULL, NULL)"
                "::graphile_worker.job_spec FROM generate_series(1, 1000)))"
            )
    elif verb == "feed":
        payload = "json_build_object('t', %s::float8)"
        query = f"SELECT graphile_worker.add_job('noop', {payload})"
        feed(lambda t: connection.execute(query, (t,)), int(rest[0]), 0.02)
