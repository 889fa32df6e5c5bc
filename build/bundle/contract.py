"""The contract: what an app relies on, and whether a new version keeps to it. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from build.record import ProgramRecord
from targets.checks import dim_text, range_text, signature_to_json
from targets.contract import Dim, DynamicDim

SCHEMA_VERSION = 1
FILE = "contract.json"


def make(
    record: ProgramRecord, artifacts: Sequence[Mapping[str, Any]], tokenizer: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The contract of a bundle.

    Args:
        artifacts: what each needs said: ``target``, ``precision``, ``main``, ``entry_points``, ``notes``, ``narrowed``.
        tokenizer: ``{"path", "sha256"}`` of its files in the bundle.
    """
    signature = json.loads(signature_to_json(record.signature))
    layout = (record.preprocessing or {}).get("layout")
    # The layout speaks of the main input: the first one that has as many axes as it has letters.
    main = next((i for i in signature["inputs"] if layout and len(i["shape"]) == len(layout)), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": record.name,
        "inputs": [{**i, "layout": layout if i is main else None} for i in signature["inputs"]],
        "outputs": signature["outputs"],
        "symbols": dict(record.symbols),
        "decision_output": record.decision_output,
        "labels": list(record.labels),
        "preprocessing": None if record.preprocessing is None else dict(record.preprocessing),
        "tokenizer": list(tokenizer),
        "constants": dict(record.constants),
        "artifacts": list(artifacts),
    }


def dim_of(value: Any) -> Dim:
    """A size as the contract's JSON holds it."""
    return value if isinstance(value, int) else DynamicDim(**value)


def fits(sizes: Sequence[int], shape: Sequence[Any]) -> bool:
    """Whether a tensor of these sizes is one that a contract's shape allows."""
    return len(sizes) == len(shape) and all(_takes(dim_of(d), n) for n, d in zip(sizes, shape, strict=True))


def shape_text(shape: Sequence[Any], symbols: Mapping[str, str]) -> str:
    """``[batch (1..64), 1, 8, 8]``."""
    parts = []
    for value in shape:
        dim = dim_of(value)
        if isinstance(dim, int):
            parts.append(str(dim))
            continue
        formula = dim_text(dim)
        for symbol, name in symbols.items():
            formula = formula.replace(symbol, name)
        parts.append(f"{formula} ({range_text(dim)})")
    return f"[{', '.join(parts)}]"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where an app written for ``old`` could go wrong with ``new``; empty when it can't.

    A wider range, a new target or a new output at the end is no such place.
    """
    found = _tensors(old, new, "inputs") + _tensors(old, new, "outputs") + _ties(old, new)
    found += _labels(old["labels"], new["labels"])
    for key, what in (
        ("decision_output", "the deciding output"),
        ("preprocessing", "the preprocessing"),
        ("constants", "the constant outputs"),
    ):
        if old[key] != new[key]:
            found.append(f"{what} changed: {_changed(old[key], new[key])}")
    before, after = ({f["path"]: f["sha256"] for f in c["tokenizer"]} for c in (old, new))
    found += [f"tokenizer file {path} changed" for path, digest in before.items() if after.get(path) != digest]
    kept = {a["target"] for a in new["artifacts"]}
    found += [f"target {t} is gone" for t in dict.fromkeys(a["target"] for a in old["artifacts"]) if t not in kept]
    return found


def _tensors(old: Mapping[str, Any], new: Mapping[str, Any], side: str) -> list[str]:
    mine, theirs = old[side], new[side]
    names = [t["name"] for t in theirs]
    fresh = theirs[: len(mine)] if side == "outputs" else theirs
    if [t["name"] for t in mine] != [t["name"] for t in fresh]:
        return [f"{side} were {[t['name'] for t in mine]}, now they are {names}"]
    found = []
    for a, b in zip(mine, fresh, strict=True):
        where = f"{side[:-1]} '{a['name']}'"
        if a["dtype"] != b["dtype"]:
            found.append(f"{where} was {a['dtype']}, now it is {b['dtype']}")
        if a.get("layout") != b.get("layout"):
            found.append(f"{where} had layout {a.get('layout')}, now it has {b.get('layout')}")
        if len(a["shape"]) != len(b["shape"]):
            found.append(f"{where} had {len(a['shape'])} dimensions, now it has {len(b['shape'])}")
            continue
        for axis, (x, y) in enumerate(zip(a["shape"], b["shape"], strict=True)):
            before, after = dim_of(x), dim_of(y)
            if not (_takes(after, before) if side == "inputs" else _gives(after, before)):
                text = f"was {range_text(before)}, now it is {range_text(after)}"
                found.append(f"dimension {axis} of {where} {text}")
    return found


def _takes(new: Dim, old: Dim) -> bool:
    """Whether every size that was taken still is."""
    if isinstance(old, int):
        if isinstance(new, int):
            return new == old
        return new.lo <= old and (new.hi is None or old <= new.hi) and (old - new.offset) % new.scale == 0
    if isinstance(new, int):
        return False
    lower, upper = new.lo <= old.lo, new.hi is None or (old.hi is not None and old.hi <= new.hi)
    steps = old.scale % new.scale == 0 and (old.offset - new.offset) % new.scale == 0
    return lower and upper and steps


def _gives(new: Dim, old: Dim) -> bool:
    """Whether an output's size still follows from the inputs as it did."""
    if isinstance(old, int) or isinstance(new, int):
        return new == old
    return (new.scale, new.offset) == (old.scale, old.offset)


def _ties(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Sizes that must be equal now and did not have to be."""

    def groups(contract: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
        found: dict[str, list[tuple[str, int]]] = {}
        for tensor in contract["inputs"]:
            for axis, value in enumerate(tensor["shape"]):
                if isinstance(value, dict):
                    found.setdefault(value["symbol"], []).append((tensor["name"], axis))
        return found

    symbol_of = {place: symbol for symbol, places in groups(old).items() for place in places}
    found = []
    for places in groups(new).values():
        known = [p for p in places if p in symbol_of]
        if len({symbol_of[p] for p in known}) > 1:
            shown = ", ".join(f"dimension {axis} of '{name}'" for name, axis in known)
            found.append(f"sizes that were independent must now be equal: {shown}")
    return found


def _labels(old: Sequence[str], new: Sequence[str]) -> list[str]:
    if list(old) == list(new):
        return []
    if len(old) != len(new):
        return [f"there were {len(old)} class labels, now there are {len(new)}"]
    first = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    return [f"the class order changed: class {first} was '{old[first]}', now it is '{new[first]}'"]


def _changed(old: Any, new: Any) -> str:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [k for k in {**old, **new} if old.get(k) != new.get(k)]
        return ", ".join(f"{k} was {json.dumps(old.get(k))}, now {json.dumps(new.get(k))}" for k in keys)
    return f"it was {json.dumps(old)}, now it is {json.dumps(new)}"
