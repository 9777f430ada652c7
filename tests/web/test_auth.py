"""Who is let in, and from where."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from pulse.web import Identity, ProxyUser, Tokens, create_app
from pulse.web.access import auth, options
from tests.cli.conftest import command
from tests.conftest import Database
from tests.web.conftest import API, ROLES, TOKENS, Serve, Site, grant_roles

# -- where it listens ---------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_it_will_not_listen_elsewhere_without_authentication(
    db: Database, host: str
) -> None:
    ran = command("web", "--host", host, "--port", 0, "--dsn", db.dsn)
    assert ran.code == 2
    assert f"will not listen on {host} without authentication" in ran.err
    assert f"pulse web --host {host} --token-file FILE" in ran.err
    assert ran.out == ""


def test_a_name_that_points_here_is_not_enough(open_site: Site) -> None:
    client = open_site.client()
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
        answer = client.get(f"{API}/me", headers={"Host": host})
        assert answer.status_code == 421, host
        assert "user" not in answer.text
    for host in ("localhost", "LOCALHOST:8077", "127.0.0.1:1", "[::1]:8077"):
        assert client.get(f"{API}/me", headers={"Host": host}).status_code == 200


def test_another_name_can_be_allowed(db: Database, serve: Serve) -> None:
    client = serve(db.dsn, allow_hosts=["queue.example"]).client()
    for host, status in (("queue.example:80", 200), ("localhost", 200), ("x", 421)):
        answer = client.get(f"{API}/me", headers={"Host": host})
        assert answer.status_code == status


def test_without_authentication_only_this_machine_is_answered(db: Database) -> None:
    async def ask(address: str) -> int:
        app = create_app(db.dsn)
        transport = httpx.ASGITransport(app, client=(address, 1234))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost"
        ) as client:
            answer = await client.get("/")
            return answer.status_code

    assert asyncio.run(ask("127.0.0.1")) == 200
    assert asyncio.run(ask("::1")) == 200
    assert asyncio.run(ask("192.0.2.7")) == 401


# -- tokens -------------------------------------------------------------------------


def test_a_token_is_exchanged_for_a_cookie(site: Site) -> None:
    browser = site.client(**{"X-Pulse": "1"})
    refused = browser.post("/login", json={"token": "guessed-at-random-once"})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    answer = browser.post("/login", json={"token": TOKENS["viewer"]})
    assert answer.status_code == 204
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=strict" in kept
    assert TOKENS["viewer"] not in kept
    seen = browser.get(f"{API}/me").json()
    assert (seen["role"], seen["signed_in"]) == (ROLES["viewer"], True)
    assert "app.js" in browser.get("/").text
    gone = browser.post("/logout")
    assert gone.status_code == 204
    assert "HttpOnly" in gone.headers["set-cookie"]
    assert "SameSite=strict" in gone.headers["set-cookie"]
    assert browser.get(f"{API}/me").status_code == 401


def test_the_cookie_is_secure_where_the_browser_came_by_https(site: Site) -> None:
    answer = site.client(**{"X-Forwarded-Proto": "https"}).post(
        "/login", json={"token": TOKENS["viewer"]}
    )
    assert "Secure" in answer.headers["set-cookie"]


def test_a_cookie_is_no_token(site: Site) -> None:
    cookie = auth.cookie_for(TOKENS["viewer"])
    answer = site.client(Authorization=f"Bearer {cookie}").get(f"{API}/me")
    assert answer.status_code == 401


def test_what_is_not_a_login_is_refused_and_nothing_breaks(site: Site) -> None:
    stranger = site.client()
    for body in (b"", b"[]", b'{"token": {}}', b"\xff", b"[" * 100_000, b'"x"'):
        answer = stranger.post("/login", content=body)
        assert answer.status_code == 401, body[:20]
    assert stranger.post("/login", content=b"x" * (1 << 21)).status_code == 413


def test_strangers_get_the_login_page_with_all_its_parts(site: Site) -> None:
    stranger = site.client()
    assert stranger.get("/static/login.js").status_code == 200
    assert stranger.get("/static/style.css").status_code == 200
    for path in ("/static/app.js", "/static/../app.py", "/static/login.html"):
        assert stranger.get(path).status_code == 401


def test_a_file_names_tokens_and_their_roles(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(
        "# who may look\nfirst-token-of-some-length viewer\n"
        "\nsecond-token-of-some-length\n"
    )
    tokens = Tokens.from_file(file)
    assert tokens.cookie("first-token-of-some-length")
    assert tokens.cookie("second-token-of-some-length")
    assert not tokens.cookie("# who may look")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("short", "fewer than 16 characters"),
        ("# nothing\n", "has no token"),
        ("a-token-of-some-length with many words", "more than two words"),
    ],
)
def test_a_token_file_that_protects_nothing_is_refused(
    db: Database, tmp_path: Path, text: str, wrong: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    ran = command("web", "--port", 0, "--token-file", file, "--dsn", db.dsn)
    assert ran.code == 2
    assert wrong in ran.err


def test_one_token_may_come_from_the_environment() -> None:
    secret = {"PULSE_WEB_TOKEN": "from-the-environment"}
    authenticate, tokens = options.configured(environment=secret)
    assert authenticate is not None
    assert tokens is not None
    assert tokens.cookie("from-the-environment")
    assert options.configured(environment={}) == (None, None)


# -- a proxy that authenticates -----------------------------------------------------


def test_a_proxy_names_the_user_and_a_file_their_role(
    db: Database, serve: Serve
) -> None:
    grant_roles(db.connect())
    roles = {"ada": ROLES["operator"], "bob": ROLES["viewer"]}
    proxy = ProxyUser("X-User", roles=roles)
    site = serve(db.dsn, authenticate=proxy, allow_hosts=["queue.example"])
    named = {"Host": "queue.example"}
    for user, role in roles.items():
        me = site.client(**{"X-User": user}, **named).get(f"{API}/me").json()
        assert (me["user"], me["role"]) == (user, role)
    eve = site.client(**{"X-User": "eve"}, **named)
    assert eve.get(f"{API}/me").status_code == 401
    assert site.client().get(f"{API}/me").status_code == 401
    # There is nothing to log in with.
    assert site.client().get("/").headers["content-type"] == "application/problem+json"


def test_the_header_counts_only_from_the_proxy(db: Database, serve: Serve) -> None:
    elsewhere = ProxyUser("X-User", trusted=["10.1.2.0/24"])
    client = serve(db.dsn, authenticate=elsewhere).client(**{"X-User": "ada"})
    assert client.get(f"{API}/me").status_code == 401


def test_a_site_can_bring_its_own_way_to_say_who_asks(
    db: Database, serve: Serve
) -> None:
    async def staff(connection: object) -> Identity | None:
        headers = getattr(connection, "headers", {})
        return Identity("grace") if headers.get("x-badge") == "42" else None

    site = serve(db.dsn, authenticate=staff)
    assert site.client().get(f"{API}/me").status_code == 401
    me = site.client(**{"X-Badge": "42"}).get(f"{API}/me").json()
    assert (me["user"], me["role"]) == ("grace", "postgres")


def test_options_of_a_proxy_without_its_header_are_refused(
    db: Database, tmp_path: Path
) -> None:
    ran = command("web", "--trusted-proxy", "10.0.0.1", "--dsn", db.dsn)
    assert ran.code == 2
    assert "--user-header" in ran.err
    ran = command(
        *("web", "--user-header", "X-User", "--trusted-proxy", "nonsense"),
        *("--allow-host", "queue.example", "--dsn", db.dsn),
    )
    assert ran.code == 2
    assert "nonsense" in ran.err
