"""The Kotlin snippets: compiled by Kotlin's own compiler and run on a JVM.

What the libraries of the runtimes declare is written down beside this file, with a stand-in for what they do: no phone
and no Android SDK is needed, and none is shown to work.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from build import envs
from build.bundle import snippets
from build.bundle.archive import extract
from tests.bundles.snippet_facts import facts_for, transformer
from tests.bundles.support import archive_of, folder_of

#: a package of PyPI that holds the compiler; nothing else of it is used
COMPILER = "kotlin-jupyter-kernel==0.19.0.944"
PARTS = Path(__file__).parent / "android"


@pytest.fixture(scope="module")
def jars() -> Path:
    """A folder with the compiler and Kotlin's standard library."""
    if shutil.which("java") is None:
        pytest.skip("java is not on this machine: Kotlin's compiler cannot be run")
    folder = envs.HOME / f"edgeport-{COMPILER.replace('==', '-')}"
    found = folder / "run_kotlin_kernel" / "jars"
    if not found.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), COMPILER]
        subprocess.run(command, check=True, capture_output=True)
    return found


def compiled(jars: Path, sources: Sequence[Path], out: Path) -> subprocess.CompletedProcess[str]:
    """Compile; a warning is an error."""
    (library,) = jars.glob("kotlin-stdlib-[0-9]*.jar")
    main = ["-cp", f"{jars}/*", "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"]
    options = ["-no-stdlib", "-no-reflect", "-Werror", "-classpath", str(library), "-d", str(out)]
    return subprocess.run(
        ["java", "-Xmx1g", *main, *options, *map(str, sources)], capture_output=True, text=True, check=False
    )


def sources(target: str, bundle: Path, folder: Path) -> list[Path]:
    """The digits bundle's snippet, others of models that are harder to write down, the library, and an app."""
    other = facts_for(target, **transformer())
    several = facts_for(target, **{**transformer(), "model": "several"})
    several.artifact["entry_points"][:] = [{"name": f"b{n}", "sizes": {"s0": 1, "s1": n}} for n in (1, 2)]
    found = [bundle / "snippets" / f"digits_cnn_{target}.kt", PARTS / f"{target}.kt", PARTS / f"{target}_app.kt"]
    for facts in (other, several) if target == "litert" else (other,):
        for name, text in snippets.write(facts, "kotlin").items():
            found.append(folder / Path(name).name)
            found[-1].write_text(text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", ["executorch", "litert"])
def test_an_app_compiles_and_runs(built: Path, jars: Path, tmp_path: Path, target: str) -> None:
    """It gets the answer of the self-test through the snippet, and is refused what the contract does not allow."""
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    bundle.mkdir()
    extract(archive_of(folder_of(built, "android")), bundle)
    done = compiled(jars, sources(target, bundle, tmp_path), out)
    assert done.returncode == 0, done.stderr
    contract = json.loads((bundle / "contract.json").read_text())
    (row,) = (a for a in contract["artifacts"] if a["target"] == target)
    (library,) = jars.glob("kotlin-stdlib-[0-9]*.jar")
    app = ["java", "-cp", f"{out}:{library}", f"{target.title()}_appKt"]
    done = subprocess.run(
        [*app, str(bundle), row["main"], row["entry_points"][0]["name"]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "-> 5\n" in done.stdout
    assert done.stdout.count("refused: ") == 4


@pytest.mark.slow
def test_the_compiler_sees_what_a_grammar_cannot(jars: Path, tmp_path: Path) -> None:
    (text,) = snippets.write(facts_for("executorch"), "kotlin").values()
    (tmp_path / "x.kt").write_text(text.replace("dataAsFloatArray", "dataAsFloats"))
    done = compiled(jars, [tmp_path / "x.kt", PARTS / "executorch.kt"], tmp_path / "out")
    assert done.returncode != 0
    assert "dataAsFloats" in done.stderr
