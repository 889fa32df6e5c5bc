"""What LiteRT, its converter and the comparison with PyTorch refuse is told in the program's own terms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from build.errors import LoweringError
from build.program import signature_of
from targets import litert
from targets.contract import LowerRequest


class _Median(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.median(torch.relu(x), 1)[0]


class _Xor(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).to(torch.int64) ^ 3


class _Or(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ~(x.to(torch.int32) | 3)


class _Hash(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, (x.to(torch.int64) * 2654435761) % 1000


@pytest.mark.parametrize(
    ("module", "op", "told"),
    [
        (_Median(), "aten.median.dim", "STABLEHLO_SORT"),
        (_Xor(), "aten.__xor__.Scalar", "failed to legalize"),
        (_Or(), "aten.__or__.Scalar", "the runtime has no kernel BitwiseOr"),
        (_Hash(), "aten.remainder.Scalar", "'output_1', which aten.remainder.Scalar makes, differs in 3 of 4 elements"),
    ],
    ids=["median", "xor", "or", "hash"],
)
def test_a_failed_lowering_names_the_op_and_its_line(
    module: torch.nn.Module, op: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without its rewrite a median is a sort, which the converter writes and the interpreter refuses.
    kept = [name for name in litert.REWRITES if name != "topk_values_by_place"]
    monkeypatch.setattr(litert, "REWRITES", kept)
    program = torch.export.export(module, (torch.tensor([[0.0, 1.0, 2.0, 3.0]]),))
    request = LowerRequest(model="m", signature=signature_of(program), precision="fp32", directory=tmp_path)
    with pytest.raises(LoweringError) as caught:
        litert.lower(program, request)
    assert told in caught.value.message
    assert caught.value.op == op
    assert Path(__file__).name in str(caught.value.source)
    assert caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_of_layers_that_share_torchs_line_the_failing_one_is_named(tmp_path: Path) -> None:
    dilated = torch.nn.ConvTranspose2d(4, 4, 3, stride=2, dilation=2)
    model = torch.nn.Sequential(torch.nn.ConvTranspose2d(8, 4, 3, stride=2), torch.nn.Sequential(dilated))
    program = torch.export.export(model.eval(), (torch.randn(1, 8, 4, 4),))
    request = LowerRequest(model="m", signature=signature_of(program), precision="fp32", directory=tmp_path)
    with pytest.raises(LoweringError) as caught:
        litert.lower(program, request)
    assert caught.value.op == "aten.conv_transpose2d.input"
    assert caught.value.source == "1.0 (ConvTranspose2d)"
