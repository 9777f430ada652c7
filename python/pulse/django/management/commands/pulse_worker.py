"""manage.py pulse_worker: run the tasks of the project.

The command turns its options into a worker (pulse.django.worker) and runs it.
"""

from __future__ import annotations

import logging
import threading
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS
from django.utils.autoreload import run_with_reloader
from django.utils.connection import ConnectionDoesNotExist

import pulse
from pulse.django.worker import make_worker
from pulse.errors import NotInstalled
from pulse.worker.health import bytes_of, restart_process

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)
# How long a reload waits for running jobs; it releases the rest, which run at once.
RELOAD_GRACE = 2.0


def slots(text: str) -> tuple[str, int | None]:
    """mail, or mail=2."""
    name, _, number = text.partition("=")
    if not name or (_ and not (number.isdecimal() and int(number) > 0)):
        raise ArgumentTypeError(f"{text!r} is not LANE or LANE=SLOTS")
    return name, int(number) if number else None


def size(text: str) -> int:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


class Command(BaseCommand):
    help = (
        "Run background tasks: those of Django's task framework that a PulseBackend "
        "takes, and functions with @pulse.task in modules named tasks. "
        "SIGTERM and Ctrl-C stop it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--lanes",
            nargs="+",
            type=slots,
            metavar="LANE[=SLOTS]",
            help="The queues to work on; default: all that TASKS names.",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=10,
            help="Slots of each lane that names none (default: %(default)s).",
        )
        parser.add_argument("--name", help="Default: host:pid:random.")
        parser.add_argument(
            "--grace",
            type=float,
            default=30.0,
            help="Seconds that running tasks get when it stops (default: %(default)s).",
        )
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS)
        parser.add_argument(
            "--max-jobs", type=int, help="Restart the process after so many tasks."
        )
        parser.add_argument(
            "--max-memory",
            type=size,
            metavar="SIZE",
            help="Restart the process when it uses more memory: 512MB.",
        )
        parser.add_argument(
            "--health-port", type=int, help="Answer GET /livez and /readyz there."
        )
        parser.add_argument(
            "--reload", action="store_true", help="Restart when a source file changes."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        configure_logging(options["verbosity"])
        if options["reload"]:
            self.work_with_reloader(options)
            return
        worker = self.worker(options)
        self.work(worker)
        if worker.recycled is not None:
            restart_process(worker.recycled)

    def worker(self, options: dict[str, Any]) -> pulse.Worker:
        lanes = options["lanes"] and {
            lane: number or options["concurrency"] for lane, number in options["lanes"]
        }
        try:
            return make_worker(
                database=options["database"],
                lanes=lanes,
                concurrency=options["concurrency"],
                name=options["name"],
                grace=options["grace"],
                max_jobs=options["max_jobs"],
                max_memory=options["max_memory"],
                health_port=options["health_port"],
            )
        except (ValueError, ConnectionDoesNotExist) as error:
            raise CommandError(str(error)) from error

    def work(self, worker: pulse.Worker) -> None:
        if not worker.tasks:
            raise CommandError(
                "there are no tasks: this worker runs what @task of a PulseBackend "
                "and @pulse.task mark in the modules `tasks` of INSTALLED_APPS"
            )
        try:
            worker.run()
        except NotInstalled as error:
            raise CommandError(f"{error.message}\nRun manage.py migrate.") from error
        except pulse.PulseError as error:
            raise CommandError(str(error)) from error

    def work_with_reloader(self, options: dict[str, Any]) -> None:
        """Work in a thread: the main one leaves when a file has changed."""
        running: list[pulse.Worker] = []
        ended = threading.Event()

        def work() -> None:
            running.append(self.worker(options))
            try:
                self.work(running[0])
            finally:
                ended.set()

        try:
            run_with_reloader(work)
        finally:
            for worker in running:
                worker.stop(RELOAD_GRACE)
                ended.wait(RELOAD_GRACE + 2)


def configure_logging(verbosity: int) -> None:
    """Say what happens, where the project's LOGGING does not decide that."""
    log = logging.getLogger("pulse")
    if log.handlers or logging.getLogger().handlers:
        return
    log.setLevel(LEVELS[verbosity])
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
