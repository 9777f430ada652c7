"""run-now, reschedule, rerun, discard, and the job of a schedule out of turn."""

from __future__ import annotations

import httpx
import pytest

from tests.conftest import Connection
from tests.web.calls import enqueue, post
from tests.web.conftest import API, Site


def test_a_scheduled_job_runs_now(
    connection: Connection, operator: httpx.Client
) -> None:
    job = enqueue(connection, "mail", "delay => '1 h'")
    assert post(operator, f"jobs/{job}/run-now", reason="now")["state"] == "ready"


def test_a_job_runs_at_another_time(
    connection: Connection, operator: httpx.Client
) -> None:
    job = enqueue(connection, "mail")
    answer = post(operator, f"jobs/{job}/reschedule", run_at="2099-01-01T00:00:00Z")
    assert (answer["state"], answer["run_at"][:4]) == ("scheduled", "2099")
    wrong = operator.post(f"{API}/jobs/{job}/reschedule", json={"run_at": "later"})
    assert wrong.status_code == 422


def test_a_job_that_ended_runs_again_as_another(
    connection: Connection, operator: httpx.Client
) -> None:
    job = enqueue(connection, "mail")
    connection.execute("SELECT pulse.cancel(%s)", [job])
    again = post(operator, f"jobs/{job}/rerun", reason="once more")
    assert (again["state"], again["rerun_of"]) == ("ready", str(job))


def test_jobs_that_ended_are_discarded(
    connection: Connection, operator: httpx.Client
) -> None:
    job = enqueue(connection, "mail")
    connection.execute("SELECT pulse.cancel(%s)", [job])
    wanted = {"verb": "discard", "filter": {"kind": "mail"}}
    assert post(operator, "jobs/bulk", **wanted)["done"] == 1
    assert operator.get(f"{API}/jobs/{job}").status_code == 200
    assert post(operator, "jobs/bulk", **wanted, dry_run=False)["done"] == 1
    assert operator.get(f"{API}/jobs/{job}").status_code == 404


def test_a_bulk_reschedule_says_when(operator: httpx.Client) -> None:
    asked = {"verb": "reschedule", "filter": {"all": True}}
    assert operator.post(f"{API}/jobs/bulk", json=asked).status_code == 422
    done = post(operator, "jobs/bulk", **asked, run_at="2099-01-01T00:00:00Z")
    assert done["done"] == 0


def test_a_schedule_runs_out_of_turn(
    connection: Connection, operator: httpx.Client
) -> None:
    connection.execute("SELECT pulse.schedule('nightly', 'mail', every => '1 day')")
    job = post(operator, "schedules/nightly/run", reason="missing")["job_id"]
    assert operator.get(f"{API}/jobs/{job}").json()["kind"] == "mail"
    assert operator.post(f"{API}/schedules/none/run", json={}).status_code == 404


@pytest.mark.parametrize("verb", ["run-now", "rerun", "reschedule"])
def test_a_viewer_may_not(connection: Connection, site: Site, verb: str) -> None:
    job = enqueue(connection, "mail", "delay => '1 h'")
    body = {"run_at": "2099-01-01T00:00:00Z"} if verb == "reschedule" else {}
    answer = site.client("viewer").post(f"{API}/jobs/{job}/{verb}", json=body)
    assert answer.status_code == 403
