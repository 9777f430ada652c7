"""Tests of the engine run on the first server and on those beside it."""

from __future__ import annotations

import os

import pytest

from tests.conftest import pool
from tools import majors, servers
from tools.servers import Server

# Long files run on one server of a run: the one that has its turn.
LONG = {
    "test_flows_stress",
    "test_fuzz",
    "test_groups_stress",
    "test_keys_stress",
    "test_marks_stress",
    "test_old_snapshot",
    "test_pinned_plans",
    "test_rates_stress",
    "test_slots_stress",
    "test_known_defects",
    "test_planted",
    "test_state_machine",
    "test_verbs_and_lanes",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" not in metafunc.fixturenames:
        return
    # Other versions when PULSE_MAJORS names them.
    others = majors.beside() if os.environ.get(majors.SWITCH) else []
    chosen = [servers.primary().major, *others]
    if metafunc.definition.path.stem in LONG:
        chosen = chosen[1:] or chosen
    names = [f"pg{major}" for major in chosen]
    metafunc.parametrize("server", chosen, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    # A fixture that is asked for by its name at run time has no parameter.
    return pool(getattr(request, "param", servers.primary().major))
