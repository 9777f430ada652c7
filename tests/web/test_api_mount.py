"""The app inside another site: Starlette, FastAPI, Django."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import environment
from tests.conftest import Connection, Database
from tests.web.calls import enqueue
from tests.web.conftest import API
from tests.web.streams import LONG, follow, listeners, wait_for

TOKEN = "a-token-of-the-whole-site"

STARLETTE = """
import contextlib, os
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from pulse.web import Tokens, close, create_app

pulse = create_app(os.environ["PULSE_DSN"], tokens=Tokens({os.environ["TOKEN"]: None}))


@contextlib.asynccontextmanager
async def lifespan(app):
    yield
    await close(pulse)


async def home(request):
    return PlainTextResponse("home")

application = Starlette(
    routes=[Mount("/ops/queue", pulse), Route("/", home)], lifespan=lifespan
)
"""

FASTAPI = """
import os
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from pulse.web import Tokens, create_app

application = FastAPI()


@application.get("/", response_class=PlainTextResponse)
async def home():
    return "home"

pulse = create_app(os.environ["PULSE_DSN"], tokens=Tokens({os.environ["TOKEN"]: None}))
application.mount("/ops/queue", pulse)
"""

DJANGO = """
import os
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"], DATABASES={}
)
urlpatterns = [path("", lambda request: HttpResponse("home"))]

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount
from pulse.web import Tokens, create_app

pulse = create_app(os.environ["PULSE_DSN"], tokens=Tokens({os.environ["TOKEN"]: None}))
application = Starlette(
    routes=[Mount("/ops/queue", pulse), Mount("/", get_asgi_application())]
)
"""


@pytest.fixture
def mounted(
    request: pytest.FixtureRequest, db: Database, tmp_path: Path
) -> Iterator[httpx.Client]:
    """A site in a process of its own, as uvicorn serves it."""
    (tmp_path / "site_of_a_user.py").write_text(request.param)
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "site_of_a_user:application"),
                *("--port", "0", "--timeout-graceful-shutdown", "1"),
            ],
            cwd=tmp_path,
            env=environment(PULSE_DSN=db.dsn, TOKEN=TOKEN),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(
            lambda: "running on" in log.read_text() or process.poll() is not None,
            "it did not start",
        )
        assert "running on" in log.read_text(), log.read_text()
        url = log.read_text().split("running on ")[1].split()[0]
        with httpx.Client(base_url=url, timeout=LONG) as client:
            yield client
    finally:
        process.terminate()
        process.wait(LONG)
    assert "Traceback" not in log.read_text(), log.read_text()


SITES = pytest.mark.parametrize(
    "mounted",
    [STARLETTE, FASTAPI, DJANGO],
    ids=["starlette", "fastapi", "django"],
    indirect=True,
)


@SITES
def test_the_app_works_where_it_is_mounted(
    mounted: httpx.Client, connection: Connection
) -> None:
    root = "/ops/queue"
    assert mounted.get("/").text == "home"
    assert mounted.get(f"{root}{API}/lanes").status_code == 401
    assert "login.js" in mounted.get(f"{root}/").text
    assert mounted.get(f"{root}/static/login.js").status_code == 200
    login = mounted.post(f"{root}/login", json={"token": TOKEN})
    assert login.status_code == 204
    assert f"Path={root}/" in login.headers["set-cookie"]
    assert "app.js" in mounted.get(f"{root}/").text
    assert mounted.get(f"{root}/static/app.js").status_code == 200
    job = enqueue(connection)
    (found,) = mounted.get(f"{root}{API}/jobs").json()["jobs"]
    assert found["job_id"] == job
    drained = mounted.post(
        f"{root}{API}/lanes/default/drain", json={}, headers={"X-Pulse": "1"}
    )
    assert drained.json()["drained"]
    document = mounted.get(f"{root}{API}/openapi.json").json()
    assert f"{API}/lanes" in document["paths"]
    assert document["servers"] == [{"url": root}]
    mounted.base_url = mounted.base_url.join("/ops/queue/")
    with follow(mounted, "stream") as events:
        assert events.until(lambda name, _: name == "overview")["lanes"]
    wait_for(lambda: listeners(connection) == 0, "it listens for nobody")
