"""Build the native harness: ``python -m device_bench.harness.build [ARCH…]``. Cached by content, stripped."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import envs, shell
from build.cache import key_of, list_files, lock, put_folder, sha256_file, staging, sweep
from build.errors import INTERRUPTED_EXIT, EdgeportError, InputError, MissingToolError
from build.log import fail, say
from device_bench.harness import wheels

NATIVE = Path(__file__).with_name("native")
BUNDLE = "bundle.json"
SCHEMA_VERSION = 1
_JSON_HEADERS = Path("/usr/include/nlohmann")
#: part of the key: raised when this file's own steps change what a bundle holds.
_RECIPE = 1


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """How to build for one architecture.

    Attributes:
        prefix: of the compiler and binutils.
        cmake: further arguments for CMake.
        sysroot: where the C and C++ libraries lie that go to the device; None where the host runs the harness itself.
        loader: the dynamic loader among them: a device's own loader may be another, or none (Android).
    """

    prefix: str
    cmake: tuple[str, ...] = ()
    sysroot: Path | None = None
    loader: str | None = None


TOOLCHAINS = {
    "x86_64": Toolchain(prefix=""),
    "aarch64": Toolchain(
        prefix="aarch64-linux-gnu-",
        cmake=(f"-DCMAKE_TOOLCHAIN_FILE={NATIVE / 'cmake' / 'aarch64.cmake'}",),
        sysroot=Path("/usr/aarch64-linux-gnu/lib"),
        loader="ld-linux-aarch64.so.1",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A built harness: everything that one architecture needs.

    Attributes:
        version: names the harness in results: the first digits of its content key.
        engines: engine -> {"program", "files" (what to push for it, the program included), "runtime"}.
        files: file name -> sha256.
    """

    folder: Path
    arch: str
    version: str
    loader: str | None
    engines: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str]

    def command(self, engine: str, job: str) -> list[str]:
        """The command line, run from the folder that holds the bundle's files."""
        program = f"./{self.engines[engine]['program']}"
        if self.loader is None:
            return [program, job]
        return [f"./{self.loader}", "--library-path", ".", program, job]


def ensure(arch: str) -> Bundle:
    """The harness for ``arch``, built first when its sources or runtimes have changed.

    Raises:
        InputError: an architecture that the harness is not built for.
        MissingToolError: no compiler, or the build failed.
    """
    if arch not in TOOLCHAINS:
        raise InputError(f"the harness is not built for '{arch}'", remedy=f"Architectures: {', '.join(TOOLCHAINS)}.")
    toolchain = TOOLCHAINS[arch]
    key = _key(arch, toolchain)
    home = envs.HOME / "edgeport-native"
    place = home / f"{arch}-{key[:16]}"
    if not (place / BUNDLE).is_file():
        with lock(home, place.name):
            if not (place / BUNDLE).is_file():
                _make(arch, toolchain, key, home, place)
    return read_bundle(place)


def read_bundle(folder: Path) -> Bundle:
    """Read ``bundle.json``."""
    value = json.loads((folder / BUNDLE).read_text())
    value.pop("schema_version")
    return Bundle(folder=folder, **value)


def _compiler(toolchain: Toolchain) -> str:
    name = f"{toolchain.prefix}g++"
    if shutil.which(name) is None:
        raise MissingToolError(f"cannot run '{name}': it is not installed", remedy="Run: nox -s setup")
    return shell.run([name, "--version"]).stdout.splitlines()[0]


def _key(arch: str, toolchain: Toolchain) -> str:
    if not (_JSON_HEADERS / "json.hpp").is_file():
        raise MissingToolError("the package nlohmann-json3-dev is not installed", remedy="Run: nox -s setup")
    return key_of(
        recipe=_RECIPE,
        arch=arch,
        compiler=_compiler(toolchain),
        tools=envs.requirements("harness"),
        runtimes={name: runtime.version for name, runtime in wheels.RUNTIMES.items()},
        json=sha256_file(_JSON_HEADERS / "detail" / "abi_macros.hpp"),
        sources={str(p): sha256_file(NATIVE / p) for p in list_files(NATIVE)},
    )


def _make(arch: str, toolchain: Toolchain, key: str, home: Path, place: Path) -> None:
    python = envs.ensure("harness").python
    roots = {name: wheels.fetch(runtime, arch) for name, runtime in wheels.RUNTIMES.items()}
    say(f"building the harness for {arch}")
    sweep(home)
    with staging(home) as folder:
        work, out = folder / "work", folder / "bundle"
        # Only these headers: the folder that they are installed in would bring the host's C library headers too.
        shutil.copytree(_JSON_HEADERS, folder / "include" / "nlohmann")
        tools = {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        cmake = str(python.parent / "cmake")
        defined = {
            "CMAKE_INSTALL_PREFIX": out,
            "CMAKE_BUILD_TYPE": "Release",
            "HARNESS_VERSION": key[:12],
            "JSON_INCLUDE": folder / "include",
            "EXECUTORCH_ROOT": roots["executorch"],
            "LITERT_ROOT": roots["litert"],
            "LITERT_VERSION": wheels.RUNTIMES["litert"].version,
        }
        configure = [cmake, "-S", str(NATIVE), "-B", str(work), "-G", "Ninja", *toolchain.cmake]
        shell.run([*configure, *(f"-D{name}={value}" for name, value in defined.items())], env=tools)
        shell.run([cmake, "--build", work], env=tools)
        shell.run([cmake, "--install", work], env=tools)
        _finish(arch, toolchain, key, out, roots)
        put_folder(out, place)


def _finish(arch: str, toolchain: Toolchain, key: str, out: Path, roots: Mapping[str, Path]) -> None:
    """Gather the libraries, strip everything, write ``bundle.json``."""
    folders = [roots["executorch"] / "lib", roots["litert"]]
    if toolchain.sysroot is not None:
        folders.append(toolchain.sysroot)
    engines = {}
    for name, runtime in wheels.RUNTIMES.items():
        program = f"harness-{name}"
        needed = _closure(toolchain, out / program, folders)
        if toolchain.loader is not None:
            needed |= {toolchain.loader}
        for library in needed:
            if not (out / library).exists():
                shutil.copy(next(f / library for f in folders if (f / library).exists()), out / library)
        engines[name] = {"program": program, "files": sorted({program, *needed}), "runtime": runtime.version}
    for file in list_files(out):
        shell.run([f"{toolchain.prefix}strip", "--strip-unneeded", out / file])
        (out / file).chmod(0o755)
    value = {
        "schema_version": SCHEMA_VERSION,
        "arch": arch,
        "version": key[:12],
        "loader": toolchain.loader,
        "engines": engines,
        "files": {str(f): sha256_file(out / f) for f in list_files(out)},
    }
    (out / BUNDLE).write_text(json.dumps(value, indent=1) + "\n")


def _closure(toolchain: Toolchain, program: Path, folders: Sequence[Path]) -> set[str]:
    """Names of the shared libraries that a program needs and that lie in ``folders``, those of libraries included."""
    found: set[str] = set()
    queue = [program]
    while queue:
        listing = shell.run([f"{toolchain.prefix}readelf", "--dynamic", "--wide", queue.pop()]).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.+?)\]", listing):
            place = next((f / name for f in folders if (f / name).exists()), None)
            if place is None and toolchain.sysroot is not None:
                raise MissingToolError(f"the harness needs '{name}', which the cross toolchain does not have")
            if place is not None and name not in found:
                found.add(name)
                queue.append(place)
    return found


def host_arch() -> str:
    """This machine's architecture, as the toolchains are named."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())


def main(argv: Sequence[str]) -> int:
    """Build for the named architectures (default: all), and print one line for each."""
    try:
        for arch in argv or TOOLCHAINS:
            bundle = ensure(arch)
            size = sum((bundle.folder / f).stat().st_size for f in bundle.files)
            runtimes = ", ".join(f"{name} {e['runtime']}" for name, e in bundle.engines.items())
            print(f"harness {bundle.version} {arch}: {runtimes}; {len(bundle.files)} files, {size / 1e6:.1f} MB")
    except EdgeportError as error:
        fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        fail(EdgeportError("interrupted"))
        return INTERRUPTED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
