"""In a locale that is not UTF-8 nothing breaks and nothing is stored wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, command
from tests.conftest import Connection, Database
from tools import paths

# As PYTHONIOENCODING has it, and a C locale that Python does not turn into UTF-8.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
KIND = "\u041f\u0438\u0441\u044c\u043c\u043e \u2713"
LATIN = {"PYTHONIOENCODING": "latin-1"}


def pulse(db: Database, locale: dict[str, str], *arguments: object) -> Ran:
    return command(*arguments, cwd=paths.ROOT, PULSE_DSN=db.dsn, **locale)


@pytest.mark.parametrize("locale", [ASCII, LATIN], ids=["ascii", "latin-1"])
def test_what_the_terminal_cannot_show_becomes_a_question_mark(
    db: Database, connect: Callable[..., Connection], locale: dict[str, str]
) -> None:
    connection = connect()
    connection.execute(
        "SELECT pulse.enqueue('\u041f\u0438\u0441\u044c\u043c\u043e \u2713')"
    )
    for arguments in (
        ("--help",),
        ("lanes",),
        ("jobs",),
        ("jobs", "1"),
        ("top", "--once"),
        ("health",),
        ("cancel", "--kind", KIND),
        ("why", "4711"),
    ):
        ran = pulse(db, locale, *arguments)
        assert "Traceback" not in ran.err, arguments
        assert ran.code in (0, 1, 2)
    assert "?????? ?" in pulse(db, locale, "jobs").out
    # JSON loses nothing: what the locale cannot hold is escaped.
    ran = pulse(db, locale, "jobs", "--json")
    assert json.loads(ran.out)[0]["kind"] == KIND


def test_arguments_and_files_are_utf8(
    db: Database, connect: Callable[..., Connection], tmp_path: Path
) -> None:
    (tmp_path / "payloads").write_text('{"n": "\u2713"}\n', "utf-8")
    for arguments in (("n=\u2713",), ("--from", tmp_path / "payloads")):
        ran = pulse(db, ASCII, "enqueue", "k", *arguments)
        assert ran.code == 0, ran.err
    rows = connect().execute("SELECT payload ->> 'n' FROM pulse.jobs").fetchall()
    assert rows == [("\u2713",), ("\u2713",)]
    (tmp_path / "payloads").write_bytes(b'{"n": "\xff"}\n')
    ran = pulse(db, ASCII, "enqueue", "k", "--from", tmp_path / "payloads")
    assert ran.code == 2
    assert "not UTF-8" in ran.err
