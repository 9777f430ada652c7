"""`import pulse` brings psycopg and nothing that only some programs need."""

from __future__ import annotations

import subprocess
import sys

from tools import paths

LATER = {
    *("alembic", "click", "django", "fastapi", "msgspec", "opentelemetry", "pydantic"),
    *("rich", "sentry_sdk", "sqlalchemy", "starlette", "uvicorn", "psycopg_pool"),
    *("http.server", "multiprocessing", "pulse.alembic", "pulse.cli", "pulse.django"),
    *("pulse.embedded", "pulse.nodes", "pulse.testing", "pulse.web", "pulse.worker"),
}
SHOW = "import pulse, sys; print(pulse.__file__, *sys.modules, sep='\\n')"


def test_what_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={"PYTHONPATH": str(paths.ROOT / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    file, *loaded = done.stdout.splitlines()
    assert file.startswith(str(paths.ROOT))
    assert "psycopg" in loaded
    assert not LATER & set(loaded)


def test_a_worker_of_one_database_imports_no_nodes() -> None:
    show = "import pulse.worker, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={"PYTHONPATH": str(paths.ROOT / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pulse.worker.loop" in done.stdout.split()
    assert "pulse.nodes" not in done.stdout.split()
