"""Searching, a job's history, schedules, keys and phones."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect
from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.web.browser.chrome import PAGES, Served, Tab, job, wait_for
from tests.web.browser.seeds import fail_once, one


def test_older_jobs_come_page_by_page(tab: Tab, sql: Connection) -> None:
    sql.execute(
        "SELECT pulse.enqueue(CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END) "
        "FROM generate_series(1, 240) AS n"
    )
    page = tab.open("jobs?kind=odd")
    rows = page.locator("tr[data-job]")
    expect(rows).to_have_count(50)
    older = page.get_by_role("button", name="Show older ones")
    older.click()
    expect(rows).to_have_count(100)
    older.click()
    expect(rows).to_have_count(120)
    expect(older).to_have_count(0)
    ids = page.eval_on_selector_all(
        "tr[data-job]", "rows => rows.map(row => Number(row.dataset.job))"
    )
    assert ids == sorted(set(ids), reverse=True)
    expect(page.locator("td.kind", has_text="even")).to_have_count(0)


def test_a_job_is_found_by_its_id(tab: Tab, sql: Connection) -> None:
    job_id = one(sql, "SELECT pulse.enqueue('letter')")
    page = tab.live()
    page.get_by_label("Find jobs").fill(f"#{job_id}")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Job {job_id}")
    expect(page.locator(".of")).to_have_text("letter in default")


def test_a_jobs_history_is_in_order_with_why_it_waits(
    tab: Tab, sql: Connection
) -> None:
    job_id = one(sql, "SELECT pulse.enqueue('charge', lane => 'bank')")
    fail_once(sql, "Timeout: no answer", "bank", fatal=False)
    sql.execute("SELECT pulse.tick()")
    fail_once(sql, "CardRefused: stolen", "bank", fatal=True)
    sql.execute("SELECT pulse.retry(%s, 'it was found again')", [job_id])
    sql.execute("SELECT pulse.drain_lane('bank', 'closed on Sundays', true)")
    page = tab.open(f"jobs/{job_id}")
    expect(page.locator(".why")).to_contain_text("closed on Sundays")
    expect(page.locator(".history .what")).to_have_text(
        [
            re.compile("^Enqueued by "),
            re.compile("^Attempt 1 began on worker-1"),
            re.compile("^Attempt 1 failed after"),
            re.compile("^Attempt 2 began on worker-1"),
            re.compile("^Attempt 2 failed after"),
            re.compile("^retry by "),
        ]
    )
    expect(page.locator(".history")).to_contain_text("it was found again")


def test_a_schedule_shows_its_next_and_past_runs(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.schedule('digest', 'mail', every => '1 second')")
    due = "SELECT next_at <= clock_timestamp() FROM pulse.schedules"
    wait_for(lambda: one(sql, due), "the schedule is due")
    fired = "SELECT count(*) FROM pulse.schedule_runs WHERE job_id IS NOT NULL"

    def fires() -> bool:
        sql.execute("SELECT pulse.tick()")
        return bool(one(sql, fired))

    wait_for(fires, "the schedule fires")
    page = tab.open("schedules")
    page.get_by_text("Show", exact=True).click()
    expect(page.locator(".runs a.id").first).to_be_visible()
    page.get_by_role("button", name="pause schedule digest").click()
    expect(page.locator(".pill")).to_have_text("paused")
    assert one(sql, "SELECT paused_at IS NOT NULL FROM pulse.schedules") is True


def test_a_dead_job_is_found_and_retried_by_keyboard_alone(
    tab: Tab, sql: Connection
) -> None:
    job_id = one(sql, "SELECT pulse.enqueue('charge')")
    fail_once(sql, "Timeout", "default", fatal=True)
    page = tab.live()
    focused = page.locator(":focus")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(focused).to_have_id("main")

    page.keyboard.press("/")
    expect(focused).to_have_id("search")
    page.keyboard.type("state:dead kind:charge")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Jobs")
    expect(job(page, job_id)).to_be_visible()
    tab_to(tab, f"a.id[href='#/jobs/{job_id}']")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Job {job_id}")

    tab_to(tab, "button:has-text('Delete')")
    assert page.evaluate(
        "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
    )
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(focused).to_contain_text("Delete")

    page.keyboard.press("Shift+Tab")
    expect(focused).to_have_text("Run again")
    page.keyboard.press("Shift+Tab")
    expect(focused).to_have_text("Retry")
    page.keyboard.press("Space")
    expect(page.locator(".job-title .pill")).to_have_text("ready")
    assert one(sql, "SELECT state FROM pulse.jobs") == "ready"


def tab_to(tab: Tab, selector: str) -> None:
    wanted = tab.page.locator(selector)
    expect(wanted).to_be_visible()
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"no way by Tab to {selector}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_in_both_schemes(
    browser: Browser, site: Served, sql: Connection, scheme: str
) -> None:
    job_id = one(sql, "SELECT pulse.enqueue(%s, %s)", "k" * 80, Jsonb({"x": "y" * 900}))
    fail_once(sql, "E" * 300, "default", fatal=True)
    sql.execute("SELECT pulse.pause(%s, %s)", ["maintenance", "r" * 200])
    sql.execute("SELECT pulse.schedule('digest', 'mail', cron => '*/5 * * * *')")
    phone = {"width": 390, "height": 844}
    tab = Tab(browser, site, viewport=phone, color_scheme=scheme, has_touch=True)
    for place in (*PAGES, f"jobs/{job_id}"):
        page = tab.open(place)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("main td, main .empty, .why li").first).to_be_attached()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= phone["width"], f"{place or 'lanes'} is {wide} px wide"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dark))) < 200) == (scheme == "dark")
    assert tab.complaints == []
    tab.close()
