"""Macs: Core ML packages on this machine's CPU, GPU and Neural Engine; elsewhere, what was verified instead."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from build.cache import write_atomic
from build.errors import InputError, MissingToolError
from build.manifest import failure
from build.protocol import error_to_json
from device_bench import artifacts
from device_bench.artifacts import Artifact, Built
from device_bench.devices.base import Facts, Place
from device_bench.job import Data
from device_bench.platforms.python_host import HostPlace, PythonHarness

if TYPE_CHECKING:
    from device_bench.options import LabOptions
    from targets.contract import Array

PLATFORM = "apple"
BUILDER = "build-apple"
TARGETS = ("coreml",)
#: which compute units Core ML may use; what it did use is in a measurement's details.
VARIANTS = ("all", "cpu", "cpu_gpu", "cpu_ane")
#: of a manifest: what is told where nothing can be measured.
_TOLD = ("model", "target", "precision", "status", "error", "verification", "contract", "inputs", "outputs")


def add_options(group: argparse._ArgumentGroup) -> None:
    """None of its own."""


def runs(artifact: Artifact, variant: str) -> bool:
    """Each runs on any choice of units."""
    return True


def check(options: LabOptions) -> None:
    """Whether this is a Mac; elsewhere, what was verified of the artifacts is printed.

    Raises:
        MissingToolError: it is none.
        InputError: settings that Core ML does not have; off a Mac also an artifact that was never built.
    """
    if any(p.threads != 1 for p in options.points):
        raise InputError("Core ML chooses its own threads: --threads and --sweep threads= mean nothing here")
    if sys.platform != "darwin":
        error = MissingToolError(
            f"Core ML runs on macOS, this is {sys.platform}: nothing was measured",
            remedy="Copy the output folder to a Mac, and run bench-apple there.",
        )
        found = _built(options)
        print("\n".join(verified(found)), flush=True)
        if options.json is not None:
            value = {
                "schema_version": 1,
                "session": options.session,
                "rows": [],
                "error": failure(error_to_json(error)),
                # What failed has no verification, or only a part of one: what there is, and why it is not all.
                "verified": [{k: b.manifest.get(k) for k in _TOLD} for b in found],
            }
            write_atomic(options.json, json.dumps(value, indent=1) + "\n")
        raise error


@contextlib.contextmanager
def places(options: LabOptions) -> Iterator[list[Place]]:
    """This Mac."""
    yield [HostPlace(options.out, "mac", "")]


def _built(options: LabOptions) -> list[Built]:
    """Everything that was asked for and built; the files of what went well are what was built.

    Raises:
        InputError: one was never built, or its files changed.
    """
    found = artifacts.built(
        options.out,
        models=options.models,
        targets=options.targets,
        precisions=options.precisions,
        build_session=BUILDER,
    )
    for one in found:
        if one.ok:
            one.artifact()
    return found


def verified(found: Sequence[Built]) -> list[str]:
    """What the build checked of each package, for people: a paragraph each, and what nobody checked.

    A build that did not go well is one line with its reason.
    """
    lines = ["Verified when they were built:"]
    for one in found:
        lines += _paragraph(one.manifest) if one.ok else [f"  {one.label}: {one.ending}"]
    return [*lines, "Not verified here: Core ML's own runtime, times, memory, and which unit runs which operation."]


def _paragraph(manifest: Mapping[str, Any]) -> list[str]:
    v = manifest["verification"]
    sizes = len(v["sizes"])
    text = [f"  {manifest['model']} {manifest['target']} {manifest['precision']}: {manifest['status']}"]
    text.append(
        f"    computed by {v['runtime']} on {v['calls']} calls at {sizes or 1} size{'s' if sizes > 1 else ''}: "
        f"largest difference from PyTorch {v['max_abs_diff']:.2e}, "
        f"{v['changed_decisions']} of {v['decisions']} decisions changed"
    )
    inputs = ", ".join(_shape(t) for t in manifest["inputs"])
    outputs = ", ".join(_shape(t) for t in manifest["outputs"])
    text.append(f"    names, types and shapes are the program's: {inputs} -> {outputs}")
    contract = manifest["contract"]
    text += [f"    {name} crosses Core ML's interface as {how}" for name, how in contract["carried"].items()]
    ops = ", ".join(f"{op} {n}" for op, n in sorted(contract["mil_ops"].items()))
    deployment = contract.get("deployment")
    if deployment is None:
        text.append(f"    for {contract['minimum_deployment_target']}: built by a version that did not check that")
        return [*text, f"    operations: {ops}"]
    newer = ", ".join(f"{what} ({first})" for what, first in deployment["newer_than_ios15"].items())
    text.append(
        f"    for {deployment['target']} or macOS {deployment['macos']} and later: specification version "
        f"{deployment['specification_version']}, operations of {deployment['opset']}"
    )
    text.append(f"    operations: {ops}; newer than iOS15: {newer or 'none'}")
    return text


def _shape(tensor: Mapping[str, Any]) -> str:
    dims = []
    for d in tensor["shape"]:
        dims.append(f"{d['lo']}..{d['hi']}" if isinstance(d, dict) and "lo" in d else str(d))
    return f"{tensor['name']} {tensor['dtype']}[{', '.join(dims)}]"


def harness(place: Place, facts: Facts) -> PythonHarness:
    """Core ML by coremltools."""
    return harness_of()


def harness_of() -> PythonHarness:
    """The harness process with coremltools in it."""
    return PythonHarness("coreml", "coreml", lambda variant: {"unit": variant})


def host_outputs(options: LabOptions, artifact: Artifact, data: Data) -> Mapping[str, Mapping[str, Array]] | None:
    """The outputs of this Mac's CPU."""
    return harness_of().reference(options.out, artifact, data, "cpu")
