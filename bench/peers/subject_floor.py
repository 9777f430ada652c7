"""The least a job can wait: python subject_floor.py install|work|feed DSN …

A bare INSERT with a notification, a session that listens, a bare claim: no queue.
"""

import json
import sys

import psycopg
from meter import PAYLOAD, Meter, feed

verb, dsn, *rest = sys.argv[1:]

INSTALL = "CREATE TABLE floor_job (id bigserial PRIMARY KEY, payload jsonb NOT NULL)"
ENQUEUE = """
WITH added AS (INSERT INTO floor_job (payload) VALUES (%s) RETURNING id)
SELECT pg_notify('floor', '') FROM added"""
CLAIM = """
DELETE FROM floor_job WHERE id = (
    SELECT id FROM floor_job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING payload"""

with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
    if verb == "install":
        connection.execute(INSTALL)
    elif verb == "feed":
        feed(
            lambda t: connection.execute(ENQUEUE, [json.dumps({**PAYLOAD, "t": t})]),
            int(rest[0]),
            0.02,
        )
    elif verb == "work":
        meter = Meter()
        connection.execute("LISTEN floor")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as claiming:
            for _ in connection.notifies():
                while (row := claiming.execute(CLAIM).fetchone()) is not None:
                    meter.job(row[0]["t"])
