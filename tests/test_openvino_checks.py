"""What runners check around a runtime call, and the signature as JSON (targets/checks.py)."""

from __future__ import annotations

import numpy as np
import pytest

from build.errors import InputError, VerificationError
from targets.checks import check_inputs, check_outputs, evaluate, signature_from_json, signature_to_json
from targets.contract import DynamicDim, Signature, TensorSpec

BATCH = DynamicDim(symbol="b", lo=1, hi=64)
EIGHTS = DynamicDim(symbol="n", lo=8, hi=64, scale=8)
OPEN = DynamicDim(symbol="t", lo=2, hi=None)
SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="x", dtype="float32", shape=(BATCH, EIGHTS)),
        TensorSpec(name="ids", dtype="int64", shape=(BATCH, OPEN)),
    ),
    outputs=(
        TensorSpec(name="y", dtype="float32", shape=(BATCH, DynamicDim(symbol="b*t", lo=2, hi=None))),
        TensorSpec(name="z", dtype="bool", shape=(DynamicDim(symbol="u0", lo=0, hi=9),)),
    ),
)


def inputs(b: int = 2, n: int = 16, b2: int = 2, t: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.zeros((b, n), np.float32), "ids": np.zeros((b2, t), np.int64)}


def outputs(b: int = 2, bt: int = 6, z: int = 4) -> dict[str, np.ndarray]:
    return {"y": np.zeros((b, bt), np.float32), "z": np.zeros(z, bool)}


def test_signature_survives_json_and_its_text_is_stable() -> None:
    text = signature_to_json(SIGNATURE)
    assert signature_from_json(text) == SIGNATURE
    assert signature_to_json(signature_from_json(text)) == text


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 99, "inputs": [], "outputs": []}', '{"version": 1, "inputs": 3}']
)
def test_a_damaged_signature_is_refused(text: str) -> None:
    with pytest.raises(VerificationError):
        signature_from_json(text)


def test_inputs_fix_the_root_symbols() -> None:
    assert check_inputs(SIGNATURE, inputs()) == {"b": 2, "n": 2, "t": 3}
    assert check_inputs(SIGNATURE, inputs(t=100_000))["t"] == 100_000


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"b": 0, "b2": 0}, "outside the program's range 1..64"),
        ({"b": 65, "b2": 65}, "outside the program's range 1..64"),
        ({"n": 12}, "8..64 in steps of 8"),
        ({"n": 72}, "8..64 in steps of 8"),
        ({"b2": 3}, "must equal b = 2"),
        ({"t": 1}, "2 or more"),
    ],
)
def test_a_size_outside_its_range_is_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_inputs(SIGNATURE, inputs(**sizes))


def test_names_dtypes_and_ranks_are_checked() -> None:
    good = inputs()
    with pytest.raises(InputError, match="takes"):
        check_inputs(SIGNATURE, {"x": good["x"]})
    with pytest.raises(InputError, match="float64"):
        check_inputs(SIGNATURE, {**good, "x": good["x"].astype(np.float64)})
    with pytest.raises(InputError, match="2 dimensions"):
        check_inputs(SIGNATURE, {**good, "x": good["x"][0]})


def test_outputs_must_have_the_implied_shape() -> None:
    sizes = check_inputs(SIGNATURE, inputs())
    check_outputs(SIGNATURE, sizes, outputs(), "runtime")
    for wrong in (outputs(b=3), outputs(bt=5), outputs(z=10), {"y": outputs()["y"]}):
        with pytest.raises(VerificationError):
            check_outputs(SIGNATURE, sizes, wrong, "runtime")
    retyped = {**outputs(), "y": outputs()["y"].astype(np.float16)}
    with pytest.raises(VerificationError, match="float16"):
        check_outputs(SIGNATURE, sizes, retyped, "runtime")


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("b*(t//2) + 1", 5),
        ("Max(1, b - t)", 1),
        ("Mod(t, 2)", 1),
        ("t**2", 25),
        ("u0", None),
        ("__import__('os')", None),
        ("b.real", None),
        ("b +", None),
        ("t//(b - 2)", None),
    ],
)
def test_formulas_are_evaluated_without_eval(formula: str, value: int | None) -> None:
    assert evaluate(formula, {"b": 2, "t": 5}) == value
