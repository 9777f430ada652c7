"""The commands in docs/cli.md are run as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from pulse.cli.command import SECTIONS
from tests.cli.conftest import Pulse
from tests.conftest import Connection
from tools import paths

PAGE = (paths.ROOT / "docs" / "cli.md").read_text()


def test_every_command_on_the_page_works(
    pulse: Pulse, connect: Callable[..., Connection]
) -> None:
    commands = re.findall(r"^\$ pulse (.*)$", PAGE, re.MULTILINE)
    assert len(commands) > 10
    connect().execute("SELECT pulse.tick()")
    for line in commands:
        ran = pulse(*shlex.split(line))
        assert ran.code == 0, f"pulse {line}\n{ran.out}{ran.err}"


def test_every_verb_is_on_the_page() -> None:
    for section in SECTIONS.values():
        for verb in section:
            assert re.search(rf"^\|.*`{verb.name}\b", PAGE, re.MULTILINE), verb.name
