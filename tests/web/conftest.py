"""The web app on a real server, and tokens that stand for roles of a fresh database."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pulse.web import Tokens, create_app, serving
from tests.conftest import Connection, Database

API = "/admin/workers"
ACCESS = ("viewer", "operator", "approver", "producer")
ROLES = {**{each: f"web_{each}" for each in ACCESS}, "nobody": "web_nobody"}
TOKENS = {access: f"a token for the {access}".replace(" ", "-") for access in ROLES}


@dataclass
class Site:
    """An app that listens."""

    url: str
    app: FastAPI
    opened: list[httpx.Client] = field(default_factory=list)

    def client(self, access: str | None = None, **headers: str) -> httpx.Client:
        """As a program: with the token of an access level, or with nothing."""
        if access is not None:
            headers["Authorization"] = f"Bearer {TOKENS[access]}"
        client = httpx.Client(base_url=self.url, headers=headers, timeout=60)
        self.opened.append(client)
        return client


Serve = Callable[..., Site]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve apps as `pulse web` does: serve(dsn, tokens=…)."""
    ends: list[Callable[[], None]] = []

    def start(dsn: str | list[str], **options: Any) -> Site:
        app = create_app(dsn, **options)
        listening = serving.bind("127.0.0.1", 0, None)
        server = serving.Server(app, "warning")
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        thread.start()
        site = Site(serving.address(listening).rstrip("/"), app)

        def end() -> None:
            for client in site.opened:
                client.close()
            server.should_exit = True
            thread.join(60)
            listening.close()
            assert not thread.is_alive(), "the server did not end"

        ends.append(end)
        return site

    yield start
    for end in ends:
        end()


def grant_roles(connection: Connection) -> None:
    """Roles outlive a database: they are made once, and granted in each."""
    for role in ROLES.values():
        connection.execute(
            f"DO $$ BEGIN IF to_regrole('{role}') IS NULL THEN "
            f"CREATE ROLE {role} LOGIN; END IF; END $$".encode()
        )
    for access in ACCESS:
        connection.execute("SELECT pulse.grant_access(%s, %s)", (ROLES[access], access))


@pytest.fixture
def site(db: Database, serve: Serve) -> Site:
    """The app with a token for each access level: site.client("viewer")."""
    grant_roles(db.connect())
    return serve(db.dsn, tokens=Tokens({TOKENS[each]: ROLES[each] for each in ROLES}))


@pytest.fixture
def open_site(db: Database, serve: Serve) -> Site:
    """Without authentication: this machine only."""
    return serve(db.dsn)


@pytest.fixture
def connection(db: Database) -> Connection:
    return db.connect()


@pytest.fixture
def operator(site: Site) -> httpx.Client:
    return site.client("operator")


@dataclass(frozen=True)
class Operation:
    """One operation of the OpenAPI document, and how to call it."""

    method: str
    path: str
    body: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def call(self, client: httpx.Client, **parameters: str) -> httpx.Response:
        path = self.path.format_map(parameters)
        if self.body is None:
            return client.request(self.method, path)
        return client.request(self.method, path, json=self.body)

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def streams(self) -> bool:
        return self.path.endswith("/stream")


def operations(app: FastAPI) -> list[Operation]:
    """All that the OpenAPI document lists, each with bodies that are well-formed."""
    document = json.loads(json.dumps(app.openapi()))
    found = []
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            content = described.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            bodies = [None] if schema is None else list(examples(schema, document))
            found += [Operation(method.upper(), path, body) for body in bodies]
    assert len(found) > 20
    return found


def examples(schema: Any, document: Any) -> Iterator[Any]:
    """Well-formed values: one for each choice of an enumeration, one otherwise."""
    if "$ref" in schema:
        found = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        yield from examples(found, document)
    elif "anyOf" in schema:
        yield from examples(schema["anyOf"][0], document)
    elif "enum" in schema:
        yield from schema["enum"]
    elif schema.get("type") == "object" and "properties" in schema:
        whole = {
            name: next(examples(each, document))
            for name, each in schema["properties"].items()
        }
        for name, each in schema["properties"].items():
            for value in examples(each, document) if "enum" in each else ():
                yield {**whole, name: value}
        if not any("enum" in each for each in schema["properties"].values()):
            yield whole
    elif schema.get("type") == "object":
        yield {"all": True}
    elif schema.get("type") == "array":
        yield []
    elif schema.get("format") == "date-time":
        yield "2030-01-01T00:00:00Z"
    else:
        yield {"string": "default", "integer": 1, "number": 1.0, "boolean": True}[
            schema["type"]
        ]
