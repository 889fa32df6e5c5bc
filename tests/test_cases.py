"""One public failing input per kind of fault, on every target: correct, or a clear error. ``nox -s cases`` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from targets.registry import all_targets
from tests.cases import __main__ as cases
from tests.cases.__main__ import below_aim, inexpressible
from tests.cases.bare import OUTCOMES, run_bare
from tests.cases.run import GOOD, case_names, run_case

#: kind of fault -> a case that shows it and that every target can express
KINDS = {
    "a range that shrinks with the example batch": "mobile:conv_flatten_dynbatch",
    "a tensor list that fixes its first dimension": "mobile:dyn_split_uneven",
    "a position table sliced by a dynamic length": "mobile:posemb_dynseq",
    "cat of dynamic tensors": "mobile:dyn_cat_tokens_even",
    "a class token expanded to the batch": "mobile:dyn_expand_const",
    "the scale of a resize is lost": "mobile:upsample_bilinear_frac",
    "a layer shared by two batch norms": "mobile:shared_conv_two_bn",
    "cancellation in a norm with a large mean": "mobile:ln_big_mean",
    "integer remainder of negatives": "mobile:int_remainder",
    "keyword-only arguments that nobody reads": "desktop:kw_sub_alpha",
    "omitted default arguments": "desktop:maxpool_default_args",
    "pooling with ceil mode and padding": "mobile:avgpool_ceil_pad",
    "pooling to sizes that do not divide": "mobile:adaptive_uneven",
    "boolean attention masks": "mobile:sdpa_bool_mask",
    "one tensor returned twice": "mobile:alias_out",
    "an integer constant as an output": "mobile:const_out",
    "outputs whose flattened names collide": "mobile:dict_out_collide",
    "a node named like a string argument": "desktop:name_trunc_clash",
    "weights in torchao's tensor subclasses": "mobile:torchao_wo8",
    "type promotion between floats, integers and booleans": "mobile:mixed_dtype",
}

#: programs with no right artifact: the error is the right answer, on every target
REFUSED = {
    "batch norm captured in training mode": "mobile:bn_train_mode",
    "dropout captured in training mode": "mobile:dropout_train",
    "random numbers": "mobile:rand_op",
}


@pytest.mark.parametrize("target", list(all_targets()))
@pytest.mark.parametrize("case", KINDS.values(), ids=lambda c: c.split(":")[1])
def test_each_kind_of_fault_is_mended(case: str, target: str) -> None:
    outcome = run_case(case, target)
    assert outcome.status == "correct", outcome


@pytest.mark.parametrize("target", list(all_targets()))
@pytest.mark.parametrize("case", REFUSED.values(), ids=lambda c: c.split(":")[1])
def test_a_program_without_a_right_artifact_is_a_clear_error(case: str, target: str) -> None:
    outcome = run_case(case, target)
    assert outcome.status == "clear-error", outcome
    assert outcome.status in GOOD


def test_reasons_are_given_for_cases_that_exist() -> None:
    names = {n.split(":")[1] for n in case_names()}
    for case, reasons in inexpressible().items():
        assert case in names
        for target, why in reasons.items():
            assert target == "all" or target in all_targets()
            assert why


def test_what_the_bare_converters_do_is_recorded_for_every_case() -> None:
    outcomes = cases.recorded()
    assert set(outcomes) == set(all_targets())
    for target, rows in outcomes.items():
        assert set(rows) == set(case_names()), target
        assert set(rows.values()) <= OUTCOMES


@pytest.mark.parametrize(
    ("case", "target"),
    [
        ("mobile:conv_flatten_dynbatch", "executorch"),
        ("mobile:int_remainder", "executorch"),
        ("mobile:dict_out_collide", "litert"),
        ("desktop:kw_sub_alpha", "coreml"),
        ("desktop:kw_sub_alpha", "openvino"),
        ("desktop:kw_sub_alpha", "ort_web"),
    ],
)
def test_the_record_is_what_a_bare_converter_does(case: str, target: str) -> None:
    assert run_bare(case, target).status == cases.recorded()[target][case]


def test_a_selection_run_again_keeps_the_rest_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "_BARE", tmp_path / "bare.json")
    for status, names in (("fine", ("mobile:a", "mobile:b")), ("silent-wrong", ("mobile:b",))):
        cases.record([{"target": "ort_web", "case": n, "status": status} for n in names])
    assert cases.recorded() == {"ort_web": {"mobile:a": "fine", "mobile:b": "silent-wrong"}}
    row = {"target": "ort_web", "status": "correct", "detail": ""}
    text = cases.report([row | {"case": "mobile:b"}, row | {"case": "mobile:c"}])
    assert "correct < silent-wrong" in text
    assert "correct < not recorded" in text
    assert "ort_web, bare: 1 silent-wrong, 1 not recorded" in text


def test_too_few_correct_cases_are_below_the_aim() -> None:
    def rows(target: str, correct: int) -> list[dict[str, str]]:
        names = case_names()[:100]
        return [
            {"case": n, "target": target, "status": "correct" if i < correct else "clear-error"}
            for i, n in enumerate(names)
        ]

    assert below_aim([*rows("coreml", 90), *rows("ort_web", 90)]) == ["ort_web"]
    assert below_aim(rows("litert", 70)) == ["litert"]
