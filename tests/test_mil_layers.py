"""The evaluator's layers against PyTorch's modules and arithmetic written out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import VerificationError
from tests.mil_support import Array, run

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((2, 4, 7, 6), dtype=np.float32)


def _torch(function: Any, *arrays: Array) -> Array:
    import torch

    result: Array = function(*[torch.from_numpy(a) for a in arrays]).detach().numpy()
    return result


def test_convolution_with_uneven_padding_stride_dilation_and_groups(tmp_path: Path) -> None:
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    weight, bias = RNG.standard_normal((6, 2, 3, 2), dtype=np.float32), RNG.standard_normal(6, dtype=np.float32)
    (got,) = run(
        tmp_path,
        lambda x: mb.conv(
            x=x,
            weight=weight,
            bias=bias,
            strides=[2, 1],
            dilations=[1, 2],
            groups=2,
            pad_type="custom",
            pad=[1, 2, 0, 3],
        ),
        {"x": IMAGE},
    )
    padded = np.pad(IMAGE, [(0, 0), (0, 0), (1, 2), (0, 3)])
    want = _torch(lambda x, w, b: functional.conv2d(x, w, b, (2, 1), 0, (1, 2), 2), padded, weight, bias)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(("kind", "pads"), [("same", (0, 1)), ("same_lower", (1, 0))])
def test_same_padding_puts_the_odd_element(tmp_path: Path, kind: str, pads: tuple[int, int]) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.array([[[1.0, 2.0, 3.0, 4.0]]], np.float32)
    kernel = np.array([[[1.0, 10.0]]], np.float32)
    got = run(
        tmp_path,
        lambda x: [
            mb.conv(x=x, weight=kernel, pad_type=kind),
            mb.max_pool(x=x, kernel_sizes=[2], strides=[1], pad_type=kind),
        ],
        {"x": x},
        target="iOS16",
    )
    p = np.pad(x[0, 0], pads)
    np.testing.assert_allclose(got[0][0, 0], p[:-1] + 10 * p[1:])
    p = np.pad(x[0, 0], pads, constant_values=-np.inf)
    np.testing.assert_allclose(got[1][0, 0], np.maximum(p[:-1], p[1:]))


def test_transposed_convolution(tmp_path: Path) -> None:
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    weight, bias = RNG.standard_normal((4, 3, 3, 3), dtype=np.float32), RNG.standard_normal(6, dtype=np.float32)

    def body(x: Any) -> Any:
        custom = mb.conv_transpose(
            x=x, weight=weight, bias=bias, groups=2, strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1]
        )
        sized = mb.conv_transpose(
            x=x,
            weight=weight,
            groups=2,
            strides=[2, 2],
            pad_type="custom",
            pad=[1, 1, 1, 1],
            output_shape=[2, 6, 14, 12],
        )
        return [custom, sized]

    got = run(tmp_path, body, {"x": IMAGE})
    want = _torch(lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1, 0, 2), IMAGE, weight, bias)
    np.testing.assert_allclose(got[0], want, atol=1e-5)
    want = _torch(lambda x, w: functional.conv_transpose2d(x, w, None, 2, 1, 1, 2), IMAGE, weight)
    np.testing.assert_allclose(got[1], want, atol=1e-5)


def test_average_pooling_divides_by_the_whole_kernel_or_by_real_elements(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    common: dict[str, Any] = {"kernel_sizes": [2], "strides": [2], "pad_type": "custom", "pad": [0, 0]}

    def body(x: Any) -> Any:
        return [
            mb.avg_pool(x=x, kernel_sizes=[3], strides=[2], pad_type="custom", pad=[1, 1]),
            mb.avg_pool(
                x=x,
                kernel_sizes=[3],
                strides=[2],
                pad_type="custom",
                pad=[1, 1],
                exclude_padding_from_average=True,
            ),
            mb.avg_pool(x=x, **common),
            mb.avg_pool(x=x, ceil_mode=True, **common),
            mb.max_pool(x=x, ceil_mode=True, **common),
            mb.l2_pool(x=x, **common),
        ]

    got = [g.reshape(-1) for g in run(tmp_path, body, {"x": x})]
    np.testing.assert_allclose(got[0], [1.0, 3.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(got[1], [1.5, 3.0, 4.5], rtol=1e-6)
    np.testing.assert_allclose(got[2], [1.5, 3.5], rtol=1e-6)
    np.testing.assert_allclose(got[3], [1.5, 3.5, 2.5], rtol=1e-6)  # the last window holds the 5 alone, over 2
    np.testing.assert_allclose(got[4], [2.0, 4.0, 5.0])
    np.testing.assert_allclose(got[5], [5.0**0.5, 5.0], rtol=1e-6)


def test_two_dimensional_pooling_is_pytorchs(tmp_path: Path) -> None:
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    def body(x: Any) -> Any:
        maximum = mb.max_pool(
            x=x, kernel_sizes=[3, 2], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], ceil_mode=True
        )
        return [maximum, mb.avg_pool(x=x, kernel_sizes=[3, 2], strides=[1, 2], pad_type="valid")]

    got = run(tmp_path, body, {"x": IMAGE})
    want = _torch(lambda x: functional.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True), IMAGE)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_allclose(got[1], _torch(lambda x: functional.avg_pool2d(x, (3, 2), (1, 2)), IMAGE), atol=1e-6)


def test_normalisations(tmp_path: Path) -> None:
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    x = IMAGE + np.float32(300)  # a large mean: E[x²]−E[x]² would lose the variance
    mean, variance, gamma, beta = (np.abs(RNG.standard_normal(4, dtype=np.float32)) for _ in range(4))
    last = RNG.standard_normal((7, 6), dtype=np.float32)

    def body(x: Any) -> Any:
        return [
            mb.batch_norm(x=x, mean=mean, variance=variance, gamma=gamma, beta=beta, epsilon=0.01),
            mb.instance_norm(x=x, gamma=gamma, beta=beta, epsilon=0.01),
            mb.layer_norm(x=x, axes=[2, -1], gamma=last, beta=last, epsilon=0.01),
            mb.layer_norm(x=x, axes=[1]),
            mb.l2_norm(x=x, epsilon=0.5),
            mb.local_response_norm(x=x, size=3, alpha=0.1, beta=0.6, k=2.0),
        ]

    got = run(tmp_path, body, {"x": x})
    wide = x.astype(np.float64)

    def standard(axes: tuple[int, ...], epsilon: float) -> Any:
        return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)

    channel = [v.reshape(1, 4, 1, 1) for v in (mean, variance, gamma, beta)]
    want = [
        (wide - channel[0]) / np.sqrt(channel[1] + 0.01) * channel[2] + channel[3],
        standard((2, 3), 0.01) * channel[2] + channel[3],
        standard((2, 3), 0.01) * last + last,
        standard((1,), 1e-5),
        wide / np.sqrt((wide**2).sum((1, 2, 3), keepdims=True) + 0.5),
        _torch(lambda t: functional.local_response_norm(t, 3, 0.1, 0.6, 2.0), x),
    ]
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-4, err_msg=str(i))


def test_products(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    a, b = RNG.standard_normal((2, 3, 4), dtype=np.float32), RNG.standard_normal((2, 5, 4), dtype=np.float32)
    weight, bias = RNG.standard_normal((6, 4), dtype=np.float32), RNG.standard_normal(6, dtype=np.float32)

    def body(a: Any, b: Any) -> Any:
        return [
            mb.matmul(x=a, y=b, transpose_y=True),
            mb.matmul(x=a, y=a, transpose_x=True),
            mb.linear(x=a, weight=weight, bias=bias),
            mb.einsum(values=(a, mb.transpose(x=a, perm=[2, 1, 0])), equation="chw,whr->chr"),
        ]

    got = run(tmp_path, body, {"a": a, "b": b})
    np.testing.assert_allclose(got[0], a @ b.transpose(0, 2, 1), atol=1e-5)
    np.testing.assert_allclose(got[1], a.transpose(0, 2, 1) @ a, atol=1e-5)
    np.testing.assert_allclose(got[2], a @ weight.T + bias, atol=1e-5)
    np.testing.assert_allclose(got[3], np.einsum("chw,whr->chr", a, a.transpose(2, 1, 0)), atol=1e-5)


def test_attention_masks_by_false_and_by_addition(tmp_path: Path) -> None:
    import torch
    import torch.nn.functional as functional
    from coremltools.converters.mil import Builder as mb

    q, k, v = (RNG.standard_normal((1, 2, n, 4), dtype=np.float32) for n in (3, 5, 5))
    mask = RNG.standard_normal((3, 5), dtype=np.float32)

    def body(q: Any, k: Any, v: Any, m: Any) -> Any:
        keep = mb.greater(x=m, y=np.float32(-0.5))
        return [
            mb.scaled_dot_product_attention(query=q, key=k, value=v),
            mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m),
            mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=keep),
        ]

    got = run(tmp_path, body, {"q": q, "k": k, "v": v, "m": mask}, target="iOS18")
    query, key, value = (torch.from_numpy(t) for t in (q, k, v))
    m = torch.from_numpy(mask)
    for g, given in zip(got, (None, m, m > -0.5), strict=True):
        want = functional.scaled_dot_product_attention(query, key, value, attn_mask=given)
        np.testing.assert_allclose(g, want.numpy(), atol=1e-5)


def test_an_even_local_response_window_is_refused(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    with pytest.raises(VerificationError, match="even size"):
        run(tmp_path, lambda x: mb.local_response_norm(x=x, size=2), {"x": IMAGE})
