"""Run CI again and again, each time in a new clone with a new venv.

    python3 -m tools.fresh [RUNS] [--user NAME] [--load N] [--keep DIRECTORY]

It clones the last commit of this checkout, runs .ci/run there and prints the time and
what failed; at the end the list of all times. --user runs it as an ordinary user, where
this one is root. --load keeps N processes busy beside it and lowers its priority. The
output of each run stays in DIRECTORY. A run that failed makes the status 1.
"""

import argparse
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools import paths

BUSY = "while True: pass"
FAULT = re.compile(
    r"^(?:FAILED|ERROR) \S.*|^lint: .* found:$|^make: \*\*\* .*", re.MULTILINE
)
NICE = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.fresh")
    parser.add_argument("runs", nargs="?", type=int, default=10)
    parser.add_argument("--user")
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    asked.keep.mkdir(parents=True, exist_ok=True)
    results: list[tuple[int, float]] = []
    with busy(asked.load):
        for number in range(1, asked.runs + 1):
            log = asked.keep / f"pulse-fresh-{number}.log"
            status, seconds = run(log, asked.user, NICE if asked.load else 0)
            results.append((status, seconds))
            print(f"run {number}: {verdict(status)} in {clock(seconds)}, {log}")
            for fault in faults(log.read_text(errors="replace")) if status else []:
                print(f"    {fault}")
            sys.stdout.flush()
    print("times: " + ", ".join(clock(seconds) for _, seconds in results))
    failed = sum(status != 0 for status, _ in results)
    print(f"runs: {len(results)}, failed: {failed}")
    return 1 if failed else 0


def run(log: Path, user: "str | None", niceness: int) -> tuple[int, float]:
    """One run of CI in a clone that is removed after it: its status and seconds."""
    home = Path(tempfile.mkdtemp(prefix="pulse-fresh."))
    # The user of the servers reads the embedded ones below the checkout.
    home.chmod(0o755)
    try:
        clone = home / "pulse"
        subprocess.run(
            ["git", "clone", "-q", "--no-local", str(paths.ROOT), str(clone)],
            check=True,
        )
        environment = {**os.environ}
        demoted = {}
        if user is not None:
            entry = pwd.getpwnam(user)
            subprocess.run(["chown", "-R", f"{entry.pw_uid}:{entry.pw_gid}", str(home)])
            demoted = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            environment |= {"HOME": str(home), "USER": user, "LOGNAME": user}
        begun = time.monotonic()
        with log.open("w") as output:
            done = subprocess.run(  # type: ignore[call-overload]
                ["nice", "-n", str(niceness), "bash", ".ci/run"],
                cwd=clone,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                **demoted,
            )
        return done.returncode, time.monotonic() - begun
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def faults(output: str) -> list[str]:
    """What a run says that failed, each once."""
    return list(dict.fromkeys(FAULT.findall(output)))


def verdict(status: int) -> str:
    return "green" if status == 0 else f"RED ({status})"


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
