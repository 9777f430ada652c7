"""make test: lint beside the tests, then what both found.

    python -m tools.suite [ARGUMENTS OF PYTEST]

The tests wait for servers and for each other, lint computes: side by side they take
less time than one after the other.
"""

import subprocess
import sys
import tempfile
import time

from tools import paths

# More workers than cores: a worker often waits for a server or a lock.
WORKERS = 3


def main() -> int:
    started = time.monotonic()
    paths.keep_bytecode()
    with tempfile.TemporaryFile("w+") as said:
        lint = subprocess.Popen(
            [sys.executable, "-m", "tools.lint"],
            cwd=paths.ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        tests = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "--summary", "-n", str(WORKERS)),
                *("--dist", "loadfile", "--no-loadscope-reorder", *sys.argv[1:]),
            ],
            cwd=paths.ROOT,
            check=False,
        ).returncode
        linted = lint.wait()
        said.seek(0)
        sys.stdout.write(said.read())
    took = int(time.monotonic() - started)
    print(
        f"test: lint {verdict(linted)}, tests {verdict(tests)},"
        f" {took // 60}:{took % 60:02} without set-up"
    )
    return tests or linted


def verdict(status: int) -> str:
    return "ok" if status == 0 else "FAILED"


if __name__ == "__main__":
    sys.exit(main())
