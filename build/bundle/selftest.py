"""Self-test vectors: a few inputs with PyTorch's answers, as raw bytes any language reads, and their tolerances."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build.errors import InputError
from build.record import REFERENCE, CallRecord, ProgramRecord
from build.untrusted.safetensors_header import TensorEntry, read_header
from build.verify.check import limits_for
from build.verify.compare import extent
from targets.contract import TensorSpec
from targets.precisions import PRECISIONS

SCHEMA_VERSION = 1
FOLDER = "selftest"
FILE = f"{FOLDER}/selftest.json"
DECISIONS = "evaluation/decisions.json"
#: a call that is larger than this is left out, unless every one is.
_MAX_CALL_BYTES = 2 << 20
_EVALUATION_CALLS = 4
#: A quantised artifact's elements may be this much further from PyTorch's than the worst that was seen: another
#: processor rounds otherwise, and a value that falls on the other side of a step moves by one.
_QUANTISED_SLACK = 1.5
_NUMPY = {"bool": "?", "float16": "<f2", "float32": "<f4", "float64": "<f8"}
_FLOATS = ("float16", "float32", "float64")


class Reference:
    """The reference data of a captured program, read tensor by tensor."""

    def __init__(self, folder: Path, record: ProgramRecord) -> None:
        self.record = record
        self._path = folder / REFERENCE
        self._entries = read_header(self._path)

    def entry(self, call: CallRecord, side: str, spec: TensorSpec) -> TensorEntry:
        """Where a tensor lies. ``side``: ``in`` or ``out``."""
        return self._entries[f"{call.id}/{side}/{spec.name}"]

    def read(self, entry: TensorEntry) -> bytes:
        """A tensor's bytes, little-endian, in C order."""
        with self._path.open("rb") as stream:
            stream.seek(entry.start)
            return stream.read(entry.end - entry.start)

    def size(self, call: CallRecord) -> int:
        """Bytes of all tensors of a call."""
        return sum(e.end - e.start for _, e in self.tensors(call))

    def tensors(self, call: CallRecord) -> list[tuple[str, TensorEntry]]:
        """``(side, entry)`` of a call's inputs and outputs, in order."""
        signature = self.record.signature
        inputs = [("in", self.entry(call, "in", s)) for s in signature.inputs]
        return [*inputs, *(("out", self.entry(call, "out", s)) for s in signature.outputs)]


def choose(reference: Reference, *, quantized: bool = False) -> list[CallRecord]:
    """Which calls: real ones of different classes first, then the smallest size, one never exported at, the largest.

    Args:
        quantized: an artifact is: how far it may be from PyTorch is known for real calls only, where there are any.
    """
    calls = reference.record.calls
    real = [c for c in calls if c.kind == "evaluation"]
    distinct: dict[Any, CallRecord] = {}
    for call in real:
        distinct.setdefault(call.label if call.label is not None else call.id, call)
    wanted = list(distinct.values())[:_EVALUATION_CALLS]
    for kind in () if quantized and real else ("lower", "unseen", "upper", "example"):
        wanted += [c for c in calls if c.kind == kind][:1]
    small = [c for c in wanted if reference.size(c) <= _MAX_CALL_BYTES]
    found = small or sorted(wanted, key=reference.size)[:1]
    if not found:
        raise InputError(f"'{reference.record.name}' has no reference data to make a self-test of")
    return found


def write(reference: Reference, folder: Path, artifacts: Sequence[Mapping[str, Any]]) -> dict[str, Path]:
    """Write ``selftest.json`` and the tensors.

    Args:
        folder: where to; the files' paths in the bundle are the keys of what is returned.
        artifacts: their manifests.

    Raises:
        InputError: the reference data is not whole.
    """
    record, files, calls = reference.record, {}, []
    quantized = any(PRECISIONS[m["precision"]].quantized for m in artifacts)
    chosen = choose(reference, quantized=quantized)
    for number, call in enumerate(chosen):
        rows: dict[str, list[dict[str, Any]]] = {"in": [], "out": []}
        for side, entry in reference.tensors(call):
            name = f"{FOLDER}/{number:03d}/{side}{len(rows[side])}.bin"
            files[name] = folder / name
            files[name].parent.mkdir(parents=True, exist_ok=True)
            files[name].write_bytes(reference.read(entry))
            rows[side].append(
                {
                    "name": entry.name.split(f"{call.id}/{side}/", 1)[1],
                    "dtype": entry.dtype,
                    "shape": list(entry.shape),
                    "file": name,
                }
            )
        sizes = {record.symbols.get(s, s): n for s, n in call.sizes.items()}
        # The class by name too: a label list in another order shows at once.
        known = call.label is not None and call.label < len(record.labels)
        answer = record.labels[call.label] if known and call.label is not None else None
        row = {"id": call.id, "sizes": sizes, "label": call.label, "answer": answer}
        calls.append({**row, "inputs": rows["in"], "outputs": rows["out"]})
    value = {
        "schema_version": SCHEMA_VERSION,
        "bytes": "little-endian, C order",
        "rule": "|got - expected| <= atol + rtol*|expected| + scale*max|expected|; integers and booleans are equal",
        "calls": calls,
        "tolerances": {
            f"{m['target']}/{m['precision']}": tolerances(record, m, _outlying(reference, chosen)) for m in artifacts
        },
    }
    files[FILE] = folder / FILE
    files[FILE].write_text(json.dumps(value, indent=1) + "\n")
    return files


def _outlying(reference: Reference, calls: Sequence[CallRecord]) -> dict[str, float]:
    """Floating outputs with outliers in one of the calls -> the largest extent (``build.verify.compare``)."""
    import numpy as np

    found: dict[str, float] = {}
    for spec in reference.record.signature.outputs:
        extents, outliers = [], False
        for call in calls:
            entry = reference.entry(call, "out", spec)
            if entry.dtype not in _FLOATS:
                break
            values = np.frombuffer(reference.read(entry), dtype=_NUMPY[entry.dtype]).astype(np.float64)
            extents.append(extent(values))
            outliers = outliers or bool((np.abs(values[np.isfinite(values)]) > extents[-1]).any())
        if outliers:
            found[spec.name] = max(extents)
    return found


def tolerances(
    record: ProgramRecord, manifest: Mapping[str, Any], outlying: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """``{output: {"atol", "rtol", "scale"}}`` of one artifact against PyTorch.

    The receiver's rule knows the largest value only. Where that is an outlier, the part relative to it is given as an
    absolute one here, so that it lends no other element its tolerance.

    Args:
        outlying: output -> largest extent over the calls, where some value goes beyond it.

    Returns:
        Nothing for a quantised artifact that was never run: how far it is from PyTorch is not known.
    """
    precision = manifest["precision"]
    if PRECISIONS[precision].quantized:
        worst = manifest.get("verification", {}).get("outputs", {})
        return {n: {"atol": _QUANTISED_SLACK * worst[n]["max_abs"], "rtol": 0.0, "scale": 0.0} for n in worst}
    tolerance = limits_for(record, precision, None).tolerance
    assert tolerance is not None
    own = {"atol": tolerance.atol, "rtol": tolerance.rtol, "scale": tolerance.scale}
    apart = {
        name: {
            "atol": tolerance.atol + tolerance.scale * most,
            "rtol": tolerance.rtol + tolerance.scale,
            "scale": 0.0,
        }
        for name, most in outlying.items()
    }
    return {spec.name: apart.get(spec.name, own) for spec in record.signature.outputs}


def decisions(reference: Reference, artifacts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What each artifact decides on every evaluation call: how a later version's decisions are compared with these.

    Returns:
        ``{"inputs": {call: digest}, "reference": {call: classes}, "artifacts": {TARGET/PRECISION: {call: classes}}}``;
        an artifact whose changed decisions are not listed in full is left out. None where nothing is decided.
    """
    import numpy as np

    record = reference.record
    calls = [c for c in record.calls if c.kind == "evaluation"]
    spec = next((s for s in record.signature.outputs if s.name == record.decision_output), None)
    if spec is None or not calls:
        return None
    inputs, classes = {}, {}
    for call in calls:
        digest = hashlib.sha256()
        for side, entry in reference.tensors(call):
            if side == "in":
                digest.update(f"{entry.dtype}{list(entry.shape)}".encode() + reference.read(entry))
        inputs[call.id] = digest.hexdigest()[:16]
        entry = reference.entry(call, "out", spec)
        dtype = _NUMPY.get(entry.dtype, f"<{entry.dtype}")
        scores = np.frombuffer(reference.read(entry), dtype=np.dtype(dtype)).reshape(entry.shape)
        classes[call.id] = [int(i) for i in scores.reshape(-1, scores.shape[-1]).argmax(-1)]
    found = {}
    for manifest in artifacts:
        verification = manifest["verification"]
        changed = verification["changed"]
        if len(changed) == verification["changed_decisions"] + verification["near_ties"]:
            mine = {call: list(rows) for call, rows in classes.items()}
            for row in changed:
                mine[row["call"]][row["row"]] = row["after"]
            found[f"{manifest['target']}/{manifest['precision']}"] = mine
    return {"schema_version": SCHEMA_VERSION, "inputs": inputs, "reference": classes, "artifacts": found}


def changed_between(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, key: str) -> tuple[int, int] | None:
    """``(changed, compared)`` rows of an artifact ``TARGET/PRECISION`` between two versions, on the same inputs."""
    if old is None or new is None:
        return None
    before, after = old["artifacts"].get(key), new["artifacts"].get(key)
    if before is None or after is None:
        return None
    digests = {d: call for call, d in old["inputs"].items()}
    pairs = [(before[digests[d]], after[call]) for call, d in new["inputs"].items() if d in digests]
    rows = [(a, b) for x, y in pairs for a, b in zip(x, y, strict=True)]
    return sum(a != b for a, b in rows), len(rows)
