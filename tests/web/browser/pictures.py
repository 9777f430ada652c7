"""Take the pictures in docs/images: .venv/bin/python -m tests.web.browser.pictures

A worker runs, fails and reports what they show. Only the samples behind the lines of
throughput are written in: nobody waits half an hour for a picture.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from playwright.sync_api import Browser, expect
from psycopg.types.json import Jsonb

import pulse
from tests.conftest import Connection
from tests.python.worker.conftest import Running
from tests.web.browser.chrome import Site, Tab, chromium, wait_for
from tests.web.browser.seeds import ADD_TOTALS, one
from tools import paths, servers

IMAGES = paths.ROOT / "docs/images"
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 1000}

SETTINGS = (
    "SELECT pulse.set_kind('charge-card', lane => 'billing', max_attempts => 3, "
    "backoff => 'none')",
    "SELECT pulse.set_lane('billing', max_slots => 4)",
    "SELECT pulse.set_lane('images', max_slots => 6)",
    "SELECT pulse.set_lane('mail', max_slots => 20)",
    "SELECT pulse.set_lane('reports', max_slots => 2)",
    "SELECT pulse.schedule('morning-digest', 'send-digest', cron => '0 7 * * mon-fri', "
    "timezone => 'Europe/Berlin', lane => 'mail')",
    "SELECT pulse.schedule('clean-carts', 'clean-carts', every => '10 minutes')",
)
# What stood in line and ran, into the totals of each minute.
DEPTH = """
    UPDATE pulse_internal.stat AS s
    SET ready = l.base * extract(EPOCH FROM s.at - now() + interval '1 hour')
        / 90, running = l.base % 7
    FROM (VALUES ('billing', '', 14), ('images', '', 210), ('mail', '', 90),
        ('', '', 315), ('', 'charge-card', 3)) AS l (lane, kind, base)
    WHERE s.total AND s.lane = l.lane AND s.kind = l.kind
"""
# Committed, and locked from then on: upkeep steps over it, and it stays late.
LATE = """
    UPDATE pulse_internal.schedule SET next_at = now() - interval '7 minutes'
    WHERE name = 'clean-carts';
    COMMIT AND CHAIN;
    SELECT FROM pulse_internal.schedule WHERE name = 'clean-carts' FOR UPDATE
"""
# Totals by the minute: the bank has not answered for the last ten of them.
TOTALS = """
    INSERT INTO pulse_internal.stat
    SELECT m.lane, m.kind, m.at, sum(m.jobs) OVER w, sum(m.jobs + m.failed) OVER w,
        sum(m.jobs) OVER w, sum(m.failed) OVER w, sum(m.failed / 3) OVER w,
        sum(m.failed) OVER w, 0, 0, 0,
        ARRAY[0, 0, 0, 0, 6 * sum(m.jobs) OVER w, 0, 3 * sum(m.jobs * m.slow) OVER w, 0,
            sum(m.jobs * m.slow * m.slow) OVER w, 0, 0, 0, 0, 0, 0, 0]::bigint [],
        0, array_fill(0, ARRAY[16])::bigint []
    FROM (
        SELECT l.lane, l.kind, clock_timestamp() - n * interval '1 minute' AS at, n,
            greatest(0, l.base + l.swing * (sin(n / l.slow) + random() / 2))::int
                AS jobs,
            CASE WHEN l.lane = 'billing' AND n < 11 THEN 14 - n ELSE 0 END AS failed,
            (1 + sin(n / 9.0))::int AS slow
        FROM (VALUES ('billing', 'charge-card', 14, 6, 3.0),
            ('images', 'resize', 210, 60, 5.0), ('mail', 'send-mail', 90, 80, 2.5)
        ) AS l (lane, kind, base, swing, slow), generate_series(0, 60) AS n
    ) AS m
    WINDOW w AS (PARTITION BY m.lane, m.kind ORDER BY m.n DESC)
"""
NOTES = {
    "thumbnail": (0.42, "84 of 200 pictures"),
    "export-orders": (0.71, "page 213 of 300"),
    "yearly-report": (0.18, "reading March"),
    "newsletter": (0.93, "18,600 of 20,000 sent"),
}
WAITING = (
    ("resize", "images", 12_400),
    ("send-mail", "mail", 37),
    ("yearly-report", "reports", 3),
)


def handlers(end: threading.Event, bank: threading.Event) -> dict[str, Any]:
    def busy(job: pulse.Job, **_: Any) -> None:
        job.progress(*NOTES[job.kind])
        end.wait()

    def charge_card(job: pulse.Job, card: str, amount: int) -> dict[str, Any]:
        if card == "expired":
            raise pulse.Fatal(f"CardRefused: card of customer {amount} has expired")
        if not bank.is_set():
            raise TimeoutError("the bank did not answer within 30 s")
        return {"receipt": f"R-{amount}"}

    return {**dict.fromkeys(NOTES, busy), "charge-card": charge_card}


def enqueue(sql: Connection, kind: str, payload: dict[str, Any], **more: Any) -> int:
    return pulse.enqueue(sql, kind, payload, **more)


def fill(sql: Connection) -> int:
    """What is there before the worker comes; the id of the job with a history."""
    for statement in SETTINGS:
        sql.execute(statement)
    enqueue(sql, "newsletter", {"issue": 41}, lane="mail")
    for _ in range(2):
        enqueue(sql, "thumbnail", {"album": 7}, lane="images", priority=9)
    enqueue(sql, "export-orders", {"year": 2025}, lane="reports")
    enqueue(sql, "yearly-report", {"year": 2025}, lane="reports")
    for customer in range(4):
        card = {"card": "expired", "amount": 1200 + customer}
        enqueue(sql, "charge-card", card)
    for order in range(3):
        last = enqueue(sql, "charge-card", {"card": "visa", "amount": 4900 + order})
    for kind, lane, how_many in WAITING:
        sql.execute(
            "SELECT pulse.enqueue(%s, lane => %s) FROM generate_series(1, %s)",
            [kind, lane, how_many],
        )
    for order in (8812, 8840):
        refund = Jsonb({"order": order, "amount": 129.0})
        sql.execute(
            "SELECT pulse.enqueue('refund', %s, requires_approval => true)", [refund]
        )
    return last


def shoot(browser: Browser, site: Site, name: str, place: str, **options: Any) -> None:
    tab = Tab(browser, site, device_scale_factor=2, **options)
    page = tab.open(place)
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("main td, .history li").first).to_be_visible()
    if page.locator(".chart").count() > 0:
        expect(page.locator(".chart .top-value").first).not_to_be_empty()
    expect(page.locator("#nav .badge:visible").first).to_be_visible()
    if page.locator(".wrong").count() > 0:
        expect(page.locator(".wrong:visible, .calm:visible")).to_have_count(1)
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")
    assert tab.complaints == [], tab.complaints
    tab.close()
    print(Path("docs/images") / f"{name}.png")


@contextlib.contextmanager
def shop() -> Iterator[tuple[Site, int]]:
    """A served database in the middle of its day, and a job with a history."""
    end, bank_is_back = threading.Event(), threading.Event()
    with servers.temporary() as server:
        dsn = server.dsn(server.create("shop", "extension"))
        sql = psycopg.connect(dsn, autocommit=True)
        job_id = fill(sql)
        lanes = {"billing": 4, "images": 2, "mail": 4, "reports": 2}
        worker = pulse.Worker(dsn, lanes=lanes, name="shop-1")
        for kind, handler in handlers(end, bank_is_back).items():
            worker.handle(kind)(handler)
        running = Running(worker)
        dead = "SELECT count(*) = 7 FROM pulse.dead"
        has_progress = (
            "SELECT count(*) = 5 FROM pulse.running WHERE progress IS NOT NULL"
        )
        wait_for(lambda: one(sql, dead), "dead letters")
        wait_for(lambda: one(sql, has_progress), "progress")
        bank_is_back.set()
        sql.execute("SELECT pulse.retry(%s, 'the bank is back')", [job_id])
        done = "SELECT state = 'completed' FROM pulse.jobs WHERE job_id = %s"
        wait_for(lambda: one(sql, done, job_id), "the job that was retried")
        reason = "bank maintenance until 22:00"
        sql.execute("SELECT pulse.drain_lane('billing', %s, true)", [reason])
        for order in range(3):
            enqueue(sql, "charge-card", {"card": "visa", "amount": 5100 + order})
        # No worker takes this lane.
        enqueue(sql, "import-prices", {"shop": 3}, lane="imports")
        sql.execute(
            "UPDATE pulse_internal.ready SET ready_at = now() - interval '4 minutes' "
            "WHERE lane = 'imports'"
        )
        late = psycopg.connect(dsn)
        late.execute(LATE)
        sql.execute("TRUNCATE pulse_internal.stat, pulse_internal.tally")
        sql.execute(TOTALS)
        sql.execute(ADD_TOTALS)
        sql.execute(DEPTH)
        site = Site(dsn)
        try:
            yield site, job_id
        finally:
            site.kill()
            end.set()
            late.close()
            running.stop()
            sql.close()


@contextlib.contextmanager
def calm() -> Iterator[Site]:
    """The same shop on a quiet day."""
    with servers.temporary() as server:
        dsn = server.dsn(server.create("shop", "extension"))
        with psycopg.connect(dsn, autocommit=True) as sql:
            for statement in SETTINGS:
                sql.execute(statement)
            sql.execute("SELECT pulse.tick()")
            sql.execute("TRUNCATE pulse_internal.stat, pulse_internal.tally")
            sql.execute(TOTALS.replace("n < 11", "n < 0"))
            sql.execute(ADD_TOTALS)
            sql.execute(DEPTH.replace("/ 90", "* 0 + random() * 4"))
            sql.execute("SELECT pulse.hello(%s, '{mail,images}')", ["shop-1"])
        site = Site(dsn)
        try:
            yield site
        finally:
            site.kill()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    desk, phone = {"viewport": DESK}, {"viewport": PHONE}
    with chromium() as browser:
        with calm() as site:
            shoot(browser, site, "overview-calm", "", **desk)
            shoot(
                browser, site, "overview-calm-phone", "", **phone, color_scheme="dark"
            )
        with shop() as (site, job_id):
            shoot(browser, site, "overview-light", "", **desk, color_scheme="light")
            shoot(browser, site, "overview-dark", "", **desk, color_scheme="dark")
            shoot(browser, site, "overview-phone", "", **phone, color_scheme="light")
            shoot(browser, site, "job", f"jobs/{job_id}", **desk)
            shoot(browser, site, "jobs-phone", "jobs", **phone, color_scheme="dark")
            shoot(browser, site, "dead", "dead", **desk)
            shoot(browser, site, "kind", "kinds/charge-card", **desk)
            shoot(browser, site, "kinds-phone", "kinds", **phone, color_scheme="light")
            shoot(browser, site, "health", "health", **desk)


if __name__ == "__main__":
    main()
