"""The evaluator's recurrent layers, control flow and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.errors import VerificationError
from targets import mil
from tests.mil_support import Array, run, save_package

STEPS, BATCH, FEATURES, HIDDEN = 4, 2, 3, 5
RNG = np.random.default_rng(1)


def _normal(*shape: int) -> Array:
    return RNG.standard_normal(shape, dtype=np.float32)


def _torch_lstm(bidirectional: bool) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.LSTM(FEATURES, HIDDEN, bidirectional=bidirectional)


def _gates(tensor: Any) -> Array:
    """PyTorch stores input, forget, cell, output; MIL input, forget, output, cell."""
    i, f, g, o = np.split(tensor.detach().numpy(), 4)
    return np.concatenate([i, f, o, g])


def _lstm_weights(layer: Any, ending: str = "") -> tuple[Array, Array, Array]:
    return (
        _gates(getattr(layer, f"weight_ih_l0{ending}")),
        _gates(getattr(layer, f"weight_hh_l0{ending}")),
        _gates(getattr(layer, f"bias_ih_l0{ending}") + getattr(layer, f"bias_hh_l0{ending}")),
    )


@pytest.mark.parametrize("sequence", [True, False])
def test_bidirectional_lstm_is_pytorchs(tmp_path: Path, sequence: bool) -> None:
    import torch
    from coremltools.converters.mil import Builder as mb

    layer = _torch_lstm(bidirectional=True)
    (w, r, b), (w_back, r_back, b_back) = _lstm_weights(layer), _lstm_weights(layer, "_reverse")
    x, h, c = _normal(STEPS, BATCH, FEATURES), _normal(2, BATCH, HIDDEN), _normal(2, BATCH, HIDDEN)

    def body(x: Any, h: Any, c: Any) -> Any:
        return mb.lstm(
            x=x,
            initial_h=h,
            initial_c=c,
            weight_ih=w,
            weight_hh=r,
            bias=b,
            weight_ih_back=w_back,
            weight_hh_back=r_back,
            bias_back=b_back,
            direction="bidirectional",
            output_sequence=sequence,
        )

    def beside(state: Array) -> Array:
        return np.concatenate(list(state), -1)

    got = run(tmp_path, body, {"x": x, "h": beside(h), "c": beside(c)})
    y, (h_n, c_n) = layer(torch.from_numpy(x), (torch.from_numpy(h), torch.from_numpy(c)))
    h_n, c_n = beside(h_n.detach().numpy()), beside(c_n.detach().numpy())
    want = [y.detach().numpy() if sequence else h_n[None], h_n, c_n]
    for g, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(g, expected, atol=1e-5)


def test_reverse_lstm_gives_its_rows_in_the_order_of_computation(tmp_path: Path) -> None:
    import torch
    from coremltools.converters.mil import Builder as mb

    layer = _torch_lstm(bidirectional=False)
    w, r, b = _lstm_weights(layer)
    x, zero = _normal(STEPS, BATCH, FEATURES), np.zeros((BATCH, HIDDEN), np.float32)

    def body(x: Any) -> Any:
        common = {"x": x, "weight_ih": w, "weight_hh": r, "bias": b}
        return mb.lstm(initial_h=zero, initial_c=zero, direction="reverse", output_sequence=True, **common)

    got = run(tmp_path, body, {"x": x})
    y, _ = layer(torch.from_numpy(x).flip(0))
    np.testing.assert_allclose(got[0], y.detach().numpy(), atol=1e-5)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_lstm_with_peepholes_and_clip(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x, w, r = _normal(STEPS, BATCH, FEATURES), _normal(4 * HIDDEN, FEATURES), _normal(4 * HIDDEN, HIDDEN)
    b, p, zero = _normal(4 * HIDDEN), _normal(3 * HIDDEN), np.zeros((BATCH, HIDDEN), np.float32)

    def body(x: Any) -> Any:
        weights = {"weight_ih": w, "weight_hh": r, "bias": b, "peephole": p}
        return mb.lstm(x=x, initial_h=zero, initial_c=zero, clip=np.float32(0.4), output_sequence=True, **weights)

    h, c, rows = zero, zero, []
    p_i, p_f, p_o = np.split(p, 3)
    for step in x:
        i, f, o, g = np.split(step @ w.T + h @ r.T + b, 4, -1)
        i, f = _sigmoid(i + c * p_i), _sigmoid(f + c * p_f)
        c = np.clip(f * c + i * np.tanh(g), -0.4, 0.4)
        h = _sigmoid(o + c * p_o) * np.tanh(c)
        rows.append(h)
    got = run(tmp_path, body, {"x": x})
    np.testing.assert_allclose(got[0], np.stack(rows), atol=1e-5)
    np.testing.assert_allclose(got[2], c, atol=1e-5)


def test_gru_resets_before_the_product(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    x, w, r, b = (
        _normal(STEPS, BATCH, FEATURES),
        _normal(3 * HIDDEN, FEATURES),
        _normal(3 * HIDDEN, HIDDEN),
        _normal(15),
    )
    h = _normal(BATCH, HIDDEN)
    (got, last) = run(
        tmp_path,
        lambda x, h: mb.gru(x=x, initial_h=h, weight_ih=w, weight_hh=r, bias=b, output_sequence=True),
        {"x": x, "h": h},
    )
    (w_r, w_o, w_z), (r_r, r_o, r_z), (b_r, b_o, b_z) = (np.split(t, 3) for t in (w, r, b))
    rows = []
    for step in x:
        z = _sigmoid(step @ w_z.T + h @ r_z.T + b_z)
        reset = _sigmoid(step @ w_r.T + h @ r_r.T + b_r)
        h = (1 - z) * np.tanh(step @ w_o.T + (reset * h) @ r_o.T + b_o) + z * h
        rows.append(h)
    np.testing.assert_allclose(got, np.stack(rows), atol=1e-5)
    np.testing.assert_allclose(last, h, atol=1e-5)


def test_gru_with_reset_after_is_refused(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    w, r, h = _normal(15, FEATURES), _normal(15, HIDDEN), np.zeros((BATCH, HIDDEN), np.float32)
    x = _normal(STEPS, BATCH, FEATURES)
    with pytest.raises(VerificationError, match="reset_after"):
        run(
            tmp_path,
            lambda x: mb.gru(x=x, initial_h=h, weight_ih=w, weight_hh=r, reset_after=True),
            {"x": x},
            target="iOS18",
        )


def test_plain_recurrence_is_pytorchs(tmp_path: Path) -> None:
    import torch
    from coremltools.converters.mil import Builder as mb

    torch.manual_seed(0)
    layer = torch.nn.RNN(FEATURES, HIDDEN, nonlinearity="relu")
    w, r = layer.weight_ih_l0.detach().numpy(), layer.weight_hh_l0.detach().numpy()
    b = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().numpy()
    x, h = _normal(STEPS, BATCH, FEATURES), _normal(1, BATCH, HIDDEN)

    def body(x: Any, h: Any) -> Any:
        weights = {"weight_ih": w, "weight_hh": r, "bias": b}
        return mb.rnn(x=x, initial_h=h, activation="relu", output_sequence=True, **weights)

    got = run(tmp_path, body, {"x": x, "h": h[0]})
    y, h_n = layer(torch.from_numpy(x), torch.from_numpy(h))
    np.testing.assert_allclose(got[0], y.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(got[1], h_n[0].detach().numpy(), atol=1e-5)


def test_loop_runs_as_often_as_its_data_says(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    def body(x: Any, n: Any) -> Any:
        def going(i: Any, y: Any) -> Any:
            return mb.less(x=i, y=n)

        def step(i: Any, y: Any) -> Any:
            return mb.add(x=i, y=np.array([1], np.int32)), mb.mul(x=y, y=np.float32(2))

        _, y = mb.while_loop(_cond=going, _body=step, loop_vars=(np.array([0], np.int32), mb.identity(x=x)))
        return y

    x = np.array([1.0, 3.0], np.float32)
    package = save_package(tmp_path, body, {"x": x, "n": np.array([3], np.int32)})
    program = mil.load(package)
    assert program.op_counts["while_loop"] == 1
    assert program.op_counts["mul"] == 1
    for n in (0, 1, 5):
        (got,) = mil.evaluate(program, {"x": x, "n": np.array([n], np.int32)}).values()
        np.testing.assert_array_equal(got, x * 2**n)


def test_branches(tmp_path: Path) -> None:
    from coremltools.converters.mil import Builder as mb

    def body(x: Any) -> Any:
        positive = mb.greater(x=mb.reduce_sum(x=x, keep_dims=False), y=np.float32(0))
        return mb.cond(pred=positive, _true_fn=lambda: mb.add(x=x, y=np.float32(10)), _false_fn=lambda: mb.abs(x=x))

    x = np.array([1.0, -3.0], np.float32)
    program = mil.load(save_package(tmp_path, body, {"x": x}))
    for sign in (1, -1):
        (got,) = mil.evaluate(program, {"x": sign * x}).values()
        np.testing.assert_array_equal(got, np.abs(x) if sign == 1 else -x + 10)


def _counter(directory: Path) -> mil.Program:
    """A program whose state adds up its inputs."""
    import coremltools as ct
    import torch

    class Sum(torch.nn.Module):
        total: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * 2

    traced = torch.jit.trace(Sum().eval(), torch.ones(3))
    model = ct.convert(
        traced,
        inputs=[ct.TensorType("x", shape=(3,))],
        states=[ct.StateType(ct.TensorType(shape=(3,), dtype=np.float16), name="total")],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT16,
        skip_model_load=True,
    )
    model.save(str(directory / "state.mlpackage"))
    return mil.load(directory / "state.mlpackage")


def test_state_is_carried_from_call_to_call(tmp_path: Path) -> None:
    program = _counter(tmp_path)
    assert [(s.name, s.dtype, s.shape) for s in program.states] == [("total", "fp16", (3,))]
    state = mil.make_state(program)
    x = np.array([1.0, 2.0, -4.0], np.float16)
    for call in (1, 2, 3):
        (got,) = mil.evaluate(program, {"x": x}, state).values()
        np.testing.assert_array_equal(got, 2 * call * x)
        np.testing.assert_array_equal(state["total"], call * x)
    (fresh,) = mil.evaluate(program, {"x": x}).values()
    np.testing.assert_array_equal(fresh, 2 * x)
