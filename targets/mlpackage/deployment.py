"""Which system a package needs: file format, meaning of operations, and the operations themselves.

Facts from coremltools 9.0: format versions and opsets from ``coremltools/__init__.py``, targets from
``converters/mil/_deployment_compatibility.py``, operations from ``converters/mil/mil/ops/defs/iOS15`` to ``iOS18`` (the
registry ``SSAOpRegistry.core_ops``, which the tests compare this table with), element types from the release notes of
Core ML Tools 8 ("sub-byte" weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build.errors import VerificationError

if TYPE_CHECKING:
    from targets.mil import Program


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment target.

    Attributes:
        specification: the newest version of the file format that it reads.
        macos: the version of macOS that came with it.
    """

    name: str
    specification: int
    macos: str

    @property
    def opset(self) -> str:
        """The newest set of operations that it knows, as a function of a package names it."""
        return f"CoreML{self.specification - 1}"


#: an ML Program needs at least the first.
TARGETS: Mapping[str, Deployment] = {
    d.name: d
    for d in (
        Deployment(name="iOS15", specification=6, macos="12"),
        Deployment(name="iOS16", specification=7, macos="13"),
        Deployment(name="iOS17", specification=8, macos="14"),
        Deployment(name="iOS18", specification=9, macos="15"),
        Deployment(name="iOS26", specification=10, macos="26"),
    )
}

#: operation -> the first target that knows it; every other one is known to all.
OPERATIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("constexpr_affine_dequantize", "constexpr_cast", "constexpr_lut_to_dense", "constexpr_sparse_to_dense"),
        "iOS16",
    ),
    **dict.fromkeys(("fill_like", "reshape_like", "pixel_unshuffle"), "iOS16"),
    **dict.fromkeys(("resize", "quantize", "dequantize"), "iOS17"),
    **dict.fromkeys(
        ("constexpr_blockwise_shift_scale", "constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale"),
        "iOS18",
    ),
    **dict.fromkeys(("read_state", "write_state", "slice_update", "scaled_dot_product_attention"), "iOS18"),
}

#: element type -> the first target that stores it.
TYPES: Mapping[str, str] = dict.fromkeys(("int4", "uint1", "uint2", "uint3", "uint4", "uint6"), "iOS18")


def newer(program: Program) -> dict[str, str]:
    """What of a program the oldest target does not know: operation or element type -> the first that does."""
    found = {op: OPERATIONS[op] for op in program.op_counts if op in OPERATIONS}
    return found | {f"type {t}": TYPES[t] for t in program.dtypes if t in TYPES}


def lowest(program: Program) -> str:
    """The first target that knows every operation and type; for one before its own, a program is converted anew."""
    order = list(TARGETS)
    return order[max((order.index(t) for t in newer(program).values()), default=0)]


def describe(program: Program, target: str) -> dict[str, Any]:
    """For the manifest."""
    return {
        "target": target,
        "macos": TARGETS[target].macos,
        "specification_version": program.specification_version,
        "opset": f"CoreML{program.opset_version - 1}",
        "newer_than_ios15": newer(program),
        "lowest_target_of_its_operations": lowest(program),
    }


def check(program: Program, target: str, package: str) -> None:
    """Compare a package with the target that it says it is for.

    Raises:
        VerificationError: the target would refuse it.
    """
    if target not in TARGETS:
        raise VerificationError(f"{package} is for '{target}', which is no deployment target: {', '.join(TARGETS)}")
    limit = TARGETS[target]
    if program.specification_version > limit.specification:
        raise VerificationError(
            f"{package} has specification version {program.specification_version}, its deployment target {target} "
            f"reads at most {limit.specification}"
        )
    if program.opset_version > program.specification_version:
        raise VerificationError(
            f"{package} uses the operations of CoreML{program.opset_version - 1}, which need specification version "
            f"{program.opset_version}; it has {program.specification_version}"
        )
    order = list(TARGETS)
    opset = next((t for t in order if TARGETS[t].specification == program.opset_version), None)
    if opset is None:
        raise VerificationError(
            f"{package} uses the operations of CoreML{program.opset_version - 1}, which are unknown"
        )
    late = {what: first for what, first in newer(program).items() if order.index(first) > order.index(opset)}
    if late:
        words = ", ".join(f"{what} ({first})" for what, first in sorted(late.items()))
        raise VerificationError(f"{package} uses what {opset} does not know: {words}", op=sorted(late)[0])
