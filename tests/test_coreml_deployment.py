"""Which system a Core ML package needs: the table of operations, and packages that break it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from build.errors import VerificationError
from targets import mil
from targets.mlpackage import deployment


def _program(**changes: Any) -> mil.Program:
    fields: dict[str, Any] = {"inputs": (), "outputs": (), "states": (), "op_counts": {"relu": 1}, "unsupported": ()}
    fields |= {"float_weights": {}, "dtypes": ("fp32",), "specification_version": 8, "opset_version": 8, "main": None}
    return mil.Program(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        ({"op_counts": {"scaled_dot_product_attention": 1}}, "iOS17", r"iOS17 does not know.*attention \(iOS18\)"),
        ({"dtypes": ("fp32", "uint4")}, "iOS17", r"type uint4 \(iOS18\)"),
        ({"op_counts": {"quantize": 2}, "opset_version": 6}, "iOS17", r"iOS15 does not know: quantize \(iOS17\)"),
        ({"specification_version": 12, "opset_version": 12}, "iOS26", "reads at most 10"),
        ({"specification_version": 8, "opset_version": 4}, "iOS17", "CoreML3, which are unknown"),
    ],
)
def test_operations_that_a_target_does_not_know(changes: Mapping[str, Any], target: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        deployment.check(_program(**changes), target, "p")
    deployment.check(_program(), "iOS17", "p")
    deployment.check(_program(), "iOS18", "p")  # a later system reads earlier formats


def test_the_table_of_operations_is_coremltools_own() -> None:
    import coremltools as ct
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    for name, facts in deployment.TARGETS.items():
        assert int(ct.target[name]) == int(ct.target[f"macOS{facts.macos}"]) == facts.specification
        assert ct._OPSET[facts.specification] == facts.opset
    oldest = int(ct.target.iOS15)
    first = {op: max(oldest, min(int(v) for v in versions)) for op, versions in SSAOpRegistry.core_ops.items()}
    known = {op: deployment.TARGETS[name].specification for op, name in deployment.OPERATIONS.items()}
    newer = {op: version for op, version in first.items() if version > oldest}
    # coremltools builds these from other parts; a package holds them all the same.
    assert {op: v for op, v in known.items() if op in first} == newer
    assert set(known) - set(first) == {"write_state"}
    assert set(known.values()) == {7, 8, 9}
