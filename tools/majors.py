"""On which versions of PostgreSQL a run of the tests tries what.

pgTAP files run on every version that is here. Isolation specs run on the first server
and on one more, which the commit chooses: CI gets to all of them in turn.
PULSE_MAJORS=14,17 names others, PULSE_MAJORS=all takes all; then the tests of the
engine run on these too.
"""

import functools
import os
import subprocess

from tools import paths, servers

SWITCH = "PULSE_MAJORS"


def beside(asked: "str | None" = None, commit: "str | None" = None) -> list[int]:
    """The versions beside the first one for specs and the engine, in order."""
    first = servers.primary().major
    others = [major for major in sorted(servers.installs()) if major != first]
    text = os.environ.get(SWITCH, "") if asked is None else asked
    if text == "all":
        return others
    if text:
        wanted = {int(word) for word in text.split(",")}
        if not wanted <= {first, *others}:
            here = ", ".join(map(str, sorted({first, *others})))
            raise ValueError(f"{SWITCH}={text}: here are PostgreSQL {here}")
        return [major for major in others if major in wanted]
    if not others:
        return []
    return [others[turn(commit) % len(others)]]


@functools.cache
def turn(commit: "str | None" = None) -> int:
    """A number that the commit decides, so that all workers of a run agree."""
    if commit is None:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=paths.ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        commit = done.stdout.strip() if done.returncode == 0 else "0"
    return int(commit, 16)
