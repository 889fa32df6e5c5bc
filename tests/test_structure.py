"""The shape of the tree: imports form a DAG, modules import without toolchains, facts and modules agree."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from build import envs
from models import registry as models
from targets import registry as targets
from targets.contract import Runner, Target
from tests.conftest import ROOT, environment

#: Lower layers first. A module may import from its own layer's package or from a lower layer.
LAYERS = (
    ("build.errors", "build.log"),
    ("build.shell", "build.cache", "build.envs"),
    ("targets.contract",),
    ("build.program", "build.legalize", "build.quantize"),
    ("targets", "models", "device_bench.devices", "device_bench.harness", "build.verify.compare"),
    # The lab reads what the build writes, and the build's checks read what the lab writes.
    ("build", "device_bench"),
)


def _modules() -> list[Path]:
    return [p for folder in ("build", "targets", "models", "device_bench") for p in (ROOT / folder).rglob("*.py")]


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _layer(name: str) -> int:
    matches = [
        (len(prefix), level)
        for level, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if name == prefix or name.startswith(prefix + ".")
    ]
    return max(matches)[1]


def _imports(path: Path, *, top_level: bool) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join((*parts, *([node.module] if node.module else [])))
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_imports_point_down(path: Path) -> None:
    name = _name(path)
    ours = [
        i for i in _imports(path, top_level=False) if i.split(".")[0] in ("build", "targets", "models", "device_bench")
    ]
    for imported in ours:
        assert _layer(imported) <= _layer(name), f"{name} imports {imported} from a higher layer"
    if name.startswith("targets.") and path.parent.name == "targets":
        own = {c.replace("/", ".").removesuffix(".py") for f in targets.all_targets().values() for c in f.code}
        mine = next((f for f in targets.all_targets().values() if f.module == name), None)
        if mine is not None:
            allowed = {c.replace("/", ".").removesuffix(".py") for c in mine.code}
            for imported in ours:
                foreign = [o for o in own - allowed if imported == o or imported.startswith(o + ".")]
                assert not foreign, f"target {name} imports another target's {imported}"


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_toolchains_are_imported_inside_functions(path: Path) -> None:
    allowed = {"numpy", "build", "targets", "models", "device_bench", "__future__", *sys.stdlib_module_names}
    outside = {i.split(".")[0] for i in _imports(path, top_level=True)} - allowed
    assert not outside, f"{_name(path)} imports {outside} at import time"


def test_every_target_row_has_a_module_that_satisfies_the_protocol() -> None:
    for facts in targets.all_targets().values():
        module = targets.load(facts)
        for member in ("REWRITES", "preflight", "lower", "load"):
            assert hasattr(module, member), f"{facts.module} lacks {member}"
        assert (ROOT / facts.code[0]).is_file()
        assert envs.requirements(facts.group)
    assert Target is not None
    assert Runner is not None


def test_every_group_is_pinned() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    for name in groups:
        for line in envs.requirements(name):
            assert "==" in line, f"group {name}: '{line}' is not pinned"


def test_constraints_agree_with_the_groups() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    normal = {k.lower().replace("_", "-"): v for k, v in pins.items()}
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    for group in groups:
        for line in envs.requirements(group):
            package, version = line.split("==")
            assert normal[package.lower().replace("_", "-")] == version


def test_model_names_are_unique_and_their_files_exist() -> None:
    for facts in models.available():
        assert (ROOT / (facts.module.replace(".", "/") + ".py")).is_file()


def test_schemas_are_schemas() -> None:
    for path in ROOT.glob("build/*.schema.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_an_unchanged_build_does_not_need_torch() -> None:
    """The driver and all it imports: standard library only."""
    code = (
        "import sys; import build.driver, build.options, build.summary, build.sources; "
        "print([m for m in ('torch', 'numpy', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
