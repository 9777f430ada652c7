"""Files that give tokens and users their roles; `pulse web` reads them at its start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class BadConfiguration(ValueError):
    """The app refuses to start; the text says why, its second line how to fix it."""


def words(path: Path, *, both: bool = False) -> Iterable[tuple[str, str | None]]:
    """Lines of a word and a role, which may be left out; a # begins a comment."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"cannot read {path}: it is not UTF-8 text") from error
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        parts = line.split("#", 1)[0].split()
        if not parts:
            continue
        # The first word may be a secret: it is not repeated.
        where = f"{path}, line {number}"
        word, *roles = parts
        if len(roles) > 1:
            raise BadConfiguration(f"{where}: there are more than two words")
        if both and not roles:
            raise BadConfiguration(f"{where}: the role is missing\nuser role")
        if word in seen:
            raise BadConfiguration(f"{where}: it names again what a line before named")
        seen.add(word)
        role = roles[0] if roles else None
        check_role(role, f"{where}: ")
        yield word, role


def check_role(role: str | None, where: str = "") -> None:
    """SET ROLE none would go back to the role of the DSN."""
    if role in ("", "none"):
        raise BadConfiguration(
            f'{where}"{role}" is no role\nleave it out for the role of the DSN'
        )
