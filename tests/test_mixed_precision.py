"""Automatic mixed precision: the trials of a search, and where it is refused or not advised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from build.attempt import Attempt, Maker
from build.blame import mixed
from build.blame.culprit import Measured
from build.blame.cut import CutPoint
from build.errors import StorageError, VerificationError
from build.options import parse
from build.plan import refusal, rows
from build.record import ProgramRecord
from build.sources import Source
from build.verify.check import raise_losses
from targets.contract import Arithmetic, Signature
from targets.registry import select


def measured(name: str, snr_db: float = 40.0, error: str = "") -> Measured:
    """A node that reads nothing."""
    point = CutPoint(name=name, shown=name, op="aten.linear.default", source=None, layer=None, inputs=())
    return Measured(point=point, snr_db=snr_db, channel_snr_db=snr_db, max_abs=0.1, error=error)


@dataclass
class Trials:
    """Stands for a maker: which sets of nodes are good, and which break the converter."""

    good: Callable[[tuple[str, ...]], bool]
    breaks: Callable[[tuple[str, ...]], Exception | None] = lambda keep: None
    integers: Callable[[tuple[str, ...]], int] = lambda keep: 1
    made: list[tuple[str, ...]] = field(default_factory=list)
    target = record = folder = None
    precision = "int8-static"

    def enter(self, stage: str) -> None:
        pass

    def make(self, directory: Path, keep: tuple[str, ...], drop: float | None) -> Any:
        self.made.append(keep)
        error = self.breaks(keep)
        if error is not None:
            raise error
        accuracy = type("Accuracy", (), {"result": staticmethod(lambda: None)})
        report = type(
            "Report", (), {"losses": () if self.good(keep) else ("lost",), "problems": (), "accuracy": accuracy}
        )
        lowered = type("Lowered", (), {"arithmetic": Arithmetic(integers=self.integers(keep))})
        return Attempt(lowered=cast("Any", lowered), report=cast("Any", report), keep_float=keep)


def searched(trials: Trials, measured: Sequence[Measured], tmp_path: Path, first: tuple[str, ...] = ()) -> Any:
    """The nodes in float, and what the manifest says of the search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed, "Lab", lambda **given: type("Lab", (), {"measure": staticmethod(lambda: measured)}))
        made, value = mixed.auto_mixed(
            cast("Maker", trials),
            tmp_path,
            Attempt(lowered=cast("Any", None), report=cast("Any", None), keep_float=first),
            None,
        )
    return made.keep_float, value


def test_a_converter_that_breaks_in_one_trial_does_not_end_the_search(tmp_path: Path) -> None:
    trials = Trials(good=lambda keep: "b" in keep, breaks=lambda keep: RuntimeError("odd") if keep == ("a",) else None)
    keep, value = searched(trials, [measured("a", 30.0), measured("b", 35.0)], tmp_path)
    assert keep == ("b",)
    assert (value["found"], value["minimal"]) == (True, True)


def test_all_in_float_is_no_answer(tmp_path: Path) -> None:
    """It would be good, and int8 in name alone."""
    trials = Trials(good=lambda keep: len(keep) == 2, integers=lambda keep: 2 - len(keep))
    keep, value = searched(trials, [measured("a", 30.0), measured("b", 35.0)], tmp_path)
    assert keep == ()
    assert not value["found"]


def test_a_broken_trial_is_in_the_manifest_with_its_words(tmp_path: Path) -> None:
    trials = Trials(good=lambda keep: len(keep) > 1, breaks=lambda keep: RuntimeError("odd") if len(keep) < 2 else None)
    keep, value = searched(trials, [measured("a", 30.0), measured("b", 35.0)], tmp_path)
    assert set(keep) == {"a", "b"}
    assert {"keep_float": ["a"], "error": "RuntimeError: odd"} in value["trials"]


def test_nodes_that_could_not_be_measured_are_tried_last_and_kept_ones_never(tmp_path: Path) -> None:
    trials = Trials(good=lambda keep: "u" in keep)
    keep, value = searched(
        trials, [measured("u", error="no"), measured("a", 30.0), measured("b", 35.0)], tmp_path, first=("a",)
    )
    assert keep == ("a", "u")
    assert trials.made[:2] == [("a", "b"), ("a", "b", "u")]
    assert value["minimal"]


def test_a_full_disk_ends_the_search(tmp_path: Path) -> None:
    trials = Trials(good=lambda keep: True, breaks=lambda keep: StorageError("no space left"))
    with pytest.raises(StorageError):
        searched(trials, [measured("a", 30.0)], tmp_path)


def refused(precision: str, *options: str, quantized: bool = False) -> str | None:
    """What a row of a build is refused with."""
    record = ProgramRecord(
        name="m",
        key="",
        sha256="",
        signature=Signature(inputs=(), outputs=()),
        calls=(),
        files={},
        source={},
        quantized=quantized,
    )
    parsed = parse("build", ("ort_web",), ["--precisions", precision, *options])
    source = cast("Source", type("Source", (), {"name": "m"}))
    (row,) = rows([source], select(("ort_web",)), parsed.precisions)
    found = refusal(row, record, parsed)
    return None if found is None else found.message


@pytest.mark.parametrize("option", ["--auto-mixed", "--keep-float=a"])
def test_mixed_precision_is_refused_where_there_is_nothing_to_mix(option: str) -> None:
    name = option.partition("=")[0]
    for precision in ("fp32", "fp16"):
        assert refused(precision, option) == f"{name} has no meaning at {precision}"
    assert refused("int8-weight", option) is None
    assert "quantised already" in str(refused("int8-static", option, quantized=True))


@pytest.mark.parametrize(
    ("precision", "own", "advised"),
    [("int8-static", False, True), ("int8-static", True, False), ("fp16", False, False), ("fp32", False, False)],
)
def test_a_loss_advises_only_what_a_build_would_take(precision: str, own: bool, advised: bool) -> None:
    report: Any = type("Report", (), {"losses": ("top1_accuracy is 0.1",)})
    with pytest.raises(VerificationError) as caught:
        raise_losses(report, "ort_web", precision, own_quantisation=own)
    assert "nox -s blame" in str(caught.value.remedy)
    assert ("--auto-mixed" in str(caught.value.remedy)) == advised
