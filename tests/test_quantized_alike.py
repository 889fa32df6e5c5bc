"""Quantised precisions, what is alike on three targets: size, nearness, layers kept in float, names of nodes, and
programs that are quantised already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from build.errors import InputError, LoweringError
from targets.contract import Arithmetic
from targets.precisions import PRECISIONS
from targets.registry import all_targets, load
from tests.quantized_support import Quantized, images, quantized, quantized_program, small_program

TARGETS = ("openvino", "ort_web", "coreml")
CELLS = [
    (t, p.name)
    for t in TARGETS
    for p in PRECISIONS.values()
    if p.quantized and not all_targets()[t].unavailable(p.name)
]
#: where a target keeps its weights: the rest of an artifact is a description that does not shrink
WEIGHTS = {"openvino": "*.bin", "ort_web": "*.onnx", "coreml": "weight.bin"}
#: of a cell: the largest share of fp32's weights, the least dB
EXPECTED = {
    ("coreml", "int8-weight"): (0.35, 38),
    ("coreml", "int8-static"): (0.4, 30),
    ("coreml", "int4-weight"): (0.35, 16),
    ("openvino", "int8-weight"): (0.3, 38),
    ("openvino", "int8-static"): (0.35, 28),
    ("openvino", "int4-weight"): (0.25, 16),
    ("ort_web", "int8-weight"): (0.35, 38),
    ("ort_web", "int8-dynamic"): (0.4, 32),
    ("ort_web", "int8-static"): (0.4, 32),
    ("ort_web", "int4-weight"): (0.3, 16),
}
#: int8-static shows the same of these, in the everyday tests
_LATER = (("coreml", "int8-weight"), ("coreml", "int4-weight"), ("openvino", "int8-weight"))
Lower = Callable[..., Quantized]
every_cell = pytest.mark.parametrize(("target", "precision"), CELLS, ids=["-".join(c) for c in CELLS])
most_cells = pytest.mark.parametrize(
    ("target", "precision"),
    [pytest.param(*c, marks=pytest.mark.slow if c in _LATER else (), id="-".join(c)) for c in CELLS],
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_program(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def lowered(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Lower:
    """The small network at a target and precision; the same again is not lowered again."""
    found: dict[tuple[object, ...], Quantized] = {}

    def get(target: str, precision: str, keep: tuple[str, ...] = ()) -> Quantized:
        key = (target, precision, keep)
        if key not in found:
            folder = tmp_path_factory.mktemp("lowered") / "a"
            found[key] = quantized(load(all_targets()[target]), program, folder, precision, keep=keep)
        return found[key]

    return get


def _weights(target: str, made: Quantized) -> int:
    return sum(f.stat().st_size for f in made.folder.rglob(WEIGHTS[target]))


@every_cell
def test_a_network_is_smaller_and_near(lowered: Lower, target: str, precision: str) -> None:
    share, least = EXPECTED[target, precision]
    made = lowered(target, precision)
    assert made.runner.signature() == made.signature
    assert 0 < _weights(target, made) < share * _weights(target, lowered(target, "fp32"))
    assert not made.lowered.unquantized
    ranged = PRECISIONS[precision].activations != "float"
    assert made.lowered.arithmetic == (Arithmetic(integers=5) if ranged else None)
    for count in (1, 7, 16):
        assert made.snr([images(count)]) > least


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("ort_web", "4-bit weights: MatMul (2); 8-bit weights: Conv (3)"),
        # NNCF leaves a network's last product at 8 bits.
        ("openvino", "4-bit weights: MatMul (1); 8-bit weights: Convolution (2), GroupConvolution (1), MatMul (1)"),
    ],
)
def test_which_weights_have_four_bits_is_told(lowered: Lower, target: str, told: str) -> None:
    assert lowered(target, "int4-weight").lowered.contract["weights"] == told
    assert "weights" not in lowered(target, "int8-weight").lowered.contract


@pytest.mark.parametrize("target", all_targets())
def test_four_bits_are_no_warning(lowered: Lower, target: str) -> None:
    made = lowered(target, "int4-weight").lowered
    assert not [line for line in made.warnings if "4-bit" in line]
    assert "4-bit" in made.contract["weights"]


@most_cells
def test_two_lowerings_give_the_same_bytes(
    lowered: Lower, program: Path, tmp_path: Path, target: str, precision: str
) -> None:
    again = quantized(load(all_targets()[target]), program, tmp_path / "b", precision)
    assert lowered(target, precision).bytes() == again.bytes()


@most_cells
def test_a_kept_layer_stays_float(lowered: Lower, target: str, precision: str) -> None:
    """The first linear layer holds most weights: kept, they are stored as floats, and nothing else gets worse."""
    small, kept = lowered(target, precision), lowered(target, precision, ("linear",))
    floats = 512 * 64
    assert _weights(target, kept) - _weights(target, small) > 2 * floats
    assert not kept.lowered.unquantized
    assert kept.runner.signature() == kept.signature
    assert kept.snr([images(16)]) > small.snr([images(16)]) - 0.5


@pytest.mark.parametrize("target", TARGETS)
def test_everything_kept_is_the_float_program(lowered: Lower, target: str) -> None:
    names = ("conv2d", "conv2d_1", "conv2d_2", "linear", "linear_1", "batch_norm", "relu", "max_pool2d")
    made = lowered(target, "int8-static", names)
    assert made.snr([images(16)]) > 80
    assert not made.lowered.unquantized
    assert made.lowered.arithmetic == Arithmetic(integers=0)


@every_cell
def test_a_name_that_is_no_node_is_an_error(program: Path, tmp_path: Path, target: str, precision: str) -> None:
    with pytest.raises(InputError, match=r"lineer.*no such node"):
        quantized(load(all_targets()[target]), program, tmp_path / "a", precision, keep=("lineer",))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("steps", [127, 63])
def test_a_program_that_is_quantised_already(
    lowered: Lower, program: Path, tmp_path: Path, target: str, steps: int
) -> None:
    """Its own integers and ranges are used: no more than a few rounding steps between PyTorch's result and ours."""
    own = quantized_program(program, tmp_path, weight_steps=steps)
    made = quantized(load(all_targets()[target]), own, tmp_path / "own", "int8-static", calls=())
    assert 0 < _weights(target, made) < 0.4 * _weights(target, lowered(target, "fp32"))
    assert not made.lowered.unquantized
    # OpenVINO's kernels overflow at a full range on CPUs without VNNI: there such a program is rounded in float.
    in_float = target == "openvino" and steps == 127
    layers = {"Convolution": 2, "GroupConvolution": 1, "MatMul": 2}
    assert made.lowered.arithmetic == Arithmetic(integers=0 if in_float else 5, floats=layers if in_float else {})
    for count in (1, 7, 16):
        (got,), (want,) = made.outputs([images(count)])
        step = float(np.diff(np.unique(want)).min())
        assert np.abs(got - want).max() <= 2.01 * step
        assert np.mean(np.abs(got - want) > 0.5 * step) < 0.25


@pytest.mark.parametrize("target", TARGETS)
def test_a_quantised_program_has_its_own_precision(program: Path, tmp_path: Path, target: str) -> None:
    module, own = load(all_targets()[target]), quantized_program(program, tmp_path)
    with pytest.raises(LoweringError, match="brings its own quantisation"):
        quantized(module, own, tmp_path / "a", "int8-weight")
    with pytest.raises(InputError, match=r"--keep-float linear.*own quantisation"):
        quantized(module, own, tmp_path / "b", "int8-static", keep=("linear",))
