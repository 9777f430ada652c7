"""Build the package with its SQL: pyproject.toml says all the rest.

From a checkout the products of extension/ are built and copied into the package; a
source distribution has them already.
"""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
EXTENSION = HERE / "extension"
SHARE = HERE / "python" / "pulse" / "share"


def bring_sql() -> None:
    if not (EXTENSION / "pulse.control").exists():
        return
    subprocess.run(["make", "-s", "-C", str(EXTENSION)], check=True)
    shutil.rmtree(SHARE, ignore_errors=True)
    (SHARE / "extension").mkdir(parents=True)
    for script in (EXTENSION / "build").glob("pulse.*sql"):
        shutil.copy(script, SHARE)
    shutil.copy(EXTENSION / "pulse.control", SHARE / "extension")
    for directory in ("released", "build"):
        for script in (EXTENSION / directory).glob("pulse--*.sql"):
            shutil.copy(script, SHARE / "extension")


class BuildPy(build_py):
    def run(self) -> None:
        bring_sql()
        super().run()


class Sdist(sdist):
    def run(self) -> None:
        bring_sql()
        super().run()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
