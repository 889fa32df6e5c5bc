"""A program's identity, its names, and the user's lines that its ops come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from build.archive import load_program, save_program
from build.content_hash import content_hash
from build.errors import InputError
from build.legalize import legalize
from build.program import call, is_torchs, op_nodes, output_names, signature_of, source_of
from tests.capture_support import BATCH, Net, save


def test_content_hash_ignores_archives_and_follows_content(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Net().eval()
    args, shapes = (torch.randn(2, 4),), {"x": {0: BATCH}}
    program = torch.export.export(module, args, dynamic_shapes=shapes)
    one = load_program(save(program, tmp_path / "one.pt2"))
    two = load_program(save(program, tmp_path / "other_name.pt2"))
    assert content_hash(one) == content_hash(two)
    with torch.no_grad():
        module.fc.bias[0] += 1e-6
    assert content_hash(torch.export.export(module, args, dynamic_shapes=shapes)) != content_hash(one)
    with torch.no_grad():
        module.fc.bias[0] -= 1e-6
    narrower = {"x": {0: Dim("batch", min=1, max=32)}}
    assert content_hash(torch.export.export(module, args, dynamic_shapes=narrower)) != content_hash(one)


class Nested(nn.Module):
    def forward(self, named: dict[str, torch.Tensor], more: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": named["in"] + more[0], "twice": more[1] * 2}


def test_nested_inputs_that_share_a_dynamic_size_can_be_run(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=16)
    example = ({"in": torch.randn(2, 4)}, [torch.randn(2, 4), torch.randn(3)])
    exported = torch.export.export(Nested(), example, dynamic_shapes=({"in": {0: batch}}, [{0: batch}, None]))
    path = save(exported, tmp_path / "nested.pt2")
    given = [torch.randn(7, 4), torch.randn(7, 4), torch.randn(3)]
    for program in (torch.export.load(path), load_program(path)):
        total, twice = call(program)([t.clone() for t in given])
        torch.testing.assert_close(total, given[0] + given[1])
        torch.testing.assert_close(twice, given[2] * 2)
        legal = legalize(program, ["flat_interface"])
        torch.testing.assert_close(legal.module()(*given)[0], total)


def test_a_size_that_is_returned_is_refused_with_what_to_do() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * 2, x.shape[0]

    program = torch.export.export(Sized(), (torch.randn(2, 4),), dynamic_shapes={"x": {0: BATCH}})
    with pytest.raises(InputError, match="output 'output_1' is a SymInt, not a tensor") as caught:
        signature_of(program)
    assert caught.value.op == "aten.sym_size.int"
    assert "torch.full((), size)" in (caught.value.remedy or "")


def test_canonical_archive_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    program = torch.export.export(Net().eval(), (torch.randn(2, 4),))
    save_program(program, tmp_path / "a.pt2")
    save_program(program, tmp_path / "b.pt2")
    assert (tmp_path / "a.pt2").read_bytes() == (tmp_path / "b.pt2").read_bytes()


def test_outputs_are_named_by_structure() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"z": x + 1, "a": {"b_c": x * 2}, "a_b": {"c": (x, x - 1)}, "n": None, "k": 3}

    program = torch.export.export(Many(), (torch.randn(2),))
    assert output_names(program) == ["z", "a_b_c", "a_b_c_0", "a_b_c_1"]


def test_source_lines_point_at_the_users_code(tmp_path: Path) -> None:
    program = torch.export.export(Net().eval(), (torch.randn(2, 4),))
    save_program(program, tmp_path / "p.pt2")
    lines = [source_of(n) for n in op_nodes(load_program(tmp_path / "p.pt2"))]
    assert any(line and "capture_support.py" in line and "in forward" in line for line in lines)


def test_where_every_line_is_torchs_the_layer_is_named(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4), inner).eval(), (torch.randn(2, 4),))
    save_program(program, tmp_path / "p.pt2")
    for each in (program, load_program(tmp_path / "p.pt2")):
        assert [source_of(n) for n in op_nodes(each)] == ["0 (Linear)", "1.0 (Linear)", "1.1 (ReLU)"]
    alone = torch.export.export(nn.Linear(4, 3).eval(), (torch.randn(2, 4),))
    assert [source_of(n) for n in op_nodes(alone)] == ["the model (Linear)"]


@pytest.mark.parametrize(
    ("path", "torchs"),
    [
        ("/env/lib/python3.11/site-packages/torch/functional.py", True),
        (r"C:\env\Lib\site-packages\torch\nn\modules\conv.py", True),
        ("/src/pytorch/torch/nn/functional.py", True),
        ("/home/me/torch/model.py", False),
        ("/env/lib/python3.11/site-packages/torchvision/models/resnet.py", False),
    ],
)
def test_a_users_folder_called_torch_is_the_users(path: str, torchs: bool) -> None:
    assert is_torchs(path) == torchs
