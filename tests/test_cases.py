"""One public failing input per kind of fault, on every target: correct, or a clear error. ``nox -s cases`` runs all."""

from __future__ import annotations

import pytest

from targets.registry import all_targets
from tests.cases.__main__ import bare_outcome, below_aim, inexpressible
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


def test_what_was_not_recorded_of_a_bare_converter_is_said_so() -> None:
    assert bare_outcome("desktop:activations", "litert", {}) == "not recorded"
    assert bare_outcome("desktop:activations", "coreml", {}) == "fine"
    assert bare_outcome("desktop:x", "coreml", {"x": {"raw": {"coreml": "silent-wrong"}}}) == "silent-wrong"


def test_too_few_correct_cases_are_below_the_aim() -> None:
    def rows(target: str, correct: int) -> list[dict[str, str]]:
        names = case_names()[:100]
        return [
            {"case": n, "target": target, "status": "correct" if i < correct else "clear-error"}
            for i, n in enumerate(names)
        ]

    assert below_aim([*rows("coreml", 90), *rows("ort_web", 90)]) == ["ort_web"]
    assert below_aim(rows("litert", 70)) == ["litert"]
