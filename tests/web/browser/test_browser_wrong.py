"""The page leads with what is wrong, and says when it cannot know."""

from __future__ import annotations

import psycopg
from playwright.sync_api import Browser, Locator, Page, expect
from psycopg.conninfo import make_conninfo

from tests.conftest import Connection, Database
from tests.web.browser.chrome import PAGES, Site, Tab
from tests.web.browser.seeds import fail_once, kill_jobs, one


def trouble(page: Page, text: str) -> Locator:
    return page.locator(".troubles li", has_text=text)


def badge(page: Page, tab: str) -> Locator:
    return page.locator(f'#nav a[href="#/{tab}"] .badge')


def test_a_calm_queue_says_so(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.tick()")
    page = tab.live()
    expect(page.locator(".calm")).to_contain_text("all is well")
    # The problems that the badge of Health counts are listed here too.
    expect(page.locator(".calm a")).to_contain_text("setup warning")
    expect(page.locator(".wrong")).to_be_hidden()
    expect(badge(page, "dead")).to_be_hidden()


def test_what_is_wrong_comes_first_with_its_jobs_and_verbs(
    tab: Tab, sql: Connection
) -> None:
    sql.execute("SELECT pulse.tick()")
    kill_jobs(sql, "charge", "Timeout after 30 s", 2)
    kill_jobs(sql, "charge", "Timeout after 31 s", 1)
    sql.execute("SELECT pulse.enqueue('forgotten', lane => 'attic')")
    sql.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '3 minutes'"
    )
    sql.execute("SELECT pulse.schedule('nightly', 'sweep', cron => '0 3 * * *')")
    sql.execute(
        "UPDATE pulse_internal.schedule SET next_at = now() - interval '1 hour'"
    )
    sql.execute("SELECT pulse.enqueue('refund', requires_approval => true)")
    page = tab.live()

    expect(badge(page, "dead")).to_have_text("3")
    expect(badge(page, "approvals")).to_have_text("1")
    expect(badge(page, "schedules")).to_have_text("1")
    expect(
        trouble(page, "No live worker takes forgotten in lane attic")
    ).to_be_visible()
    late = trouble(page, "Schedule nightly is late")
    late.get_by_role("button", name="Run schedule nightly now").click()
    expect(page.locator("#toasts")).to_contain_text("Schedule nightly enqueued job")
    assert one(sql, "SELECT count(*) FROM pulse.jobs WHERE kind = 'sweep'") == 1
    # Three errors that differ in a number are one.
    dead = trouble(page, "3 dead letters of charge")
    expect(dead).to_contain_text("Timeout after 31 s")

    dead.get_by_role("link", name="3 dead letters").click()
    expect(page.locator("h1")).to_have_text("Dead letters")
    expect(page.locator("tr[data-job]")).to_have_count(3)
    expect(page.locator(".understood")).to_contain_text("kind is charge")
    tab.open("")
    dead.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry 3 jobs").click()
    expect(dead).to_have_count(0)
    expect(badge(page, "dead")).to_be_hidden()
    assert one(sql, "SELECT count(*) FROM pulse.dead") == 0


def test_a_drained_lane_in_which_jobs_wait_is_named(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.enqueue('letter', lane => 'mail')")
    sql.execute("SELECT pulse.enqueue('letter', lane => 'mail')")
    sql.execute("SELECT pulse.drain_lane('mail', 'new printer')")
    sql.execute("SELECT pulse.drain_lane('attic', new => true)")
    page = tab.live()
    hold = page.locator(".hold")
    expect(hold).to_have_count(1)
    expect(hold).to_contain_text("Lane mail is drained, 2 jobs wait: new printer")
    hold.get_by_role("button", name="Resume mail").click()
    expect(hold).to_have_count(0)
    assert one(sql, "SELECT lane FROM pulse.pause_status()") == "attic"
    # One that was forgotten is wrong.
    sql.execute("SELECT pulse.tick()")
    sql.execute("SELECT pulse.drain_lane('mail')")
    sql.execute("UPDATE pulse_internal.ready SET ready_at = now() - interval '2 hours'")
    forgotten = trouble(page, "Jobs have waited for over an hour in lane mail")
    forgotten.get_by_role("link", name="Its jobs").click()
    expect(page.locator("tr[data-job]")).to_have_count(2)


def test_of_a_thousand_lanes_no_trouble_hides_another(
    tab: Tab, sql: Connection
) -> None:
    sql.execute(
        "SELECT pulse.enqueue('k', lane => 'lane-' || n) "
        "FROM generate_series(1, 1000) AS n"
    )
    sql.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '10 minutes'"
    )
    sql.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '1 hour' "
        "WHERE lane = 'lane-707'"
    )
    page = tab.live()
    expect(trouble(page, "has ready jobs, and nothing was claimed")).to_have_count(3)
    expect(trouble(page, "and 997 more like it")).to_have_count(2)
    tones = page.locator(".troubles li")
    assert [li.get_attribute("data-tone") for li in tones.all()] == [
        *["fail"] * 6,
        *["warn"] * 4,
    ]
    rows = page.locator("tr[data-lane]")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("lane-707")
    page.get_by_label("Find lanes").fill("LANE-99")
    expect(rows).to_have_count(11)
    page.get_by_label("Find lanes").fill("")
    page.get_by_role("button", name="Show all").click()
    expect(rows).to_have_count(1001)


def test_a_kind_that_fails_now_is_named(tab: Tab, sql: Connection) -> None:
    for _ in range(3):
        sql.execute("SELECT pulse.enqueue('flaky', max_attempts => 9)")
        fail_once(sql, "no answer", "default", fatal=False)
    sql.execute("SELECT pulse.tick()")
    page = tab.live()
    failing = trouble(page, "flaky fails: 3 attempts of 3 in 15 minutes")
    expect(failing).to_be_visible()
    failing.get_by_role("link", name="flaky").click()
    expect(page.locator("h1")).to_have_text("flaky")


def test_health_leads_to_the_jobs_instead_of_advising_sql(
    tab: Tab, sql: Connection
) -> None:
    sql.execute("SELECT pulse.enqueue('forgotten', lane => 'attic')")
    sql.execute(
        "UPDATE pulse_internal.ready SET ready_at = now() - interval '10 minutes'"
    )
    page = tab.open("health")
    expect(page.locator("tbody .pill").first).to_have_text("fail")
    expect(page.locator("tbody .pill").last).to_have_text("ok")
    check = page.locator("tr", has_text="unhandled kinds")
    expect(check.locator(".pill")).to_have_text("warn")
    check.get_by_role("link", name="forgotten in attic").click()
    expect(page.locator("tr[data-job]")).to_have_count(1)
    expect(page.locator(".understood")).to_contain_text("lane is attic")
    tab.open("health")
    for name in ("last tick", "unhandled kinds", "stuck lanes", "oldest ready job"):
        expect(page.locator("tr", has_text=name)).not_to_contain_text("pulse.")


def test_every_view_says_when_the_database_does_not_answer(
    browser: Browser, db: Database
) -> None:
    site = Site(db.dsn)
    tab = Tab(browser, site)
    elsewhere = make_conninfo(db.dsn, dbname="postgres")
    try:
        page = tab.live()
        banner = page.locator("#banner")
        expect(banner).to_be_hidden()
        with psycopg.connect(elsewhere, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {db.name} ALLOW_CONNECTIONS false".encode())
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s",
                [db.name],
            )
            expect(banner).to_contain_text("What you see is from before")
            for place in (*PAGES[1:], "jobs/1", "kinds/mail"):
                tab.open(place)
                expect(banner).to_be_visible()
                assert page.locator("main h1").count() == 1
            admin.execute(f"ALTER DATABASE {db.name} ALLOW_CONNECTIONS true".encode())
        expect(banner).to_be_hidden()
    finally:
        tab.close()
        site.kill()


def test_a_worker_that_stopped_is_no_lost_one(tab: Tab, sql: Connection) -> None:
    sql.execute(
        "SELECT pulse.enqueue('mail', lane => l) FROM unnest('{a,b}'::text[]) l"
    )
    sql.execute("SELECT pulse.hello(w) FROM unnest('{live,stopped,lost}'::text[]) w")
    sql.execute("SELECT pulse.claim_batch('lost', 'a')")
    sql.execute(
        "UPDATE pulse_internal.worker SET seen_at = now() - interval '1 hour' "
        "WHERE worker <> 'live'"
    )
    sql.execute(
        "UPDATE pulse_internal.lease SET claimed_at = now() - interval '2 hours', "
        "lease_until = now() - interval '1 hour'"
    )
    page = tab.open("workers")
    for name in ("live", "stopped", "lost"):
        row = page.locator("tr", has=page.get_by_role("link", name=name, exact=True))
        expect(row.locator(".pill")).to_have_text(name)
