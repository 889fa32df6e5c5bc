"""Compressed weights and quantised activations: the documentation's examples, and coremltools' own decompression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from targets import mil
from tests.mil_support import Array, operations, run, save_package, specification

RNG = np.random.default_rng(2)


def _constant(directory: Path, target: str, build: Any) -> Array:
    """The value of a constant expression, seen by adding it to zeros of its shape."""
    from coremltools.converters.mil import Builder as mb

    shapes: list[tuple[int, ...]] = []

    def body(x: Any) -> Any:
        value = build(mb)
        shapes.append(tuple(int(n) for n in value.shape))
        return mb.add(x=value, y=x)

    (got,) = run(directory, body, {"x": np.zeros(1, np.float32)}, target=target)
    assert got.shape == shapes[0]
    return got


def test_affine(tmp_path: Path) -> None:
    data = np.array([[-128, 0, 127], [3, -4, 5]], np.int8)
    scale, zero = np.array([0.5, 2.0], np.float32), np.array([3, -1], np.int8)
    got = _constant(
        tmp_path,
        "iOS16",
        lambda mb: mb.constexpr_affine_dequantize(quantized_data=data, scale=scale, zero_point=zero, axis=0),
    )
    np.testing.assert_allclose(got, (data.astype(np.float32) - zero[:, None]) * scale[:, None])


def test_packed_lookup_table(tmp_path: Path) -> None:
    # the example in the documentation: five 2-bit indices, 0 3 2 1 and, in the second byte, 3
    indices, lut = np.array([0b01101100, 0b11], np.uint8), np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    got = _constant(
        tmp_path,
        "iOS16",
        lambda mb: mb.constexpr_lut_to_dense(indices=indices, lut=lut, shape=np.array([5], np.uint32)),
    )
    np.testing.assert_array_equal(got, [1.0, 8.0, 4.0, 2.0, 8.0])


def test_packed_sparsity(tmp_path: Path) -> None:
    mask, values = np.array([0b01100], np.uint8), np.array([7.0, 9.0], np.float32)
    got = _constant(
        tmp_path,
        "iOS16",
        lambda mb: mb.constexpr_sparse_to_dense(nonzero_data=values, mask=mask, shape=np.array([5], np.uint32)),
    )
    np.testing.assert_array_equal(got, [0, 0, 7, 9, 0])


@pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "uint8"])
def test_blocks_with_scale_and_offset(tmp_path: Path, kind: str) -> None:
    from coremltools.converters.mil.mil import types

    lo, hi = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[kind]
    dtype = types.nptype_from_builtin(getattr(types, kind))
    data = RNG.integers(lo, hi, (4, 6)).astype(dtype)
    offset = RNG.integers(lo, hi, (2, 3)).astype(dtype)
    scale = RNG.standard_normal((2, 3), dtype=np.float32)
    got = _constant(
        tmp_path,
        "iOS18",
        lambda mb: mb.constexpr_blockwise_shift_scale(data=data, scale=scale, offset=offset),
    )

    def spread(a: Array) -> Array:
        return a.astype(np.float32).repeat(2, 0).repeat(2, 1)

    np.testing.assert_allclose(got, (data.astype(np.float32) - spread(offset)) * spread(scale), rtol=1e-6)


def test_grouped_and_vector_lookup_tables(tmp_path: Path) -> None:
    from coremltools.converters.mil.mil import types

    two, one = (types.nptype_from_builtin(getattr(types, f"uint{n}")) for n in (2, 1))
    indices = np.array([2, 3, 3, 0, 1, 0, 3, 0, 2, 1, 0, 3]).reshape(6, 2).astype(two)
    lut = np.array([1.0, 5.0, 9.0, 13.0, 2.0, 10.0, 18.0, 26.0], np.float32).reshape(2, 1, 4, 1)
    got = _constant(tmp_path, "iOS18", lambda mb: mb.constexpr_lut_to_dense(indices=indices, lut=lut))
    np.testing.assert_array_equal(got, [[9, 13], [13, 1], [5, 1], [26, 2], [18, 10], [2, 26]])

    vectors = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32).reshape(1, 1, 1, 2, 3)
    at = np.array([[[0, 0], [1, 0]], [[1, 1], [0, 0]]]).astype(one)
    got = _constant(
        tmp_path, "iOS18", lambda mb: mb.constexpr_lut_to_dense(indices=at, lut=vectors, vector_axis=np.int32(1))
    )
    want = [[[1, 1], [2, 2], [3, 3], [4, 1], [5, 2], [6, 3]], [[4, 4], [5, 5], [6, 6], [1, 1], [2, 2], [3, 3]]]
    np.testing.assert_array_equal(got, want)


def test_sparse_values_that_are_compressed_again(tmp_path: Path) -> None:
    from coremltools.converters.mil.mil import types

    one = types.nptype_from_builtin(types.uint1)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]])
    scale, offset = np.array([[0.1, 0.2, 0.3, 0.4]], np.float32), np.array([[1, 2, 3, 4]], np.int8)
    values = np.array([10, 11, 3, 4, 5, 6, 7, 8, 9], np.int8)

    def quantized(mb: Any) -> Any:
        m, v = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=mask.astype(one), nonzero_data=values, scale=scale, offset=offset
        )
        return mb.constexpr_sparse_to_dense(nonzero_data=v, mask=m)

    dense = np.zeros((4, 4), np.float32)
    dense[mask == 1] = values
    np.testing.assert_allclose(_constant(tmp_path, "iOS18", quantized), (dense - offset) * scale * mask, atol=1e-6)

    lut, indices = np.array([2.0, 3.0], np.float32).reshape(1, 1, 2, 1), np.array([0, 1, 1, 0, 1, 1, 0, 0, 1])

    def looked_up(mb: Any) -> Any:
        m, v = mb.constexpr_lut_to_sparse(
            indices_mask=mask.astype(one), indices_nonzero_data=indices.astype(one), lut=lut
        )
        return mb.constexpr_sparse_to_dense(nonzero_data=v, mask=m)

    want = np.zeros((4, 4), np.float32)
    want[mask == 1] = np.array([2.0, 3.0])[indices]
    np.testing.assert_array_equal(_constant(tmp_path, "iOS18", looked_up), want)


def test_quantise_and_dequantise(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([[-300.0, 0.5, 1.5], [2.5, 7.3, 900.0]], np.float32)
    scale, zero = np.array([1.0, 2.0], np.float32), np.array([-5, 3], np.int8)

    def body(x: Any) -> Any:
        small = mb.quantize(input=x, scale=scale, zero_point=zero, axis=0, output_dtype="int8")
        return [mb.cast(x=small, dtype="int32"), mb.dequantize(input=small, scale=scale, zero_point=zero, axis=0)]

    got = run(tmp_path, body, {"x": x}, target="iOS17")
    want = np.clip(np.round(x / scale[:, None]) + zero[:, None], -128, 127)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], (want - zero[:, None]) * scale[:, None])


@pytest.mark.parametrize("method", ["linear", "linear-int4", "palettize", "prune"])
def test_weights_that_coremltools_compressed(tmp_path: Path, method: str) -> None:
    """The compressed package gives what the one with coremltools' decompressed weights gives."""
    import coremltools as ct
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder as mb

    weight, x = RNG.standard_normal((64, 96), dtype=np.float32), RNG.standard_normal((3, 96), dtype=np.float32)
    package = save_package(tmp_path, lambda x: mb.linear(x=x, weight=weight), {"x": x}, target="iOS18")
    model = ct.models.MLModel(str(package), skip_model_load=True)
    if method.startswith("linear"):
        dtype = "int4" if method.endswith("int4") else "int8"
        block = {"granularity": "per_block", "block_size": 32} if dtype == "int4" else {}
        op_config = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype=dtype, **block)
        model = cto.linear_quantize_weights(model, cto.OptimizationConfig(global_config=op_config))
    elif method == "palettize":
        op_config = cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=0)
        model = cto.palettize_weights(model, cto.OptimizationConfig(global_config=op_config))
    else:
        op_config = cto.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=0)
        model = cto.prune_weights(model, cto.OptimizationConfig(global_config=op_config))
    compressed = tmp_path / "compressed.mlpackage"
    model.save(str(compressed))
    assert any(o.type.startswith("constexpr_") for o in operations(specification(compressed)))
    restored = cto.decompress_weights(model)
    plain = tmp_path / "plain.mlpackage"
    restored.save(str(plain))
    assert not any(o.type.startswith("constexpr_") for o in operations(specification(plain)))
    (got,) = mil.evaluate(mil.load(compressed), {"x": x}).values()
    (want,) = mil.evaluate(mil.load(plain), {"x": x}).values()
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert 1e-3 < np.abs(got - x @ weight.T).max() < 20  # it is a compression, and of this weight
