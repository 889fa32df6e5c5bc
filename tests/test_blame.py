"""Which layer broke: cuts, the culprit among measured nodes, and a small set of nodes to keep in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from build.blame.culprit import Measured, culprit, drops
from build.blame.cut import CutPoint, cut, cut_points
from build.blame.mixed import Found, smallest
from build.blame.report import text, to_json
from build.program import call, signature_of


class Network(nn.Module):
    """Two convolutions with norms and activations, a reshape and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.a(x)))
        x = torch.relu(self.b(x))
        y: torch.Tensor = self.out(torch.max_pool2d(x, 2).flatten(1))
        return y


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=16)}}
    return torch.export.export(Network().eval(), (torch.randn(2, 1, 8, 8),), dynamic_shapes=shapes)


def test_cut_points_are_the_ends_of_what_a_backend_fuses(program: torch.export.ExportedProgram) -> None:
    points = cut_points(program)
    assert [(p.name, p.shown) for p in points] == [
        ("conv2d", "relu"),
        ("conv2d_1", "relu_1"),
        ("max_pool2d", "max_pool2d"),
        ("linear", "linear"),
    ]
    assert [p.inputs for p in points] == [(), ("conv2d",), ("conv2d_1",), ("max_pool2d",)]
    assert [p.layer for p in points] == ["a", "b", None, "out"]
    assert points[0].source is not None
    assert "test_blame.py" in points[0].source


def test_a_cut_computes_the_values_inside_the_program(program: torch.export.ExportedProgram) -> None:
    made = cut(program, ["relu", "linear"])
    signature = signature_of(made)
    assert signature.inputs[0].shape[1:] == (1, 8, 8)
    assert signature.dynamic_symbols.popitem()[1] == (1, 16)
    assert [s.name for s in signature.outputs] == ["relu", "linear"]
    x = torch.randn(5, 1, 8, 8)
    hidden, logits = call(made)([x])
    assert hidden.shape == (5, 4, 8, 8)
    np.testing.assert_allclose(logits, call(program)([x])[0], rtol=1e-6)
    assert [n.name for n in program.graph.nodes if n.op == "output"] == ["output"], "the program itself is unchanged"
    assert len(signature_of(program).outputs) == 1


def test_a_cut_leaves_out_what_it_does_not_need(program: torch.export.ExportedProgram) -> None:
    made = cut(program, ["relu"])
    assert not [n for n in made.graph.nodes if "linear" in n.name]


def measured(spread: float = 1.0, **channel_snr: float) -> list[Measured]:
    """A chain of nodes, each reading the one before."""
    names = list(channel_snr)
    return [
        Measured(
            point=CutPoint(
                name=n,
                shown=n,
                op="aten.conv2d.default",
                source=f"net.py:{i}",
                layer=n,
                inputs=tuple(names[max(0, i - 1) : i]),
            ),
            snr_db=channel_snr[n] + 3,
            channel_snr_db=channel_snr[n],
            max_abs=0.1,
            spread=spread,
        )
        for i, n in enumerate(names)
    ]


def test_the_culprit_is_the_first_value_that_diverges() -> None:
    found = culprit(measured(a=40.0, b=36.0, c=2.0, d=-3.0), "int8-static")
    assert found is not None
    assert found.point.name == "c"


def test_a_value_that_no_scale_can_hold_blames_the_layer_that_makes_it() -> None:
    values = measured(a=40.0, b=36.0, c=2.0)
    values[1] = replace(values[1], spread=1000.0)
    found = culprit(values, "int8-static")
    assert found is not None
    assert found.point.name == "b"


def test_without_a_divergence_it_is_the_node_that_loses_most() -> None:
    found = culprit(measured(a=45.0, b=44.0, c=30.0, d=29.0), "int8-static")
    assert found is not None
    assert found.point.name == "c"


def test_nothing_is_blamed_where_nothing_is_lost() -> None:
    assert culprit(measured(a=50.0, b=49.0), "int8-static") is None
    assert culprit(measured(a=math.inf, b=130.0), "fp32") is None


def test_a_loss_is_counted_from_the_worst_input_under_the_precisions_ceiling() -> None:
    assert drops(measured(a=70.0, b=30.0), "int8-static") == {"a": 0.0, "b": 20.0}


def test_the_report_names_layer_line_and_way_out() -> None:
    value = to_json(measured(1000.0, a=40.0, b=1.0), {"model": "m", "target": "t", "precision": "int8-static"})
    words = text(value)
    assert "culprit: a (aten.conv2d.default, layer a) at net.py:0" in words
    assert "--keep-float a" in words
    assert "1000 times" in words


def test_a_healthy_artifact_is_told_from_a_broken_one() -> None:
    row = {"model": "m", "target": "t", "precision": "int8-static"}
    healthy, broken = (to_json(measured(a=42.0, b=b), row) for b in (38.0, 5.0))
    assert [v["diverged"] for v in (healthy, broken)] == [False, True]
    assert "no value diverges; most is lost in: a (" in text(healthy)
    assert "\nculprit: b (" in text(broken)


def trial(needed: Sequence[str], tried: list[tuple[str, ...]]) -> Callable[[tuple[str, ...]], bool]:
    """An artifact that is good when all needed nodes are in float."""

    def enough(keep: tuple[str, ...]) -> bool:
        tried.append(keep)
        return set(needed) <= set(keep)

    return enough


@pytest.mark.parametrize("needed", [("a",), ("b",), ("a", "c"), ("e",), ("g",), ("b", "g"), tuple("abcdefg")])
def test_nothing_but_the_needed_nodes_is_found(needed: tuple[str, ...]) -> None:
    tried: list[tuple[str, ...]] = []
    assert smallest("abcdefg", trial(needed, tried)) == Found(nodes=needed, minimal=True)
    assert len(tried) == len(set(tried)) <= 14


@pytest.mark.parametrize("needed", [("l",), ("a", "l"), ("c", "f", "l"), tuple("abcdefghijkl")])
def test_the_most_suspicious_nodes_of_a_long_list_are_left_out_too(needed: tuple[str, ...]) -> None:
    tried: list[tuple[str, ...]] = []
    assert smallest("abcdefghijkl", trial(needed, tried)) == Found(nodes=needed, minimal=True)
    assert len(tried) == len(set(tried)) <= 24


def test_the_least_suspicious_node_is_left_out_first() -> None:
    found = smallest("abcd", lambda keep: "d" in keep and len(keep) > 1)
    assert found == Found(nodes=("a", "d"), minimal=True)


def test_no_single_node_can_be_left_out_even_where_more_float_is_not_always_better() -> None:
    good = {tuple("abcd"), tuple("abc"), ("a", "c"), ("c",)}  # b can only go once d has gone, and a only after b
    assert smallest("abcd", lambda keep: keep in good) == Found(nodes=("c",), minimal=True)


def test_a_search_ends_and_says_where_it_did_not_try_everything() -> None:
    names = [f"n{i}" for i in range(200)]
    tried: list[tuple[str, ...]] = []
    found = smallest(names, trial(names[1::2], tried))
    assert found is not None
    assert not found.minimal
    assert set(names[1::2]) <= set(found.nodes), "what was found is enough all the same"
    assert len(tried) <= 60


def test_when_all_nodes_are_not_enough_there_is_no_set() -> None:
    assert smallest("abc", lambda keep: False) is None


def test_the_first_guess_takes_one_trial() -> None:
    tried: list[tuple[str, ...]] = []
    assert smallest("abc", trial(("a",), tried)) == Found(nodes=("a",), minimal=True)
    assert tried == [("a",)]


def test_planted_model_computes_what_the_digits_model_computes(tmp_path: Path) -> None:
    from models import digits_cnn
    from tests import planted

    image = digits_cnn.load_data()[2]
    with torch.no_grad():
        ours, theirs = (s.factory()(image) for s in (planted.spec(), digits_cnn.spec()))
    assert float((ours - theirs).abs().max()) < 1e-3
