"""What is odd in a queue is shown as it is, and hides nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import Connection, Database
from tests.web.browser.chrome import Site, Tab, job, lane
from tests.web.browser.seeds import one

TOKEN = "t" * 32


@pytest.mark.parametrize("moment", ["12000-01-01", "0044-03-15 BC"])
def test_a_moment_that_no_browser_knows_is_shown_as_text(
    tab: Tab, sql: Connection, moment: str
) -> None:
    far = one(sql, "SELECT pulse.enqueue('far', requires_approval => true)")
    # As it may have been stored before such moments were refused.
    sql.execute("UPDATE pulse_internal.approval SET run_at = %s", [moment])
    if not moment.endswith("BC"):
        sql.execute("SELECT pulse.approve(%s)", [far])
    other = one(sql, "SELECT pulse.enqueue('near')")
    page = tab.open("jobs")
    expect(job(page, far)).to_be_visible()
    expect(job(page, other)).to_contain_text("in line")
    tab.open(f"jobs/{far}")
    expect(page.locator(".facts")).to_contain_text(moment.split()[0])
    expect(page.locator(".history li").first).to_contain_text("Enqueued")


def test_a_payload_that_is_nested_too_deep_hides_no_job(
    tab: Tab, sql: Connection
) -> None:
    text = "[" * 260 + "]" * 260
    deep = one(sql, "SELECT pulse.enqueue('deep', %s::jsonb)", text)
    number = one(sql, "SELECT pulse.enqueue('n', '{\"id\": 9007199254740993}')")
    page = tab.open("jobs")
    expect(job(page, deep)).to_be_visible()
    expect(job(page, number)).to_be_visible()
    tab.open(f"jobs/{deep}")
    expect(page.locator(".data pre")).to_contain_text(text)
    tab.open(f"jobs/{number}")
    expect(page.locator(".data pre")).to_contain_text("9007199254740993")


def test_a_misspelt_state_is_refused_and_not_taken_for_all(
    tab: Tab, sql: Connection
) -> None:
    sql.execute("SELECT pulse.enqueue('letter')")
    page = tab.live()
    page.get_by_label("Find jobs").fill("state:ded")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not understood")
    expect(page.locator("tr[data-job]")).to_have_count(0)
    assert all("422" in line for line in tab.complaints), tab.complaints
    tab.complaints.clear()


@pytest.fixture
def still(
    db: Database, sql: Connection, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A viewer comes in by a DSN that may not stream."""
    login, viewer = f"login_{db.name}", f"viewer_{db.name}"
    sql.execute(f"CREATE ROLE {login} LOGIN NOINHERIT".encode())
    sql.execute(f"CREATE ROLE {viewer}".encode())
    sql.execute(f"GRANT {viewer} TO {login}".encode())
    sql.execute("SELECT pulse.grant_access(%s, 'viewer')", [viewer])
    tokens = tmp_path_factory.mktemp("still") / "tokens"
    tokens.write_text(f"{TOKEN} {viewer}\n")
    dsn = db.dsn.replace("user=postgres", f"user={login}")
    site = Site(dsn, "--token-file", str(tokens))
    yield site
    site.kill()
    sql.execute("SELECT pulse.revoke_access(%s, 'viewer')", [viewer])
    sql.execute(f"DROP ROLE {login}, {viewer}".encode())


def test_where_streams_are_refused_the_page_says_why_and_can_be_refreshed(
    browser: Browser, still: Site, sql: Connection
) -> None:
    tab = Tab(browser, still)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    try:
        page = tab.signed_in(TOKEN)
        expect(page.locator("#live")).to_have_text("Not live")
        expect(page.get_by_role("alert")).to_contain_text("pulse.grant_access")
        expect(lane(page, "default")).to_contain_text("idle")
        job_id = one(sql, "SELECT pulse.enqueue('letter')")
        page.get_by_role("button", name="Refresh").click()
        expect(lane(page, "default")).to_contain_text("waiting")
        # A job's page is read every five seconds instead.
        tab.open(f"jobs/{job_id}")
        expect(page.locator(".job-title .pill")).to_have_text("ready")
        sql.execute("SELECT pulse.cancel(%s)", [job_id])
        expect(page.locator(".job-title .pill")).to_have_text("cancelled")
        assert len([url for url in asked if url.endswith("/stream")]) == 1
        # Chromium writes down the one refusal.
        assert [line for line in tab.complaints if "403" not in line] == []
    finally:
        tab.close()
