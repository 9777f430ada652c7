"""`pulse web` as a process of its own, and Debian's Chromium looking at it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

PATIENCE = 20.0
PULSE = [sys.executable, "-c", "from pulse.cli import main; main()"]
PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    # Only our own page is opened; containers and root have no sandbox to offer.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PAGES = (
    *("", "jobs", "dead", "approvals", "kinds", "schedules", "workers", "health"),
    "audit",
)

expect.set_options(timeout=PATIENCE * 1000)

MISSING = (
    "Chromium is not here: `make setup` gets it where apt works "
    "(apt-get install chromium)"
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Headless, with a profile of its own that ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Served(Protocol):
    """What a tab looks at."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class Beside:
    """A database that this process serves: no program has to start."""

    url: str


class Site:
    """A database that `pulse web` serves, again at the same address when killed."""

    def __init__(self, dsn: str, *options: str, env: dict[str, str] | None = None):
        self.dsn = dsn
        self.options = options
        self.env = env or {}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = ["web", "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*PULSE, *command, *self.options],
            env={**os.environ, "PULSE_DSN": self.dsn, **self.env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        wait_for(self._answers, "pulse web answers")

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read().decode())
        try:
            urllib.request.urlopen(self.url, timeout=PATIENCE).close()
        except urllib.error.HTTPError as answer:
            answer.close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.communicate()
        self.process = None


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true answer of condition, or a failure that says what did not come."""
    until = time.monotonic() + PATIENCE
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < until, f"did not come: {what}"
        time.sleep(0.02)


class Tab:
    """A page of the browser that writes down every complaint of its console."""

    def __init__(self, browser: Browser, site: Served, **options: Any) -> None:
        self.site = site
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.gone: str | None = None
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: Any) -> None:
        url = str(message.location.get("url"))
        # The page may just be reading again what a test deletes.
        deleted = self.gone and url.endswith(self.gone) and "404" in message.text
        if message.type in ("error", "warning") and not deleted:
            self.complaints.append(f"{message.text} ({url})")

    def open(self, place: str = "") -> Page:
        self.page.goto(self.site.url + (f"#/{place}" if place else ""))
        return self.page

    def live(self) -> Page:
        """The first page, once the stream has filled it."""
        page = self.open()
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("tr[data-lane]").first).to_be_visible()
        return page

    def signed_in(self, token: str) -> Page:
        page = self.open()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#nav")).to_be_visible()
        # The page it asked for first was refused, as it should be.
        self.complaints.clear()
        return page

    def close(self) -> None:
        self.context.close()


def lane(page: Page, name: str) -> Locator:
    return page.locator(f'tr[data-lane="{name}"]')


def job(page: Page, job_id: int | str) -> Locator:
    return page.locator(f'tr[data-job="{job_id}"]')
