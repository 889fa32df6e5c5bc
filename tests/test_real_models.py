"""The real models on every target, verified: 15 artifacts, and EfficientNet's answers for two photographs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.record import read_record
from build.verify.check import reference_calls
from targets import registry
from tests.conftest import ROOT, Run, build_in

MODELS = ("digits_cnn", "efficientnet_lite0", "minilm")
#: The temple of scikit-learn's china.jpg is a bell cote (442), its flower.jpg a daisy (985), in ImageNet's numbering.
PHOTOGRAPHS = {"evaluation/china/whole": 442, "evaluation/flower/whole": 985}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The command of the README's first page for all models and targets."""
    named = [word for model in MODELS for word in ("--model", model)]
    return build_in(ROOT, tmp_path_factory.mktemp("real") / "out", *named)


def top_classes(program: Path, artifact: Path, target: str) -> dict[str, int]:
    """What an artifact answers for the photographs, in its own runtime."""
    record = read_record(program)
    manifest = json.loads((artifact / "manifest.json").read_text())
    module = registry.load(registry.select([target])[0])
    runner = module.load(artifact, [manifest["main"]], record.signature)
    return {
        call.id: int(runner.run(inputs)["logits"].argmax())
        for call, inputs, _ in reference_calls(program, record)
        if call.id in PHOTOGRAPHS
    }


@pytest.mark.slow
def test_all_models_on_all_targets(everything: Run) -> None:
    assert everything.code == 0, everything.stdout
    assert len(everything.rows) == len(MODELS) * len(registry.all_targets())
    assert {r["status"] for r in everything.rows} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("target", list(registry.all_targets()))
def test_verified_at_the_bounds_and_between(everything: Run, model: str, target: str) -> None:
    manifest: dict[str, Any] = json.loads((everything.out / model / target / "fp32" / "manifest.json").read_text())
    symbol = manifest["inputs"][0]["shape"][0]["symbol"]
    assert {1, 7, 64} <= {s[symbol] for s in manifest["verification"]["sizes"]}
    if model == "minilm":
        sequence = manifest["inputs"][0]["shape"][1]["symbol"]
        assert len({s[sequence] for s in manifest["verification"]["sizes"]}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("target", list(registry.all_targets()))
def test_photographs_have_their_known_classes(everything: Run, target: str) -> None:
    out = everything.out / "efficientnet_lite0"
    assert top_classes(out / "program", out / target / "fp32", target) == PHOTOGRAPHS
