"""The page follows what happens, and says so when it cannot."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import Browser, expect

import pulse
from tests.conftest import Connection, Database
from tests.web.browser.chrome import PATIENCE, Site, Tab, job, lane
from tests.web.browser.conftest import Work
from tests.web.browser.seeds import one


@pytest.mark.parametrize("place", ["", "jobs/{}"])
def test_progress_moves_without_a_reload(
    tab: Tab, sql: Connection, work: Work, place: str
) -> None:
    steps = [threading.Event() for _ in range(2)]

    def train(running: pulse.Job) -> str:
        running.progress(0.2, "epoch 1 of 5")
        steps[0].wait(PATIENCE)
        running.progress(0.7, "epoch 4 of 5")
        steps[1].wait(PATIENCE)
        return "trained"

    job_id = one(sql, "SELECT pulse.enqueue('train')")
    work({"train": train})
    page = tab.open(place.format(job_id))
    line = page.locator(".progress-line:visible")
    expect(line).to_contain_text("epoch 1 of 5")
    expect(line).to_contain_text("20 %")
    page.evaluate("window.sameDocument = true")

    steps[0].set()
    expect(line).to_contain_text("epoch 4 of 5")
    expect(line.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "70")
    steps[1].set()
    if place:
        expect(page.locator(".job-title .pill")).to_have_text("completed")
        expect(page.locator(".history li").last).to_contain_text("Completed")
    else:
        expect(job(page, job_id)).to_have_count(0)
    assert page.evaluate("window.sameDocument") is True


def test_a_lost_server_is_reported_and_found_again(
    browser: Browser, db: Database, sql: Connection
) -> None:
    site = Site(db.dsn)
    tab = Tab(browser, site)
    page = tab.live()
    page.evaluate("window.sameDocument = true")
    site.kill()
    expect(page.locator("#live")).to_contain_text("Disconnected")
    sql.execute("SELECT pulse.enqueue('letter', lane => 'new-lane')")
    site.start()
    expect(page.locator("#live")).to_have_text("Live")
    expect(lane(page, "new-lane")).to_contain_text("waiting")
    assert page.evaluate("window.sameDocument") is True
    # The browser wrote down what could not be loaded meanwhile, and nothing else.
    assert all("ERR_" in line for line in tab.complaints), tab.complaints
    tab.close()
    site.kill()
