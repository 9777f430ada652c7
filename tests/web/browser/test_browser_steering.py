"""What an operator does with the page, in a real browser on real workers."""

from __future__ import annotations

import threading

from playwright.sync_api import Route, expect

import pulse
from tests.conftest import Connection
from tests.web.browser.chrome import Tab, job, lane, wait_for
from tests.web.browser.conftest import Work
from tests.web.browser.seeds import kill_jobs, one, state_of

# The buttons of a job, by what is written on them.
LABELS = {
    "Approve": "approve",
    "Reject…": "reject",
    "Retry": "retry",
    "Run now": "run_now",
    "Reschedule…": "reschedule",
    "Run again": "rerun",
    "Cancel…": "cancel",
    "Priority…": "reprioritize",
    "Move…": "move",
    "Delete…": "delete_job",
}


def test_buttons_and_bulk_verbs_act_on_the_same_states(
    tab: Tab, sql: Connection
) -> None:
    sql.execute("SELECT pulse.enqueue('k', delay => '1 h')")
    offered = """
        Promise.all([import('./static/actions.js'), import('./static/state.js')]).then(
            ([{ jobButtons, selectionButtons }, { actsOn }]) =>
                actsOn('find_jobs').map((state) => [
                    state,
                    jobButtons({ job_id: '1', state }).map((b) => b.textContent),
                    selectionButtons([{ job_id: '1', state }]).map(
                        (b) => b.textContent),
                ]))
    """
    page = tab.live()
    found = page.evaluate(offered)
    assert len(found) == 9
    states = {
        row[0]: row[1]
        for row in sql.execute("SELECT verb, states FROM pulse.verbs()").fetchall()
    }
    for state, one_job, selected in found:
        verbs = {LABELS[label] for label in one_job}
        assert verbs == {verb for verb in LABELS.values() if state in states[verb]}
        assert len(selected) == len(one_job), state


def test_a_lane_is_drained_and_resumed(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.set_lane('mail', max_slots => 2)")
    sql.execute("SELECT pulse.enqueue('letter', lane => 'mail')")
    page = tab.live()
    mail = lane(page, "mail")
    expect(mail).to_contain_text("0 / 2")

    mail.get_by_role("button", name="Drain lane mail").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("new printer")
    dialog.get_by_role("button", name="Drain").click()
    expect(mail.locator(".pill")).to_have_text("drained")
    expect(mail).to_contain_text("new printer")
    assert one(sql, "SELECT drained FROM pulse.lanes WHERE name = 'mail'") is True
    assert one(sql, "SELECT count(*) FROM pulse.claim_batch('w1', 'mail')") == 0

    mail.get_by_role("button", name="Resume lane mail").click()
    expect(mail.locator(".pill")).to_have_text("waiting")
    assert one(sql, "SELECT drained FROM pulse.lanes WHERE name = 'mail'") is False


def test_a_running_job_is_cancelled(tab: Tab, sql: Connection, work: Work) -> None:
    stopped = threading.Event()

    def export(running: pulse.Job) -> None:
        while running.should_continue():
            if stopped.wait(0.02):
                return
        raise pulse.Cancelled

    job_id = one(sql, "SELECT pulse.enqueue('export')")
    work({"export": export})
    page = tab.live()
    row = job(page, job_id)
    row.get_by_role("button", name=f"Cancel… job {job_id}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("the customer left")
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#toasts")).to_contain_text(f"Job {job_id} asked to stop")
    expect(row).to_have_count(0)
    wait_for(lambda: state_of(sql, job_id) == "cancelled", "the cancelled job")
    stopped.set()


def test_dead_jobs_are_retried_by_filter_after_a_dry_run(
    tab: Tab, sql: Connection
) -> None:
    kill_jobs(sql, "charge", "Timeout: the bank does not answer", 12)
    kill_jobs(sql, "charge", "CardRefused: 100% certain", 3)
    count = "SELECT count(*) FROM pulse.jobs WHERE state = %s"
    page = tab.open("dead")
    rows = page.locator("tr[data-job]")
    expect(rows).to_have_count(15)

    page.get_by_label("Error contains").fill("bank does")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(rows).to_have_count(12)

    page.get_by_role("button", name="Retry all matching").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Would retry 12 jobs")
    assert one(sql, count, "dead") == 15
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert one(sql, count, "dead") == 15

    page.get_by_role("button", name="Retry all matching").click()
    dialog.get_by_role("button", name="Retry 12 jobs").click()
    expect(page.locator("#toasts")).to_contain_text("Retried 12 jobs")
    expect(rows).to_have_count(0)
    assert one(sql, count, "dead") == 3
    assert one(sql, count, "ready") == 12


def test_one_dead_job_is_retried_with_one_click(tab: Tab, sql: Connection) -> None:
    kill_jobs(sql, "charge", "Traceback\n  deep inside\nTimeout: no answer", 2)
    page = tab.open("dead")
    rows = page.locator("tr[data-job]")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("summary")).to_have_text("Timeout: no answer")
    rows.first.get_by_role("button", name="Retry").click()
    expect(rows).to_have_count(1)
    assert one(sql, "SELECT count(*) FROM pulse.dead") == 1


def test_one_of_two_jobs_is_approved(tab: Tab, sql: Connection) -> None:
    wanted, other = (
        one(sql, "SELECT pulse.enqueue('refund', requires_approval => true)")
        for _ in range(2)
    )
    page = tab.open("approvals")
    row = job(page, wanted)
    row.get_by_role("button", name="Approve").click()
    expect(row).to_have_count(0)
    expect(job(page, other)).to_be_visible()
    assert state_of(sql, wanted) == "ready"
    assert state_of(sql, other) == "awaiting_approval"


def test_a_waiting_job_is_moved_ranked_cancelled_and_deleted(
    tab: Tab, sql: Connection
) -> None:
    job_id = one(sql, "SELECT pulse.enqueue('letter')")
    page = tab.open(f"jobs/{job_id}")
    dialog, state = page.get_by_role("dialog"), page.locator(".job-title .pill")

    page.get_by_role("button", name="Priority").click()
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_role("button", name="Change").click()
    expect(page.locator(".history")).to_contain_text("reprioritize")
    page.get_by_role("button", name="Move").click()
    dialog.get_by_label("Lane").fill("express")
    dialog.get_by_role("button", name="Move").click()
    expect(page.locator(".of")).to_have_text("letter in express")
    found = sql.execute("SELECT lane, priority FROM pulse.jobs").fetchone()
    assert found == ("express", 7)

    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(state).to_have_text("cancelled")
    tab.gone = f"jobs/{job_id}"
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_label("Reason").fill("a test & no more")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("#toasts")).to_contain_text(f"Job {job_id} deleted")
    assert one(sql, "SELECT count(*) FROM pulse.jobs") == 0
    why = "SELECT reason FROM pulse.audit WHERE verb = 'delete_job'"
    assert one(sql, why) == "a test & no more"


def test_everything_is_paused_and_resumed(tab: Tab, sql: Connection) -> None:
    page = tab.live()
    page.get_by_role("button", name="Pause everything").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Holder").fill("night shift")
    dialog.get_by_role("button", name="Pause all lanes").click()
    expect(page.locator(".hold")).to_contain_text("All lanes are paused by night shift")
    expect(lane(page, "default").locator(".pill")).to_have_text("paused")
    assert one(sql, "SELECT holder FROM pulse.pause_status()") == "night shift"
    page.locator(".hold").get_by_role("button", name="Resume").click()
    expect(page.locator(".hold")).to_have_count(0)
    assert one(sql, "SELECT count(*) FROM pulse.pause_status()") == 0


def test_a_lane_gets_more_slots(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.set_lane('mail', max_slots => 2, lease_for => '40 s')")
    page = tab.live()
    page.get_by_role("button", name="Settings of lane mail").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Lease")).to_have_value("40 s")
    keep = dialog.get_by_label("Keep dead jobs")
    expect(keep).to_have_attribute("placeholder", "default: 7 days")
    dialog.get_by_label("Slots", exact=True).fill("5")
    dialog.get_by_label("Slots of a group").fill("2")
    dialog.get_by_label("Rate", exact=True).fill("100")
    dialog.get_by_label("Period of the rate", exact=True).fill("1 min")
    dialog.get_by_role("button", name="Save").click()
    expect(lane(page, "mail")).to_contain_text("0 / 5")
    settings = one(sql, "SELECT settings FROM pulse.lanes WHERE name = 'mail'")
    wanted = {"max_slots": 5, "lease_for": "00:00:40", "enabled": True}
    rate = {"rate": 100, "rate_per": "00:01:00"}
    assert settings == {**wanted, **rate, "group_slots": 2}


def test_a_group_is_held_and_let_go(tab: Tab, sql: Connection) -> None:
    sql.execute("SELECT pulse.set_lane('mail', fair => true)")
    sql.execute("SELECT pulse.enqueue('k', lane => 'mail', group_key => 'a/b')")
    page = tab.live()
    page.get_by_role("link", name="Groups of lane mail").click()
    row = page.locator("tr", has_text="a/b")
    expect(row).to_contain_text("waiting")
    row.get_by_role("button", name="Hold group").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("abuse")
    dialog.get_by_role("button", name="Hold").click()
    expect(row).to_contain_text(": abuse")
    assert one(sql, "SELECT state FROM pulse.groups('mail')") == "held"
    row.get_by_role("button", name="Resume group").click()
    expect(row).to_contain_text("waiting")
    row.get_by_role("button", name="Rule for group").click()
    dialog.get_by_label("Slots").fill("4")
    dialog.get_by_role("button", name="Save").click()
    expect(row.locator("td").nth(3)).to_have_text("4")


def test_what_the_database_refuses_is_shown_with_its_code(
    tab: Tab, sql: Connection
) -> None:
    job_id = one(sql, "SELECT pulse.enqueue('refund', requires_approval => true)")
    page = tab.open(f"jobs/{job_id}")
    approve = page.get_by_role("button", name="Approve")
    expect(approve).to_be_visible()

    def too_late(route: Route) -> None:
        """Another operator is faster than the page."""
        sql.execute("SELECT pulse.approve(%s)", [job_id])
        route.continue_()

    page.route("**/approve", too_late)
    approve.click()
    expect(page.get_by_role("alert")).to_contain_text("PU105")
    # Chromium itself writes refused requests into the console.
    refused = [line for line in tab.complaints if "409" in line and "approve" in line]
    assert len(refused) == 1
    tab.complaints.remove(refused[0])
