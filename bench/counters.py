"""make bench-counters: what counting costs each verb, in one run.

The engine of this checkout stands beside the same one with its counting cut out
(`bench.compare` does the rest), so nothing else differs. What tick does with the rows
later is not in these figures.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import paths

INSERT = re.compile(r" *INSERT INTO pulse_internal\.tally \(lane[^;]*;\n", re.DOTALL)


def without_counting(script: str) -> str:
    """The plain script, but nothing appends to tally."""
    while (start := script.find("counted AS (")) >= 0:
        depth, end = 0, start
        while end < len(script):
            depth += {"(": 1, ")": -1}.get(script[end], 0)
            end += 1
            if depth == 0 and script[end - 1] == ")":
                break
        before, after = script[:start].rstrip(), script[end:]
        # A comma too many, before or after it.
        if after.startswith(","):
            script = before + "\n\n    " + after[1:].lstrip()
        else:
            script = before.removesuffix(",") + after
    return INSERT.sub("", script)


def main() -> None:
    whole = (paths.BUILD / "pulse.sql").read_text()
    cut = without_counting(whole)
    left = cut.count("INSERT INTO pulse_internal.tally")
    assert left == 0, f"{left} places still count"
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "without-counters.sql"
        base.write_text(cut)
        base.chmod(0o644)
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", "bench.compare", "--base", str(base)]
        subprocess.run([*command, *sys.argv[1:]], cwd=paths.ROOT, check=True)


if __name__ == "__main__":
    main()
