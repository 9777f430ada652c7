"""Text of strangers stays text, and a viewer can change nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from psycopg.types.json import Jsonb

import pulse
from tests.conftest import Connection, Database
from tests.web.browser.chrome import PAGES, Site, Tab, lane
from tests.web.browser.seeds import fail_once, one

HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>\'"&amp;'
STATIC = Path(pulse.__file__).parent / "web/static"
SOURCES = sorted(each for each in STATIC.iterdir() if each.suffix != ".svg")
MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
    r"|\bstyle=|\bon\w+=\"|https?:(?!//www\.w3\.org/2000/svg)"
)
VIEWERS_TOKEN, OPERATORS_TOKEN = "v" * 32, "o" * 32


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_no_file_of_the_page_makes_markup_of_text_or_looks_elsewhere(
    source: Path,
) -> None:
    assert re.findall(MARKUP, source.read_text()) == []


def test_text_of_strangers_stays_text(tab: Tab, sql: Connection) -> None:
    job_id = one(
        sql,
        "SELECT pulse.enqueue(%s, %s, lane => %s, tags => ARRAY[%s], group_key => %s)",
        HOSTILE, Jsonb({HOSTILE: HOSTILE}), HOSTILE, HOSTILE, HOSTILE,
    )  # fmt: skip
    fail_once(sql, f"{HOSTILE}\n{HOSTILE}", HOSTILE, fatal=True)
    sql.execute("SELECT pulse.drain_lane(%s, %s, true)", [HOSTILE, HOSTILE])
    sql.execute("SELECT pulse.pause(%s, %s)", [HOSTILE, HOSTILE])
    sql.execute("SELECT pulse.hello(%s, ARRAY[%s], ARRAY[%s])", [HOSTILE] * 3)
    sql.execute("SELECT pulse.schedule(%s, %s, every => '1 hour')", [HOSTILE] * 2)
    sql.execute("SELECT pulse.enqueue(%s, requires_approval => true)", [HOSTILE])
    page = tab.live()
    for place in (*PAGES, f"jobs/{job_id}"):
        tab.open(place)
        # Health need not speak of it.
        if place != "health":
            expect(page.get_by_text("<img src=x").first).to_be_attached()
        assert page.locator("main img, main script").count() == 0
    # Also as what a verb is done to, in a dialog and in a toast.
    tab.open("")
    page.get_by_role("button", name="Resume lane").click()
    expect(page.locator("#toasts")).to_contain_text("<img src=x")
    assert one(sql, "SELECT drained FROM pulse.lanes WHERE name = %s", HOSTILE) is False
    page.get_by_role("button", name="Drain lane").first.click()
    assert page.locator("dialog img, #toasts img").count() == 0
    assert page.evaluate("window.owned") is None


def test_a_stranger_sees_a_login_that_refuses_wrong_tokens(
    browser: Browser, db: Database
) -> None:
    site = Site(db.dsn, env={"PULSE_WEB_TOKEN": OPERATORS_TOKEN})
    tab = Tab(browser, site, color_scheme="dark")
    try:
        page = tab.open()
        expect(page.locator("main h1")).to_have_text("Sign in")
        expect(page.locator("#nav")).to_have_count(0)
        page.get_by_label("Token").fill(VIEWERS_TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("That token is not known here.")
        # Chromium writes each refusal into the console; nothing else may stand there.
        assert all("401" in line for line in tab.complaints), tab.complaints
        tab.signed_in(OPERATORS_TOKEN)
        expect(page.locator("h1")).to_have_text("Overview")
        cookie = tab.context.cookies()[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert tab.complaints == []
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("main h1")).to_have_text("Sign in")
        assert tab.context.cookies() == []
    finally:
        tab.close()
        site.kill()


def test_a_viewer_sees_everything_and_can_change_nothing(
    browser: Browser, db: Database, sql: Connection, tmp_path: Path
) -> None:
    viewer, operator = f"viewer_{db.name}", f"operator_{db.name}"
    for role, access in ((viewer, "viewer"), (operator, "operator")):
        sql.execute(f"CREATE ROLE {role}")
        sql.execute("SELECT pulse.grant_access(%s, %s)", [role, access])
    dead = one(sql, "SELECT pulse.enqueue('charge')")
    fail_once(sql, "Timeout", "default", fatal=True)
    sql.execute("SELECT pulse.enqueue('charge', requires_approval => true)")
    sql.execute("SELECT pulse.enqueue('charge')")
    sql.execute("SELECT pulse.claim_batch('worker-1')")
    sql.execute("SELECT pulse.schedule('digest', 'mail', every => '1 hour')")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{VIEWERS_TOKEN} {viewer}\n{OPERATORS_TOKEN} {operator}\n")
    site = Site(db.dsn, "--token-file", str(tokens))
    places = (*PAGES, f"jobs/{dead}")
    try:
        seen = buttons(Tab(browser, site), OPERATORS_TOKEN, places)
        assert {"Drain…", "Cancel…", "Retry", "Approve", "Pause"} <= seen
        tab = Tab(browser, site)
        # What is left looks, and changes nothing.
        assert buttons(tab, VIEWERS_TOKEN, places, keep=True) <= {"Filter", "Show all"}
        expect(tab.page.locator("#me")).to_contain_text("view only")
        refused = tab.page.evaluate(
            "id => fetch(`admin/workers/jobs/${id}/retry`, {method: 'POST', body: '{}',"
            " headers: {'Content-Type': 'application/json', 'X-Pulse': '1'}})"
            ".then(answer => answer.status)",
            str(dead),
        )
        assert refused == 403
        assert (
            one(sql, "SELECT state FROM pulse.jobs WHERE job_id = %s", dead) == "dead"
        )
        tab.close()
    finally:
        site.kill()
        for role, access in ((viewer, "viewer"), (operator, "operator")):
            sql.execute("SELECT pulse.revoke_access(%s, %s)", [role, access])
            sql.execute(f"DROP ROLE {role}")


def buttons(
    tab: Tab, token: str, places: tuple[str, ...], keep: bool = False
) -> set[str]:
    """What can be pressed on these pages, the search box aside."""
    page = tab.signed_in(token)
    found: set[str] = set()
    for place in places:
        tab.open(place)
        expect(page.locator("main h1")).to_be_visible()
        if place == "":
            expect(lane(page, "default")).to_be_visible()
        elif place.startswith("jobs/"):
            expect(page.locator(".why li")).not_to_have_count(0)
        else:
            expect(page.locator("main td").first).to_be_visible()
        found |= set(page.locator("main button").all_inner_texts())
    assert tab.complaints == []
    if not keep:
        tab.close()
    return found
