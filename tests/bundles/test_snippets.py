"""The integration snippets: those that can run here are run, the others are parsed by their language's grammar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from build import envs
from build.bundle import snippets
from build.bundle.archive import extract
from build.bundle.contract import shape_text
from build.bundle.runtimes import facts
from build.errors import InputError
from targets.registry import platforms
from tests.bundles.snippet_facts import facts_for, transformer
from tests.bundles.support import archive_of, contract, folder_of


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits bundles of three platforms, unpacked: ``PLATFORM/…``."""
    place = tmp_path_factory.mktemp("unpacked")
    for platform in ("linux-arm64", "pc", "web"):
        (place / platform).mkdir()
        extract(archive_of(folder_of(built, platform)), place / platform)
    return place


def run(command: Sequence[object], **variables: str) -> str:
    """Run as an integrator would, nothing of this checkout at hand; returns what was printed."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "EDGEPORT_PYTHON")}
    done = subprocess.run(
        list(map(str, command)), env={**kept, **variables}, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("platform", "file"),
    [
        ("pc", "digits_cnn_openvino.py"),
        ("linux-arm64", "digits_cnn_executorch.py"),
        ("linux-arm64", "digits_cnn_litert.py"),
    ],
)
def test_python(unpacked: Path, platform: str, file: str) -> None:
    said = run([sys.executable, unpacked / platform / "snippets" / file])
    assert "-> ['5']" in said
    assert said.endswith("self-test passed\n")


def test_python_refuses_what_the_contract_does_not_allow(unpacked: Path) -> None:
    folder = unpacked / "pc" / "snippets"
    code = f"""
import sys; sys.path.insert(0, {str(folder)!r})
import numpy as np
from digits_cnn_openvino import DigitsCnn
model = DigitsCnn()
for array in (np.zeros((65, 1, 8, 8), "f4"), np.zeros((1, 8, 8), "f4"), np.zeros((1, 1, 8, 8), "f8")):
    try:
        model(array)
    except ValueError as error:
        print("refused:", error)
"""
    assert run([sys.executable, "-c", code]).count("refused:") == 3


def test_a_wrong_answer_fails_the_snippets_self_test(unpacked: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(unpacked / "pc", tmp_path / "pc")
    file = bundle / "selftest" / "000" / "out0.bin"
    file.write_bytes(bytes(len(file.read_bytes())))
    done = subprocess.run(
        [sys.executable, str(bundle / "snippets" / "digits_cnn_openvino.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "FAILED" in done.stderr


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``onnxruntime-web`` is installed, of the version that bundles name."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not on this machine: the JavaScript snippet cannot be run")
    version = facts("ort_web").versions["web"]
    folder = envs.HOME / f"edgeport-node-onnxruntime-web-{version}"
    if not (folder / "node_modules" / "onnxruntime-web").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"onnxruntime-web@{version}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_javascript(unpacked: Path, node_modules: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked / "web", tmp_path / "app" / "bundle")
    (tmp_path / "app" / "node_modules").symlink_to(node_modules / "node_modules")
    said = run(["node", tmp_path / "app" / "bundle" / "snippets" / "selftest.mjs"])
    assert "ok: evaluation/digits/test/0 -> 5" in said
    assert said.endswith("self-test passed\n")
    code = f"""
import {{ readFile }} from 'node:fs/promises';
import {{ DigitsCnn }} from '{tmp_path}/app/bundle/snippets/digits_cnn_ort_web.mjs';
const model = await DigitsCnn.load(await readFile('{tmp_path}/app/bundle/models/ort_web/fp32/model.onnx'));
for (const dims of [[65, 1, 8, 8], [1, 8, 8]]) {{
  const data = new Float32Array(dims.reduce((a, b) => a * b));
  await model.run({{ image: {{ data, dims }} }}).catch((error) => console.log('refused:', error.message));
}}
"""
    (tmp_path / "app" / "refuse.mjs").write_text(code)
    assert run(["node", tmp_path / "app" / "refuse.mjs"]).count("refused:") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "target", "package"),
    [("linux-arm64", "executorch", "executorch/share/cmake"), ("pc", "openvino", "openvino/cmake")],
)
def test_cpp(unpacked: Path, tmp_path: Path, platform: str, target: str, package: str) -> None:
    """Against the C++ runtime in the wheel, with the CMakeLists.txt that the bundle holds."""
    import importlib.util

    spec = importlib.util.find_spec(package.split("/")[0])
    assert spec is not None
    prefix = Path(next(iter(spec.submodule_search_locations or []))) / package.split("/", 1)[1]
    source = unpacked / platform / "snippets" / f"{target}-cpp"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    flags = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
    configure = ["cmake", "-S", source, "-B", tmp_path / "b", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", flags]
    run(configure, PATH=path)
    run(["cmake", "--build", tmp_path / "b"], PATH=path)
    said = run([tmp_path / "b" / f"digits_cnn_{target}", unpacked / platform])
    assert "-> 5\nself-test passed\n" in said


# ---- without a build: any contract ---------------------------------------------------------------------------------


SNIPPETS = [
    (target, language)
    for platform, targets in platforms().items()
    for target in targets
    for language in snippets.languages(target, platform)
]


def test_every_platform_has_a_snippet_for_each_target() -> None:
    for platform, targets in platforms().items():
        for target in targets:
            assert snippets.languages(target, platform), f"{target} on {platform}"
            assert facts(target).library[platform]


@pytest.mark.parametrize("model", ["classifier", "transformer"])
@pytest.mark.parametrize(("target", "language"), SNIPPETS)
def test_a_snippet_is_a_program_of_its_language(target: str, language: str, model: str) -> None:
    value = facts_for(target, **(transformer() if model == "transformer" else {}))
    for name, text in snippets.write(value, language).items():
        assert "@@" not in text
        assert value.artifact["main"] in text or name.endswith(("CMakeLists.txt", "selftest.mjs"))
        if language == "python":
            compile(text, name, "exec")
        if language == "javascript" and shutil.which("node"):
            done = subprocess.run(
                ["node", "--check", "--input-type=module"], input=text, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        if language in ("kotlin", "swift"):
            assert _syntax_errors(language, text) == []


def _syntax_errors(language: str, text: str) -> list[str]:
    """Lines that the language's grammar does not take."""
    import tree_sitter
    import tree_sitter_kotlin
    import tree_sitter_swift

    grammar = {"kotlin": tree_sitter_kotlin, "swift": tree_sitter_swift}[language]
    tree = tree_sitter.Parser(tree_sitter.Language(grammar.language())).parse(text.encode())
    found, queue = [], [tree.root_node]
    while queue:
        node = queue.pop()
        if node.is_error or node.is_missing:
            found.append(f"line {node.start_point.row + 1}: {text.splitlines()[node.start_point.row]}")
        queue += node.children
    return found


def test_several_signatures_and_narrower_numbers_of_a_tflite() -> None:
    value = facts_for("litert", **transformer())
    value.artifact["entry_points"][:] = [{"name": f"b{n}", "sizes": {"s0": n}} for n in (1, 4)]
    (text,) = snippets.write(value, "kotlin").values()
    assert 'sizes["batch"] == 4L -> "b4"' in text
    assert "tokens is int32" in text
    assert "resizeInput" not in text, "it would reach the first signature's input only"
    assert _syntax_errors("kotlin", text) == []
    (text,) = snippets.write(value, "python").values()
    assert "ENTRY_POINTS: dict[str, dict[str, int]] = {'b1': {'batch': 1}, 'b4': {'batch': 4}}" in text
    assert "FILE_DTYPES: dict[str, str] = {'tokens': 'int32'}" in text


@pytest.mark.parametrize("language", ["kotlin", "swift"])
def test_the_grammars_see_an_error(language: str) -> None:
    (text, *_) = snippets.write(facts_for("executorch" if language == "kotlin" else "coreml"), language).values()
    assert _syntax_errors(language, text.replace("run(", "run((", 1))


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a`b", "${x}", "a\\b"])
def test_a_name_that_would_be_code_is_refused(name: str) -> None:
    value = contract()
    value["inputs"][0]["name"] = name
    for target, language in SNIPPETS:
        with pytest.raises(Exception, match="no snippet can hold the name"):
            snippets.write(facts_for(target, inputs=value["inputs"]), language)


def test_names_that_would_be_one_in_a_program_are_refused() -> None:
    value = contract()
    value["inputs"].append({**value["inputs"][0], "name": "a.b"})
    value["inputs"][0]["name"] = "a_b"
    for target, language in SNIPPETS:
        with pytest.raises(InputError, match="two inputs would both be 'a_b'"):
            snippets.write(facts_for(target, inputs=value["inputs"]), language)


def test_shapes_are_written_with_the_authors_names() -> None:
    value = transformer()
    shown = shape_text(value["inputs"][0]["shape"], value["symbols"])
    assert shown == "[batch (1 or more), 8*sequence (8..64 in steps of 8)]"
