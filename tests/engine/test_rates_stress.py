"""Ten claimers at one rate: never more starts in any window, and none is lost."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.conftest import Database

JOBS = 400
# The fullest window of half a second, of all jobs and of each group.
FULLEST = """
    SELECT max(w.of_all), max(w.of_group)
    FROM (
        SELECT
            count(*) OVER (
                ORDER BY f.claimed_at
                RANGE BETWEEN CURRENT ROW AND interval '499999 microseconds' FOLLOWING
            ) AS of_all,
            count(*) OVER (
                PARTITION BY b.group_key ORDER BY f.claimed_at
                RANGE BETWEEN CURRENT ROW AND interval '499999 microseconds' FOLLOWING
            ) AS of_group
        FROM pulse_internal.finished AS f
        INNER JOIN pulse_internal.body AS b ON b.job = f.job
    ) AS w
"""
LANE = "set_lane('api', rate => 60, rate_per => '500 ms')"
GROUPS = "set_lane('api', group_rate => 20, group_rate_per => '500 ms')"
KIND = "set_kind('k', rate => 60, rate_per => '500 ms')"
FAIR = "set_lane('tenants', fair => true)"


@pytest.mark.parametrize(
    ("settings", "lanes", "of_group"),
    [
        pytest.param([LANE], ["api"], JOBS, id="a lane"),
        pytest.param([LANE, GROUPS], ["api"], 20, id="a lane and its groups"),
        pytest.param([KIND, FAIR], ["api", "tenants"], JOBS, id="a kind in two lanes"),
    ],
)
def test_a_rate_holds_with_ten_claimers(
    db: Database, settings: list[str], lanes: list[str], of_group: int
) -> None:
    connection = db.connect()
    for call in settings:
        connection.execute(f"SELECT pulse.{call}".encode())
    connection.execute(
        "SELECT count(pulse.enqueue('k', lane => l.lane, group_key => 'g' || n %% 5))"
        " FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS l (lane)",
        (JOBS // len(lanes), lanes),
    )
    errors: list[str] = []
    until = time.monotonic() + 60

    def claim(number: int) -> None:
        chance, mine = random.Random(number), db.connect()
        try:
            while time.monotonic() < until:
                mine.execute("BEGIN")
                rows = mine.execute(
                    "SELECT c.lease FROM pulse.claim_batch('w', %s, %s) AS c",
                    (chance.choice(lanes), chance.choice([1, 5, 30])),
                ).fetchall()
                if chance.random() < 0.2:
                    mine.execute("ROLLBACK")
                    continue
                mine.execute("COMMIT")
                leases = [row[0] for row in rows]
                mine.execute("SELECT pulse.complete_batch(%s)", (leases,))
                if not rows:
                    left = mine.execute(
                        "SELECT count(*) FROM pulse_internal.in_line"
                    ).fetchone()
                    if left == (0,):
                        return
                    time.sleep(0.005)
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert connection.execute(
        "SELECT count(*) FROM pulse_internal.finished"
    ).fetchone() == (JOBS,)
    fullest = connection.execute(FULLEST).fetchone()
    assert fullest is not None
    assert fullest[0] <= 60
    assert fullest[1] <= of_group
    assert connection.execute("SELECT count(*) FROM pulse.check()").fetchone() == (0,)
