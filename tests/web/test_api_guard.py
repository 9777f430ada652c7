"""Which requests are believed, and what every answer carries."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from pulse.web import Tokens, create_app
from tests.conftest import Database
from tests.web.conftest import API, TOKENS, Serve, Site, operations

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


# -- requests of other sites --------------------------------------------------------


def test_a_change_has_to_show_that_no_other_site_sent_it(open_site: Site) -> None:
    drain, ours = f"{API}/lanes/default/drain", {"X-Pulse": "1"}
    client = open_site.client()
    host = client.base_url.netloc.decode()
    for headers, status in (
        ({}, 403),
        ({"X-Pulse": "yes"}, 403),
        ({**ours, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**ours, "Sec-Fetch-Site": "same-site"}, 403),
        ({**ours, "Origin": "http://evil.example"}, 403),
        ({**ours, "Origin": "null"}, 403),
        ({**ours, "Origin": f"http://{host}1"}, 403),
        ({**ours, "Origin": "http://["}, 403),
        (ours, 200),
        ({**ours, "Origin": f"http://{host}"}, 200),
        ({**ours, "Sec-Fetch-Site": "same-origin", "Origin": f"http://{host}"}, 200),
    ):
        assert client.post(drain, headers=headers).status_code == status, headers


def test_every_change_needs_the_header(open_site: Site) -> None:
    client = open_site.client()
    for each in operations(open_site.app):
        if each.changes:
            answer = each.call(client, job_id="1024", name="default")
            assert answer.status_code == 403, str(each)
            assert "X-Pulse" in answer.text


def test_a_form_of_another_site_cannot_be_a_change(open_site: Site) -> None:
    client = open_site.client(**{"X-Pulse": "1"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post(
            f"{API}/pause", content=b'{"holder": "x"}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 415, kind


def test_a_token_in_a_header_needs_no_more(site: Site) -> None:
    client = site.client("operator")
    assert client.post(f"{API}/lanes/default/drain").status_code == 200
    foreign = {"Origin": "http://evil.example"}
    answer = client.post(f"{API}/lanes/default/drain", headers=foreign)
    assert answer.status_code == 403


def test_no_other_site_learns_that_it_may(site: Site) -> None:
    answer = site.client("viewer").options(
        f"{API}/lanes",
        headers={
            "Origin": "http://evil.example",
            "Access-Control-Request-Method": "GET",
        },
    )
    assert not [name for name in answer.headers if name.startswith("access-control")]


# -- every answer -------------------------------------------------------------------


def test_every_answer_has_the_headers(site: Site) -> None:
    viewer, stranger = site.client("viewer"), site.client()
    known = {"job_id": "1024", "name": "default"}
    answers = [
        viewer.get("/"),
        viewer.get("/static/app.js"),
        viewer.get("/nowhere"),
        viewer.put(f"{API}/lanes"),
        viewer.get(f"{API}/jobs?limit=none"),
        viewer.get(f"{API}/openapi.json"),
        viewer.post(f"{API}/pause", content=b"x" * (1 << 21)),
        stranger.get("/"),
        stranger.get("/static/login.js"),
        stranger.post("/login", json={}),
        stranger.get("/", headers={"Sec-Fetch-Site": "cross-site"}),
        *(
            each.call(client, **known)
            for client in (viewer, stranger)
            for each in operations(site.app)
            if not each.streams
        ),
    ]
    assert {each.status_code for each in answers} >= {200, 401, 403, 404, 405, 413, 422}
    for each in answers:
        where = f"{each.request.method} {each.request.url}"
        assert each.headers["content-security-policy"] == CSP, where
        assert each.headers["x-content-type-options"] == "nosniff", where
        assert each.headers["referrer-policy"] == "no-referrer", where
        if API in each.request.url.path or each.status_code == 401:
            assert each.headers["cache-control"] == "no-store", where
        if each.status_code >= 400 and each.request.url.path != "/":
            assert each.headers["content-type"] == "application/problem+json", where


def test_a_mistake_of_ours_is_logged_and_not_shown(
    db: Database, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    site = serve(db.dsn)

    async def broken() -> None:
        raise RuntimeError("a secret of the server")

    site.app.add_api_route("/broken", broken)
    answer = site.client().get("/broken")
    assert answer.status_code == 500
    assert answer.headers["content-security-policy"] == CSP
    assert answer.json()["status"] == 500
    assert "secret" not in answer.text
    assert "a secret of the server" in caplog.text


def test_a_client_that_leaves_while_it_logs_in_is_no_mistake(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(db.dsn, tokens=Tokens({TOKENS["viewer"]: None}))
    coming: list[Message] = [
        {"type": "http.request", "body": b'{"tok', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        **{"type": "http", "http_version": "1.1", "method": "POST"},
        **{"path": "/login", "raw_path": b"/login", "query_string": b""},
        **{"scheme": "http", "server": ("localhost", 80), "client": ("::1", 1)},
        "headers": [(b"host", b"localhost"), (b"content-length", b"100")],
    }
    asyncio.run(app(scope, receive, send))
    assert (coming, sent, caplog.records) == ([], [], [])


def test_a_body_without_a_length_is_bounded_too(site: Site) -> None:
    def pieces() -> object:
        yield b'{"holder": "'
        for _ in range(2000):
            yield b"x" * 1024
        yield b'"}'

    answer = site.client("operator").post(
        f"{API}/pause",
        content=pieces(),  # type: ignore[arg-type]
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413
