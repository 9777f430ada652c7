"""Proxies, names and files: what is believed, and what is refused at the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from pulse.web import Identity, ProxyUser, Tokens, create_app
from pulse.web.access import files
from tests.cli.conftest import command
from tests.conftest import Database
from tests.web.conftest import API, ROLES, TOKENS, Serve, Site, grant_roles

NAME = "queue.example"


# -- a header of a proxy ------------------------------------------------------------


def test_a_page_that_points_its_name_here_cannot_name_a_user(
    db: Database, serve: Serve
) -> None:
    """It is asked from loopback, as the proxy asks, with any header it likes."""
    proxy = ProxyUser("X-User")
    client = serve(db.dsn, authenticate=proxy, allow_hosts=[NAME]).client()
    for host, status in (
        (NAME, 200),
        (f"{NAME.upper()}:8077", 200),
        ("evil.example:8077", 421),
        ("localhost:8077", 421),
        ("127.0.0.1", 421),
    ):
        headers = {"X-User": "ada", "Host": host}
        answer = client.get(f"{API}/me", headers=headers)
        assert answer.status_code == status, host
    unnamed = serve(db.dsn, authenticate=proxy).client(**{"X-User": "ada"})
    assert unnamed.get(f"{API}/me").status_code == 421


def test_a_header_needs_a_name_from_the_start(db: Database) -> None:
    ran = command("web", "--port", 0, "--user-header", "X-User", "--dsn", db.dsn)
    assert ran.code == 2
    assert "--allow-host NAME" in ran.err


def test_a_header_that_comes_twice_names_nobody(db: Database, serve: Serve) -> None:
    proxy = ProxyUser("X-User")
    client = serve(db.dsn, authenticate=proxy, allow_hosts=[NAME]).client(Host=NAME)
    for users, status in ((["ada"], 200), (["ada", "eve"], 401), (["ada", "ada"], 401)):
        headers = [("X-User", user) for user in users]
        answer = client.get(f"{API}/me", headers=headers)
        assert answer.status_code == status, users


def test_an_address_that_is_mapped_into_ipv6_is_known(db: Database) -> None:
    """As a socket for both families names who connects by IPv4."""

    async def ask(address: str, app: object, **headers: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1234))  # type: ignore[arg-type]
        url = f"http://{headers.get('Host', 'localhost')}"
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            return (await client.get("/", headers=headers)).status_code

    proxy = ProxyUser("X-User", trusted=["10.0.0.0/8"])
    headers = {"X-User": "ada", "Host": NAME}
    for address, status in (("10.1.2.3", 200), ("192.0.2.1", 401)):
        app = create_app(db.dsn, authenticate=proxy, allow_hosts=[NAME])
        assert asyncio.run(ask(f"::ffff:{address}", app, **headers)) == status
    for address, status in (("127.0.0.1", 200), ("192.0.2.1", 401)):
        assert asyncio.run(ask(f"::ffff:{address}", create_app(db.dsn))) == status


# -- this machine only --------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"]
)
def test_what_a_proxy_hands_on_is_not_of_this_machine(
    open_site: Site, header: str
) -> None:
    assert open_site.client().get(f"{API}/me").status_code == 200
    handed_on = open_site.client(**{header: "192.0.2.7"})
    assert handed_on.get(f"{API}/me").status_code == 401


def test_with_tokens_and_a_name_the_printed_address_still_answers(
    db: Database, serve: Serve
) -> None:
    grant_roles(db.connect())
    tokens = Tokens({TOKENS["viewer"]: ROLES["viewer"]})
    client = serve(db.dsn, tokens=tokens, allow_hosts=[NAME]).client("viewer")
    assert client.get(f"{API}/me").status_code == 200
    for host, status in ((NAME, 200), ("localhost", 200), ("evil.example", 421)):
        answer = client.get(f"{API}/me", headers={"Host": host})
        assert answer.status_code == status, host


def test_a_login_counts_beside_a_way_of_ones_own(db: Database, serve: Serve) -> None:
    grant_roles(db.connect())

    async def staff(connection: object) -> Identity | None:
        headers = getattr(connection, "headers", {})
        return Identity("grace") if headers.get("x-badge") == "42" else None

    tokens = Tokens({TOKENS["viewer"]: ROLES["viewer"]})
    browser = serve(db.dsn, authenticate=staff, tokens=tokens).client()
    assert browser.get(f"{API}/me").status_code == 401
    login = browser.post("/login", json={"token": TOKENS["viewer"]})
    assert login.status_code == 204
    assert browser.get(f"{API}/me").json()["role"] == ROLES["viewer"]
    named = browser.get(f"{API}/me", headers={"X-Badge": "42"}).json()
    assert named["user"] == "grace"


# -- roles and files ----------------------------------------------------------------


@pytest.mark.parametrize("role", ["", "none"])
def test_what_is_no_role_is_refused(role: str) -> None:
    """To PostgreSQL they mean the role that logged in, with all its rights."""
    for make in (
        lambda: Identity("ada", role),
        lambda: Tokens({TOKENS["viewer"]: role}),
        lambda: ProxyUser("X-User", roles={"ada": role}),
    ):
        with pytest.raises(files.BadConfiguration, match="is no role"):
            make()


@pytest.mark.parametrize(
    ("option", "content", "wrong"),
    [
        ("--token-file", b"a-token-of-some-length none", '"none" is no role'),
        (
            "--token-file",
            b"a-token-of-some-length a\na-token-of-some-length b",
            "again",
        ),
        ("--token-file", b"a-token-of-some-l\xe9ngth", "not UTF-8"),
        ("--user-roles", b"ada steering\nbob", "line 2: the role is missing"),
        ("--user-roles", b"ada steering\nada watching", "line 2: it names again"),
        ("--user-roles", b"ada none", '"none" is no role'),
    ],
)
def test_a_file_that_would_give_other_rights_than_it_seems_is_refused(
    db: Database, tmp_path: Path, option: str, content: bytes, wrong: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    proxy = ("--user-header", "X-User", "--allow-host", NAME)
    ran = command("web", "--port", 0, *proxy, option, file, "--dsn", db.dsn)
    assert ran.code == 2
    assert wrong in ran.err
    # A token is a secret: no message repeats it.
    assert "a-token-of" not in ran.err
    assert "Traceback" not in ran.err
