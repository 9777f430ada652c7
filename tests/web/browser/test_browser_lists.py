"""Searching, selecting, dead letters, kinds, schedules, charts: what lists can do."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Browser, expect
from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.web.browser.chrome import Served, Tab, job
from tests.web.browser.seeds import ADD_TOTALS, fail_once, kill_jobs, one, state_of


def test_selected_jobs_are_acted_on_together(tab: Tab, sql: Connection) -> None:
    jobs = [one(sql, "SELECT pulse.enqueue('letter')") for _ in range(4)]
    page = tab.open("jobs")
    bar = page.get_by_role("region", name="Selected jobs")
    expect(job(page, jobs[0])).to_be_visible()
    expect(bar).to_be_hidden()
    page.get_by_label(f"Select job {jobs[0]}").check()
    # With Shift the rows between are taken along: newest first, so three of them.
    page.get_by_label(f"Select job {jobs[2]}").click(modifiers=["Shift"])
    expect(bar).to_contain_text("3 jobs selected")
    page.get_by_label(f"Select job {jobs[1]}").uncheck()
    bar.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Would cancel 2 jobs")
    dialog.get_by_role("button", name="Cancel 2 jobs").click()
    expect(page.locator("#toasts")).to_contain_text("Cancelled 2 jobs")
    expect(bar).to_be_hidden()
    states = [state_of(sql, each) for each in jobs]
    assert states == ["cancelled", "ready", "cancelled", "ready"]

    page.get_by_label("Select all on this page").check()
    expect(bar).to_contain_text("4 jobs selected")
    page.get_by_role("button", name="Clear selection").click()
    expect(bar).to_be_hidden()


def test_the_search_says_what_it_understood(tab: Tab, sql: Connection) -> None:
    wanted = one(
        sql, "SELECT pulse.enqueue('mail', %s, tags => '{vip}')",
        Jsonb({"order": {"id": 7}, "to": "Ada"}),
    )  # fmt: skip
    sql.execute("SELECT pulse.enqueue('mail', '{\"order\": {\"id\": 8}}')")
    page = tab.live()
    search, hint = page.get_by_label("Find jobs"), page.locator("#search-said")
    search.focus()
    expect(hint).to_contain_text("A job id, or words")
    search.fill("mail tag:vip state:ready,dead")
    expect(hint).to_have_text(
        "Finds jobs whose kind is mail and tag is vip and state is ready or dead."
    )
    search.fill("mail knid:x")
    expect(hint).to_contain_text("Not understood: knid:x")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Overview")

    rows = page.locator("tr[data-job]")
    for text in (
        "payload.order.id:7",
        '{"order": {"id": 7}}',
        "payload:ada",
        "tag:vip",
    ):
        search.fill(text)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Jobs")
        expect(rows).to_have_count(1)
        expect(job(page, wanted)).to_be_visible()
    page.get_by_role("button", name="Leave out: tag is vip").click()
    expect(rows).to_have_count(2)


def test_chips_count_the_jobs_of_each_state(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.enqueue('mail') FROM generate_series(1, 3)")
    kill_jobs(sql, "charge", "no", 1)
    page = tab.open("jobs")
    for state, count in (("ready", "3"), ("dead", "1"), ("running", "")):
        chip = page.locator(f'.chip[data-state="{state}"] .count')
        expect(chip).to_have_text(count)


def test_dead_letters_stand_by_time_of_death_and_in_groups(
    tab: Tab, sql: Connection
) -> None:
    first = one(sql, "SELECT pulse.enqueue('charge', lane => 'a')")
    last = one(sql, "SELECT pulse.enqueue('charge', lane => 'b')")
    fail_once(sql, "Timeout: the Bank is silent", "b", fatal=True)
    fail_once(sql, "CardRefused: stolen", "a", fatal=True)
    page = tab.open("dead")
    rows = page.locator("tr[data-job]")
    expect(rows).to_have_count(2)
    # The older job died last.
    expect(rows.first).to_have_attribute("data-job", str(first))
    groups = page.locator("tr[data-kind]")
    expect(groups).to_have_count(2)

    page.get_by_label("Error contains").fill("the bank")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(rows).to_have_count(1)
    expect(job(page, last)).to_be_visible()
    expect(groups).to_have_count(1)
    groups.first.get_by_role("button", name="Discard").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard 1 job").click()
    expect(rows).to_have_count(0)
    assert state_of(sql, last) is None
    assert state_of(sql, first) == "dead"


def test_a_kind_has_a_page_of_its_own(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.set_kind('a/b', max_attempts => 7)")
    sql.execute("SELECT pulse.enqueue('a/b') FROM generate_series(1, 2)")
    kill_jobs(sql, "a/b", "no", 1)
    page = tab.open("kinds")
    row = page.locator("tr", has_text="a/b")
    expect(row.locator(".pill")).to_have_text("no worker")
    expect(row.locator('[data-label="Ready"]')).to_have_text("2")
    expect(row.locator('[data-label="Ready in"]')).to_have_text("default")
    row.get_by_role("link", name="a/b").click()
    expect(page.locator("h1")).to_have_text("a/b")
    ready = page.locator(".figures > div", has_text="Ready")
    expect(ready).to_contain_text("2oldest")
    expect(ready).to_contain_text("in default")
    expect(page.locator("tr[data-job]")).to_have_count(3)
    expect(page.locator("tr[data-kind]")).to_have_count(1)
    expect(page.locator(".facts")).to_contain_text("7")
    expect(page.locator(".chart")).to_have_count(4)
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Attempts").fill("5")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("#toasts")).to_contain_text("Kind a/b has its new settings")
    assert one(sql, "SELECT settings FROM pulse.kinds") == {"max_attempts": 5}


def test_a_schedule_is_made_run_changed_and_removed(tab: Tab, sql: Connection) -> None:
    page = tab.open("schedules")
    page.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nightly")
    dialog.get_by_label("Kind").fill("sweep")
    dialog.get_by_label("Cron").fill("0 33 * * *")
    dialog.get_by_label("Payload").fill('{"deep": true}')
    dialog.get_by_role("button", name="Create").click()
    # What was typed survives what the database refuses.
    expect(dialog.get_by_role("alert")).to_contain_text("PU007")
    dialog.get_by_label("Cron").fill("0 3 * * *")
    dialog.get_by_role("button", name="Create").click()
    row = page.locator("tr", has_text="nightly")
    expect(row).to_contain_text("0 3 * * *")
    assert one(sql, "SELECT payload FROM pulse.schedules") == {"deep": True}

    page.get_by_role("button", name="Run schedule nightly now").click()
    expect(page.locator("#toasts")).to_contain_text("Schedule nightly enqueued job")
    assert one(sql, "SELECT kind FROM pulse.jobs") == "sweep"

    page.get_by_role("button", name="Edit schedule nightly").click()
    expect(dialog.get_by_label("Cron")).to_have_value("0 3 * * *")
    dialog.get_by_label("Cron").fill("")
    dialog.get_by_label("Every").fill("15 min")
    dialog.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("every 15 min")
    assert one(sql, "SELECT every FROM pulse.schedules") == timedelta(minutes=15)
    assert one(sql, "SELECT payload FROM pulse.schedules") == {"deep": True}

    page.get_by_role("button", name="Remove schedule nightly").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    assert one(sql, "SELECT count(*) FROM pulse.schedules") == 0
    # Chromium writes down the one refusal.
    assert all("422" in line for line in tab.complaints), tab.complaints
    tab.complaints.clear()


TOTALS = """
    INSERT INTO pulse_internal.stat
    SELECT 'mail', 'letter', date_trunc('minute', now()) - n * interval '1 minute',
        10 * (60 - n), 10 * (60 - n), 10 * (60 - n), 60 - n, 0, 0, 0, 0, 0,
        array_fill(0, ARRAY[3])::bigint [] || (10 * (60 - n))::bigint
        || array_fill(0, ARRAY[12])::bigint [], 0, array_fill(0, ARRAY[16])::bigint []
    FROM generate_series(2, 60) AS n
"""


def test_charts_show_what_happened_by_time(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.set_lane('mail', max_slots => 2)")
    sql.execute(TOTALS)
    sql.execute(ADD_TOTALS)
    page = tab.live()
    charts = page.locator(".chart")
    expect(charts).to_have_count(4)
    plot = page.locator('[data-chart="Throughput"] .plot')
    expect(plot).to_have_attribute("aria-label", re.compile("highest 10 a minute"))
    plot.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    legend = page.locator('[data-chart="Throughput"] .legend')
    expect(legend).to_contain_text("completed 10")
    failures = page.locator('[data-chart="Failures"]')
    expect(failures.locator(".top-value")).to_have_text("1")
    waits = page.locator('[data-chart="Wait until start"]')
    expect(waits.locator(".top-value")).to_have_text("100 ms")

    page.get_by_role("link", name="24 h").click()
    expect(page.get_by_role("link", name="24 h")).to_have_attribute(
        "aria-current", "true"
    )
    page.get_by_label("Of one of the lanes").select_option("default")
    expect(plot).to_have_attribute("aria-label", re.compile("highest 0 a minute"))


def test_on_a_phone_a_job_is_two_lines(
    browser: Browser, site: Served, sql: Connection
) -> None:
    kill_jobs(sql, "charge-card", "Timeout: the bank did not answer " * 9, 1)
    sql.execute("SELECT pulse.enqueue('letter', requires_approval => true)")
    tab = Tab(browser, site, viewport={"width": 390, "height": 800})
    page = tab.open("jobs")
    rows = page.locator("tr[data-job]")
    expect(rows).to_have_count(2)
    for i in range(2):
        box = rows.nth(i).bounding_box()
        assert box is not None
        assert box["height"] < 70
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390
    tab.close()


@pytest.mark.parametrize("verb", ["Run now", "Reschedule"])
def test_a_job_that_waits_is_given_another_time(
    tab: Tab, sql: Connection, verb: str
) -> None:
    job_id = one(sql, "SELECT pulse.enqueue('letter', delay => '1 hour')")
    page = tab.open(f"jobs/{job_id}")
    page.get_by_role("button", name=verb).click()
    state = page.locator(".job-title .pill")
    if verb == "Run now":
        expect(state).to_have_text("ready")
        return
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("At").fill("2035-01-01T12:00")
    dialog.get_by_role("button", name="Reschedule").click()
    expect(page.locator(".history")).to_contain_text("reschedule")
    assert one(sql, "SELECT extract(year FROM run_at) FROM pulse.jobs") == 2035


def test_a_job_that_ended_runs_again_as_another(tab: Tab, sql: Connection) -> None:
    kill_jobs(sql, "charge", "no", 1)
    old = one(sql, "SELECT job_id FROM pulse.dead")
    page = tab.open(f"jobs/{old}")
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#toasts")).to_contain_text(f"Job {old} runs again as job")
    assert one(sql, "SELECT rerun_of FROM pulse.jobs WHERE state = 'ready'") == old


def test_jobs_that_a_filter_finds_are_given_another_time(
    tab: Tab, sql: Connection
) -> None:
    sql.execute(
        "SELECT pulse.enqueue('letter', delay => '1 hour') FROM generate_series(1, 3)"
    )
    page = tab.open("jobs?state=scheduled")
    page.get_by_role("button", name="Reschedule all matching").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Run at").fill("2035-01-01T12:00")
    dialog.get_by_role("button", name="Count the jobs").click()
    dialog.get_by_role("button", name="Reschedule 3 jobs").click()
    expect(page.locator("#toasts")).to_contain_text("Rescheduled 3 jobs")
    late = "SELECT count(*) FROM pulse.jobs WHERE extract(year FROM run_at) = 2035"
    assert one(sql, late) == 3


def test_jobs_that_ended_run_again_by_filter(tab: Tab, sql: Connection) -> None:
    kill_jobs(sql, "charge", "no", 2)
    page = tab.open("jobs?state=dead")
    page.get_by_role("button", name="Run again all matching").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again 2 jobs").click()
    expect(page.locator("#toasts")).to_contain_text("Enqueued again 2 jobs")
    assert one(sql, "SELECT count(*) FROM pulse.jobs WHERE rerun_of IS NOT NULL") == 2
