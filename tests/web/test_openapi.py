"""The OpenAPI document tells the truth: requests made up from it find no mistake."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from pulse.web import create_app
from tests.conftest import Connection, Database
from tests.web.calls import claim, die, enqueue
from tests.web.conftest import API, ROLES, TOKENS, Site, grant_roles, operations
from tests.web.process import pulse_web

# Requests for each operation; more by hand.
EXAMPLES = int(os.environ.get("PULSE_EXAMPLES", "15"))

# Why a request that the schema allows may be refused: what JSON Schema does not say.
BEYOND_THE_SCHEMA = re.compile(
    # A text that PostgreSQL or JSON cannot read.
    "invalid input syntax|is not JSON|unsupported Unicode|has a bad value|time zone"
    "|cron|is not valid Unicode|field value out of range|cannot contain NUL"
    # Members that belong together.
    "|exactly one of|belong together|Value error, [a-z_]+ needs|with in_order"
    # The filter, which the database reads.
    "|filter key|filter is empty"
    # What the lane is set to.
    "|do not stand in groups"
)

BEARER = {"Authorization": f"Bearer {TOKENS['operator']}"}


@pytest.fixture
def busy(connection: Connection) -> None:
    """Something of everything that an answer can hold."""
    for n in range(3):
        enqueue(connection, f"k{n}", f"tags => '{{red}}', unique_key => 'key {n}'")
    enqueue(connection, "pay", "requires_approval => true")
    enqueue(connection, "late", "delay => '1 hour'")
    die(connection, "bad", "no")
    connection.execute("SELECT pulse.progress(%s, 0.5, 'half')", claim(connection))
    connection.execute("SELECT pulse.schedule('nightly', 'k0', cron => '@daily')")
    connection.execute("SELECT pulse.pause('deploy', 'soon over', 'web', true)")
    connection.execute("SELECT pulse.hello('w2')")


@pytest.fixture
def elsewhere(db: Database, tmp_path: Path) -> Iterator[str]:
    """In a process of its own: hypothesis wants nobody else to use `random` here."""
    grant_roles(db.connect())
    (tmp_path / "tokens").write_text(f"{TOKENS['operator']} {ROLES['operator']}\n")
    options = ("--token-file", tmp_path / "tokens", "--dsn", db.dsn)
    with pulse_web(tmp_path, *options) as running:
        yield running.url.rstrip("/")
    assert "Traceback" not in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("generated", ["positive", "negative"])
def test_requests_made_up_from_the_document_find_no_mistake(
    busy: None, elsewhere: str, generated: str
) -> None:
    """Well-formed ones, and such as the document does not allow."""
    # Here: importing it takes seconds, in each process of a parallel run.
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.core.result import Ok

    mode = GenerationMode(generated)
    load_all_checks()
    held: Any = [CHECKS.get_one(name) for name in CHECKS.get_all_names()]
    accepted = CHECKS.get_one("positive_data_acceptance")
    schema = schemathesis.openapi.from_url(
        f"{elsewhere}{API}/openapi.json", headers=BEARER
    )
    answered: Counter[int] = Counter()
    tried = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if operation.path.endswith("/stream"):
            continue  # They do not end; test_stream.py reads them.
        if mode is GenerationMode.NEGATIVE and takes_nothing(operation.definition.raw):
            continue  # There is nothing to get wrong.
        tried.add(operation.label)

        @seed(20300101)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def try_it(case: schemathesis.Case[Any]) -> None:
            answer = case.call(base_url=elsewhere, headers=BEARER)
            problem = answer.text if answer.status_code == 422 else ""
            excused = BEYOND_THE_SCHEMA.search(problem) is not None
            case.validate_response(
                answer,
                checks=[each for each in held if not (excused and each is accepted)],
            )
            answered[answer.status_code] += 1

        try_it()
    listed = {str(each) for each in operations(create_app()) if not each.streams}
    if mode is GenerationMode.POSITIVE:
        assert tried == listed
        assert answered[200] > len(listed)
    else:
        assert tried < listed
        assert answered[422] > len(tried)


def takes_nothing(operation: Any) -> bool:
    return not operation.get("parameters") and "requestBody" not in operation


def test_the_document_names_no_other_host_and_every_problem(site: Site) -> None:
    document = site.client("viewer").get(f"{API}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "servers" not in document
    schemes = document["components"]["securitySchemes"]
    assert schemes["token"]["scheme"] == "bearer"
    assert [name for each in document["security"] for name in each] == list(schemes)
    assert "security" not in create_app().openapi()
    for path, methods in document["paths"].items():
        assert path.startswith(API) or path == "/metrics"
        for operation in methods.values():
            content = operation["responses"]["default"]["content"]
            assert list(content) == ["application/problem+json"]
            assert "422" not in operation["responses"]
