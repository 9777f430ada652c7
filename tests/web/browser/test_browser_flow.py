"""A flow on the page: a graph with live states, each node a link, bounded."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import Connection
from tests.web.browser.chrome import Served, Tab

HOSTILE = "<img src=x onerror=alert(1)>"


def enqueue(sql: Connection, flow: str, jobs: list[dict[str, Any]]) -> list[int]:
    listed = [{"kind": job["name"], "flow": flow, **job} for job in jobs]
    rows = sql.execute("SELECT pulse.enqueue_many(%s::jsonb)", [json.dumps(listed)])
    return [row[0] for row in rows]


def an_import(sql: Connection, parts: int = 3) -> list[int]:
    return enqueue(
        sql,
        "import 7",
        [
            {"name": "fetch"},
            *({"name": "part", "after": ["fetch"]} for _ in range(parts)),
            {"name": "merge", "after": ["part"]},
            {"name": "notify", "after": ["merge"]},
            {"name": "tidy", "after": ["fetch", "notify"], "after_failed": "run"},
        ],
    )


def node(page: Page, name: str) -> Locator:
    return page.locator(f'.graph .node[data-key="{name}"]')


def work(sql: Connection, jobs: int, verb: str = "complete") -> None:
    sql.execute(
        f"SELECT pulse.{verb}(c.lease) FROM pulse.claim_batch('w', 'default', %s) AS c",
        [jobs],
    )


def boxes(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('.graph .node')].map("
        "(node) => [node.dataset.key, node.getBoundingClientRect().toJSON()]))"
    )
    return found


def test_the_graph_shows_states_live_and_leads_to_the_jobs(
    tab: Tab, sql: Connection
) -> None:
    ids = an_import(sql)
    page = tab.open("flows/import%207")
    expect(page.locator("h1")).to_have_text("import 7")
    expect(page.locator(".graph .node")).to_have_count(5)
    expect(page.locator(".graph .edge")).to_have_count(5)
    expect(node(page, "fetch")).to_have_attribute("data-state", "ready")
    expect(node(page, "part")).to_have_attribute(
        "aria-label", "part: 3 jobs, 3 blocked, waits for fetch"
    )
    place = boxes(page)
    for before, after in (("fetch", "part"), ("part", "merge"), ("notify", "tidy")):
        assert place[before]["right"] < place[after]["left"]

    work(sql, 1)
    expect(node(page, "fetch")).to_have_attribute("data-state", "completed")
    expect(node(page, "part")).to_contain_text("3 ready")
    work(sql, 1, "fail")
    expect(node(page, "part").locator(".part")).to_have_count(2)
    expect(page.locator("tbody tr").nth(1)).to_contain_text("1 retrying")

    # The keyboard walks the graph, and what is read again does not take the focus.
    node(page, "fetch").focus()
    for key, name in (
        *(("ArrowRight", "part"), ("ArrowRight", "merge")),
        *(("ArrowLeft", "part"), ("ArrowRight", "merge")),
    ):
        page.keyboard.press(key)
        expect(node(page, name)).to_be_focused()
    work(sql, 1)
    expect(node(page, "part")).to_contain_text("1 completed")
    expect(node(page, "merge")).to_be_focused()

    # One job is that job, several are a search for them.
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Job {ids[4]}")
    page.get_by_role("link", name="import 7").click()
    node(page, "part").click()
    expect(page.locator("h1")).to_have_text("Jobs")
    expect(page.locator("tr[data-job]")).to_have_count(3)


def test_a_large_flow_is_grouped(tab: Tab, sql: Connection) -> None:
    jobs: list[dict[str, Any]] = [{"name": "fetch"}]
    jobs += [
        {"name": f"part {n}", "kind": "part", "after": ["fetch"]} for n in range(600)
    ]
    jobs += [{"name": "merge", "after": [f"part {n}" for n in range(600)]}]
    enqueue(sql, "large", jobs)
    page = tab.open("flows/large")
    expect(page.locator(".graph .node")).to_have_count(3)
    expect(page.locator(".graph-note")).to_contain_text("602 names are drawn as 3")
    expect(page.locator(".graph .node", has_text="600 blocked")).to_have_count(1)
    expect(page.locator("tbody tr")).to_have_count(200)


def test_a_phone_gets_the_graph_downwards_and_text_stays_text(
    browser: Browser, site: Served, sql: Connection
) -> None:
    enqueue(
        sql,
        HOSTILE,
        [{"name": HOSTILE, "kind": HOSTILE}, {"name": "then", "after": [HOSTILE]}],
    )
    phone = Tab(browser, site, viewport={"width": 390, "height": 800})
    page = phone.open(f"flows/{HOSTILE.replace(' ', '%20')}")
    expect(page.locator(".graph .node")).to_have_count(2)
    place = boxes(page)
    assert place[HOSTILE]["bottom"] < place["then"]["top"]
    wide = "() => document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 390
    expect(page.locator("img[src=x]")).to_have_count(0)
    assert phone.complaints == []
    phone.open("flows/nothing")
    expect(page.locator(".trouble")).to_contain_text("there is no flow 'nothing'")
    phone.close()
