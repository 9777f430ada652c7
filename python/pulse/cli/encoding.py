"""Input and output where the locale is not UTF-8: characters it lacks are shown as ?.

command.py calls it before anything is read or printed.
"""

import codecs
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from pulse.cli.problems import USAGE, Problem


def accept_any_locale() -> None:
    """Payloads are UTF-8 whatever the locale; output is as the terminal wants it."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_utf8(stream):
            stream.reconfigure(errors="replace")


def is_utf8(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding or "utf-8").name == "utf-8"


def decoded(arguments: Sequence[str]) -> list[str]:
    """Arguments in which Python could not read the bytes by the locale, as UTF-8."""
    try:
        return [
            os.fsencode(each).decode() if is_undecoded(each) else each
            for each in arguments
        ]
    except UnicodeDecodeError as error:
        raise Problem(
            "an argument is neither text of this locale nor UTF-8",
            str(error),
            "LC_ALL=C.UTF-8 pulse …",
            USAGE,
        ) from error


def is_undecoded(text: str) -> bool:
    """Whether it has bytes that the locale could not decode."""
    return any("\udc80" <= each <= "\udcff" for each in text)
