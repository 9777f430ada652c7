"""Ten claimers at one rate: never more starts in any window, and none is lost."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.conftest import Database

JOBS = 400
# The fullest window of half a second, of the lane and of each group.
FULLEST = """
    SELECT max(w.of_lane), max(w.of_group)
    FROM (
        SELECT
            count(*) OVER (
                ORDER BY f.claimed_at
                RANGE BETWEEN CURRENT ROW AND interval '499999 microseconds' FOLLOWING
            ) AS of_lane,
            count(*) OVER (
                PARTITION BY b.group_key ORDER BY f.claimed_at
                RANGE BETWEEN CURRENT ROW AND interval '499999 microseconds' FOLLOWING
            ) AS of_group
        FROM pulse.finished AS f
        INNER JOIN pulse.body AS b ON b.job = f.job
    ) AS w
"""
LANE = "rate => 60, rate_per => '500 ms'"
BOTH = f"{LANE}, group_rate => 20, group_rate_per => '500 ms'"


@pytest.mark.parametrize(
    ("settings", "of_group"),
    [
        pytest.param(LANE, JOBS, id="a lane"),
        pytest.param(BOTH, 20, id="a lane and its groups"),
    ],
)
def test_a_rate_holds_with_ten_claimers(
    db: Database, settings: str, of_group: int
) -> None:
    connection = db.connect()
    connection.execute(f"SELECT pulse.set_lane('api', {settings})".encode())
    connection.execute(
        "SELECT count(pulse.enqueue('k', lane => 'api', group_key => 'g' || n %% 5))"
        " FROM generate_series(1, %s) AS n",
        (JOBS,),
    )
    errors: list[str] = []
    until = time.monotonic() + 60

    def claim(number: int) -> None:
        chance, mine = random.Random(number), db.connect()
        try:
            while time.monotonic() < until:
                mine.execute("BEGIN")
                rows = mine.execute(
                    "SELECT c.lease FROM pulse.claim_batch('w', 'api', %s) AS c",
                    (chance.choice([1, 5, 30]),),
                ).fetchall()
                if chance.random() < 0.2:
                    mine.execute("ROLLBACK")
                    continue
                mine.execute("COMMIT")
                leases = [row[0] for row in rows]
                mine.execute("SELECT pulse.complete_batch(%s)", (leases,))
                if not rows:
                    left = mine.execute(
                        "SELECT count(*) FROM pulse._in_line"
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
    assert connection.execute("SELECT count(*) FROM pulse.finished").fetchone() == (
        JOBS,
    )
    fullest = connection.execute(FULLEST).fetchone()
    assert fullest is not None
    assert fullest[0] <= 60
    assert fullest[1] <= of_group
    assert connection.execute("SELECT count(*) FROM pulse.check()").fetchone() == (0,)
