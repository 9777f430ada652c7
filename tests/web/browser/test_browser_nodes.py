"""The page of several databases."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Browser, expect

from tests.conftest import Database
from tests.web.browser.chrome import Site, Tab


def test_nodes_lanes_and_the_way_to_a_job(
    browser: Browser, new_db: Callable[..., Database]
) -> None:
    two = [new_db(), new_db()]
    for number, database in enumerate(two, 1):
        database.psql("-c", f"SELECT pulse.set_node({number})")
        database.psql("-c", "SELECT pulse.enqueue('k')")
    two[1].psql("-c", "SELECT lease FROM pulse.claim_batch('w')")
    away = "host=127.0.0.1 port=1 dbname=app"
    named = [word for dsn in (two[0].dsn, two[1].dsn, away) for word in ("--dsn", dsn)]
    site = Site("", *named)
    tab = Tab(browser, site)
    try:
        page = tab.open()
        expect(page.locator('tr[data-node="1"][data-place]')).to_contain_text("answers")
        silent = page.locator('tr[data-place="127.0.0.1:1/app"]')
        expect(silent).to_contain_text("does not answer")
        expect(page.get_by_role("alert")).to_contain_text("Database 127.0.0.1:1/app: ")
        everything = page.locator('tr[data-lane="default"][data-node="all"] td')
        expect(everything.nth(2)).to_have_text("1")
        expect(everything.nth(4)).to_have_text("1")
        expect(page.locator("#sum")).to_contain_text("1 running, 1 ready")
        two[0].psql("-c", "SELECT pulse.enqueue('k')")
        expect(everything.nth(4)).to_have_text("2")
        page.get_by_label("Open a job").fill(str((2 << 43) + 1))
        page.get_by_label("Open a job").press("Enter")
        expect(page.locator("h1")).to_contain_text(str((2 << 43) + 1))
        expect(page.locator("#all-nodes")).to_have_text("node 2 of all")
        page.locator("#all-nodes").click()
        expect(page.locator('tr[data-node="2"][data-place]')).to_be_visible()
        assert tab.complaints == []
    finally:
        tab.close()
        site.kill()
