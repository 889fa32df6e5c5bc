"""Files of calls: read back as written, or refused with the call, the input, what was expected and what was found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from build.archive import save_program
from build.calls import Call, read_calls, write_calls
from build.errors import InputError, UntrustedInputError
from build.program import signature_of
from targets.contract import DynamicDim, Signature, TensorSpec
from tests import fuzz

N = DynamicDim(symbol="n", lo=1, hi=8)
SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="x", dtype="float32", shape=(N, 4)),
        TensorSpec(name="mask", dtype="bool", shape=(N,)),
        TensorSpec(name="ids", dtype="int64", shape=(DynamicDim(symbol="t", lo=8, hi=64, scale=8),)),
    ),
    outputs=(TensorSpec(name="output", dtype="float32", shape=(N,)),),
)


def _tensors(n: int = 2, t: int = 16) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(n, 4), "mask": torch.ones(n, dtype=torch.bool), "ids": torch.arange(t)}


def _file(folder: Path, **changed: Any) -> Path:
    """One call ``0`` with some of its tensors replaced (None removes one)."""
    tensors: dict[str, Any] = {**_tensors(), "label": torch.tensor(3), **changed}
    save_file({f"0/{k}": v for k, v in tensors.items() if v is not None}, folder / "c.safetensors")
    return folder / "c.safetensors"


def _raw(folder: Path, header: object, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "r.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_calls_come_back_in_natural_order_each_with_its_own_sizes(tmp_path: Path) -> None:
    calls = [
        Call(id=i, inputs=_tensors(n, 8 * n), label=lab) for i, n, lab in (("10", 3, None), ("2", 1, 7), ("a", 8, 0))
    ]
    write_calls(tmp_path / "c.safetensors", calls)
    found = read_calls(tmp_path / "c.safetensors", SIGNATURE)
    assert [(c.id, c.label) for c in found] == [("2", 7), ("10", None), ("a", 0)]
    assert all(list(c.inputs) == ["x", "mask", "ids"] for c in found)
    for call in calls:
        back = next(c for c in found if c.id == call.id)
        assert all(torch.equal(back.inputs[k], v) for k, v in call.inputs.items())


def test_the_same_calls_give_the_same_bytes(tmp_path: Path) -> None:
    calls = [Call(id=str(i), inputs=_tensors(), label=i) for i in range(3)]
    write_calls(tmp_path / "a.safetensors", calls)
    write_calls(tmp_path / "b.safetensors", calls)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_views_are_written_as_the_values_they_show(tmp_path: Path) -> None:
    base = torch.arange(16.0).reshape(4, 4)
    inputs = {**_tensors(n=4), "x": base.t()}
    write_calls(tmp_path / "c.safetensors", [Call(id="0", inputs=inputs)])
    assert torch.equal(read_calls(tmp_path / "c.safetensors", SIGNATURE)[0].inputs["x"], base.t())


def test_ids_may_contain_slashes_in_files_from_elsewhere(tmp_path: Path) -> None:
    save_file({f"set/7/{k}": v for k, v in _tensors().items()}, tmp_path / "c.safetensors")
    assert [c.id for c in read_calls(tmp_path / "c.safetensors", SIGNATURE)] == ["set/7"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": torch.zeros(2, 4, dtype=torch.float64)}, ("'0'", "'x'", "float64", "float32")),
        ({"x": torch.zeros(4)}, ("'x'", "[4]", "[1..8, 4]", "batch")),
        ({"x": torch.zeros(2, 5)}, ("'x'", "dimension 1", "5", "expected 4")),
        ({"x": torch.zeros(9, 4)}, ("'x'", "dimension 0", "9", "1..8")),
        ({"x": torch.zeros(0, 4)}, ("'x'", "dimension 0", "1..8")),
        ({"mask": torch.ones(3, dtype=torch.bool)}, ("'mask'", "n=3", "n=2", "'x'")),
        ({"ids": torch.arange(12)}, ("'ids'", "12", "multiple of 8")),
        ({"ids": None}, ("'0'", "no value for input 'ids'")),
        ({"idz": torch.arange(8)}, ("'idz'", "x, mask, ids", "Did you mean 'ids'?")),
        ({"label": torch.tensor(1.5)}, ("'0'", "label", "float32")),
        ({"label": torch.tensor([1, 2])}, ("label", "[2]")),
        ({"label": torch.tensor(-1)}, ("label", "-1")),
    ],
)
def test_a_call_that_does_not_fit_the_program(changed: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    path = _file(tmp_path, **changed)
    with pytest.raises(InputError) as caught:
        read_calls(path, SIGNATURE)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    for word in words:
        assert word in message, message


def test_a_name_without_a_call_and_a_file_without_calls(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, 4)}, tmp_path / "n.safetensors")
    with pytest.raises(InputError, match=r"not named CALL/INPUT.*'0/x'"):
        read_calls(tmp_path / "n.safetensors", SIGNATURE)
    with pytest.raises(InputError, match="holds no calls"):
        read_calls(_raw(tmp_path, {}), SIGNATURE)


def test_nan_and_infinity_are_reported_and_kept(tmp_path: Path) -> None:
    said: list[str] = []
    x = torch.zeros(2, 4)
    x[0, 0] = float("nan")
    calls = read_calls(_file(tmp_path, x=x), SIGNATURE, warn=said.append)
    assert len(said) == 1
    assert "call '0', input 'x' holds NaN" in said[0]
    assert calls[0].inputs["x"].isnan().sum() == 1
    x[0, 0] = float("inf")
    read_calls(_file(tmp_path, x=x), SIGNATURE, warn=said.append)
    assert "infinity" in said[1]


def test_an_input_named_label_is_an_input(tmp_path: Path) -> None:
    signature = Signature(inputs=(TensorSpec(name="label", dtype="float32", shape=(2,)),), outputs=())
    save_file({"0/label": torch.ones(2)}, tmp_path / "c.safetensors")
    call = read_calls(tmp_path / "c.safetensors", signature)[0]
    assert call.label is None
    assert torch.equal(call.inputs["label"], torch.ones(2))
    with pytest.raises(InputError, match="no place"):
        write_calls(tmp_path / "d.safetensors", [Call(id="0", inputs=call.inputs, label=1)])


@pytest.mark.parametrize("ids", [("a", "a"), ("",), ("a/b",), ("a\nb",)])
def test_ids_that_cannot_be_written(ids: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="call id"):
        write_calls(tmp_path / "c.safetensors", [Call(id=i, inputs=_tensors()) for i in ids])
    assert list(tmp_path.iterdir()) == []


_X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "body", "words"),
    [
        (b"{", b"", "JSON"),
        (b"[]", b"", "object"),
        (b'{"0/x": 1, "0/x": 2}', b"", "twice"),
        (b"[" * 100_000, b"", "nested too deep"),
        (b'{"\xff": 1}', b"", "JSON"),
        ({"0/x": _X}, bytes(7), "end at byte"),
        ({"0/x": _X}, bytes(9), "end at byte"),
        ({"0/x": {**_X, "dtype": "F99"}}, bytes(8), "unknown dtype 'F99'"),
        ({"0/x": {**_X, "shape": [-2]}}, bytes(8), "impossible shape"),
        ({"0/x": {**_X, "shape": [2**62, 2**62]}}, bytes(8), "needs"),
        ({"0/x": {**_X, "shape": [True, 2]}}, bytes(8), "impossible shape"),
        ({"0/x": {**_X, "data_offsets": [8, 0]}}, bytes(8), "impossible offsets"),
        ({"0/x": {**_X, "data_offsets": [0]}}, bytes(8), "impossible offsets"),
        ({"0/x": {**_X, "extra": 1}}, bytes(8), "not described"),
        ({"0/x": _X, "0/y": _X}, bytes(8), "overlaps"),
        ({"0/x": {**_X, "data_offsets": [4, 12]}}, bytes(12), "unused bytes"),
        ({"__metadata__": {"a": 1}}, b"", "metadata"),
    ],
)
def test_damaged_headers(header: object, body: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UntrustedInputError, match=words) as caught:
        read_calls(_raw(tmp_path, header, body), SIGNATURE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"1234567", (2**63).to_bytes(8, "little"), (50).to_bytes(8, "little") + b"{}"]
)
def test_a_header_length_that_cannot_be(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "h.safetensors").write_bytes(content)
    with pytest.raises(UntrustedInputError, match="header should have"):
        read_calls(tmp_path / "h.safetensors", SIGNATURE)


def test_a_truth_value_of_two(tmp_path: Path) -> None:
    path = _file(tmp_path)
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = json.loads(data[8 : 8 + length])["0/mask"]["data_offsets"][0]
    data[8 + length + start] = 2
    path.write_bytes(data)
    with pytest.raises(UntrustedInputError, match="'mask'"):
        read_calls(path, SIGNATURE)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.safetensors"):
        read_calls(tmp_path / "absent.safetensors", SIGNATURE)


def test_mutants_are_refused_or_hold_fitting_calls(tmp_path: Path) -> None:
    from tests.archive_support import export

    program = export("small")
    save_program(program, tmp_path / "program.pt2")
    names = [s.name for s in signature_of(program).inputs]
    calls = [
        Call(id=str(n), inputs=dict(zip(names, (torch.randn(4 * n, 4), torch.tensor(n)), strict=True)), label=n)
        for n in (1, 2)
    ]
    write_calls(tmp_path / "calls.safetensors", calls)
    assert len(read_calls(tmp_path / "calls.safetensors", signature_of(program))) == 2
    source = (tmp_path / "calls.safetensors").read_bytes()
    count = int(os.environ.get("EDGEPORT_FUZZ", "60"))
    files = list(fuzz.mutants([source], fuzz.CALL_MUTATORS, count, seed=21))
    (tmp_path / "calls.safetensors").unlink()
    results = fuzz.run_all(tmp_path, files, ".safetensors", [])
    assert len(results) == count
    assert [r for r in results if r.outcome in fuzz.FAULTS] == []
    assert sum(r.outcome == "refused" for r in results) > count // 2
