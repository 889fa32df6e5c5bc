"""Sessions only, no logic: what each runs is a module of ``build/`` or ``tests/``. ``nox -l`` lists them."""

from __future__ import annotations

import atexit
import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import nox
import nox.registry
from nox.command import CommandFailed

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["build-android"]

ROOT = Path(__file__).parent
PLATFORMS: dict[str, list[str]] = {}
for _name, _row in tomllib.loads((ROOT / "targets" / "targets.toml").read_text()).items():
    for _platform in _row["platforms"]:
        PLATFORMS.setdefault(_platform, []).append(_name)

_exit_codes: list[int] = []


@atexit.register
def _leave_with_our_exit_code() -> None:
    """nox itself ends with 1 whatever a command returned; our codes say what went wrong."""
    if _exit_codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_codes[0])


def _sessions() -> str:
    """The sessions that this command names: they share the options after --."""
    words = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    named = re.split(r"[\s,=]+", " ".join([*words, os.environ.get("NOXSESSION", "")]))
    return " ".join(w for w in named if w in nox.registry.get())


def _python(session: nox.Session, *arguments: str, group: str | None = None) -> None:
    """Run a module of ours, in a dependency group's environment or in nox's own (standard library only)."""
    python = sys.executable
    try:
        if group is not None:
            found = session.run(sys.executable, "-m", "build.envs", group, silent=True, stderr=None, log=False)
            python = str(found).strip().splitlines()[-1]
        session.run(
            python, *arguments, env={"PYTHONPATH": str(ROOT), "EDGEPORT_SESSIONS": _sessions()}, stderr=None, log=False
        )
    except CommandFailed as error:
        code = re.search(r"\d+", str(error))
        _exit_codes.append(int(code[0]) if code else 1)
        raise


def _build(name: str, doc: str) -> Callable[[nox.Session], None]:
    def build(session: nox.Session) -> None:
        _python(session, "-m", "build", name, *session.posargs)

    build.__doc__ = doc
    return nox.session(name=name)(build)


@nox.session
def setup(session: nox.Session) -> None:
    """Install the system packages (cross compiler, qemu, adb, chromium), or print the command that does."""
    _python(session, "-m", "build.setup", *session.posargs)


for _platform, _targets in PLATFORMS.items():
    _build(f"build-{_platform}", f"Lower and verify for {_platform}: {', '.join(_targets)}.")
_build("build-ios", f"Alias of build-apple: {', '.join(PLATFORMS['apple'])}.")
_build("build", "Lower and verify every target.")


@nox.session
def preflight(session: nox.Session) -> None:
    """Say in seconds which ops, dtypes and dynamic dimensions each target takes, rewrites or refuses."""
    _python(session, "-m", "build.preflight", *session.posargs)


@nox.session
def blame(session: nox.Session) -> None:
    """Find the first node of a program whose value diverges on a target, and say what to do about it."""
    _python(session, "-m", "build.blame", *session.posargs)


@nox.session
def check(session: nox.Session) -> None:
    """Judge every built artifact by its budgets, and say which one to ship or what stops each."""
    _python(session, "-m", "build.check", *session.posargs)


def _release(name: str, doc: str) -> None:
    def release(session: nox.Session) -> None:
        _python(session, "-m", "build.bundle", name, *session.posargs, group="release")

    release.__doc__ = doc
    nox.session(name=name)(release)


for _platform, _targets in PLATFORMS.items():
    _release(f"bundle-{_platform}", f"Pack the verified artifacts for {_platform} into one release archive.")
_release("bundle", "Pack one release archive per platform.")
_release("verify-bundle", "Check a bundle as its receiver would: hashes, signature, contract, self-test.")
_release("reproduce", "Rebuild a bundle in a clean place, and compare byte by byte.")
_release("promote", "Publish a bundle's version, and let a channel point to it: NAME VERSION CHANNEL.")
_release("rollback", "Let a channel point to the version before: NAME CHANNEL.")
_release("history", "Print what the channels of a bundle pointed to: NAME.")


@nox.session
def cases(session: nox.Session) -> None:
    """Run every public failing input through the bare converters and through ours, and print the table."""
    _python(session, "-m", "tests.cases", *session.posargs, group="tests")


@nox.session(name="bench-build")
def bench_build(session: nox.Session) -> None:
    """Time a full build, an unchanged rebuild and peak memory against hand-written converter scripts."""
    _python(session, "-m", "tests.bench_build", *session.posargs)


def _measure(name: str, doc: str, group: str = "bench") -> None:
    def measure(session: nox.Session) -> None:
        _python(session, "-m", "device_bench", name, *session.posargs, group=group)

    measure.__doc__ = doc
    nox.session(name=name)(measure)


_measure("bench-android", "Measure the built artifacts on Android devices, over adb.")
_measure("bench-linux-arm64", "Measure the built artifacts on arm64 boards, over ssh.")
_measure("bench-local", "Measure the built artifacts on this machine, with the native harness.")
_measure("bench-apple", "Measure the built Core ML packages on this Mac; elsewhere, say what was verified.")
_measure("bench-pc", "Measure the built OpenVINO IR on this machine: CPU, GPU, NPU.")
_measure("bench-web", "Measure the built artifacts in a browser: ONNX Runtime Web and LiteRT.js.", group="bench-web")


def _results(name: str, module: str, doc: str, group: str = "results") -> None:
    def results(session: nox.Session) -> None:
        _python(session, "-m", module, *session.posargs, group=group)

    results.__doc__ = doc
    nox.session(name=name)(results)


_results("compare", "device_bench.compare", "Compare two runs, versions, branches or devices: A B.")
_results("trend", "device_bench.trend", "Show figures over time, and name the points at which they changed.")
_results("publish-results", "device_bench.store", "Copy a run to where a team keeps its results: RUN URL.")
_results(
    "export", "device_bench.export", "Write results as CSV, Parquet, JUnit, OpenMetrics or TFLite's JSON.", "export"
)


@nox.session(name="build-harness")
def build_harness(session: nox.Session) -> None:
    """Build the native harness for x86-64 and arm64."""
    _python(session, "-m", "device_bench.harness.build", *session.posargs)


@nox.session(name="bench-harness")
def bench_harness(session: nox.Session) -> None:
    """Compare the native harness's figures with other tools' on this machine."""
    _python(session, "-m", "tests.bench_harness", *session.posargs, group="bench")


@nox.session
def report(session: nox.Session) -> None:
    """Write what was built and measured as one HTML file, and the same as Markdown and JSON."""
    _python(session, "-m", "device_bench.report", *session.posargs, group="report")


@nox.session(name="bench-results")
def bench_results(session: nox.Session) -> None:
    """Time reading 100,000 measurements: filter and summarise, from a fresh process."""
    _python(session, "-m", "tests.bench_results", *session.posargs, group="tests")


@nox.session(name="bench-web-harness")
def bench_web_harness(session: nox.Session) -> None:
    """Compare the web harness's figures with a bare page's loop in the same browser."""
    _python(session, "-m", "tests.bench_web", *session.posargs, group="bench-web")


@nox.session
def emulator(session: nox.Session) -> None:
    """Start emulated Android devices that the real adb connects to; Ctrl-C ends them."""
    _python(session, "-m", "device_bench.emulator", *session.posargs, group="bench")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests: real converters and runtimes, one environment that holds them all."""
    # Two files at a time; a file's tests stay together, since they share what was built for the first of them.
    everyday = ["-m", "not slow", "-n", "2", "--dist", "loadfile"]
    _python(session, "-m", "pytest", *(session.posargs or everyday), group="tests")


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff and mypy --strict on everything, tests included."""
    _python(session, "-m", "ruff", "check", ".", group="lint")
    _python(session, "-m", "ruff", "format", "--check", ".", group="lint")
    _python(session, "-m", "mypy", ".", group="lint")
