"""What snippets are filled in from, for models that were never built."""

from __future__ import annotations

from typing import Any

from build.bundle import snippets
from build.bundle.contract import dim_of
from tests.bundles.support import contract


def facts_for(target: str, **changes: Any) -> snippets.Facts:
    """What a snippet for a model that was never built is filled in from.

    Args:
        changes: of the contract.
    """
    value = contract(**changes)
    notes = {"minimum_deployment_target": "iOS17", "carried": {"tokens": "int32"}, "dtypes": {"tokens": "int32"}}
    suffix = {"executorch": "pte", "litert": "tflite", "coreml": "mlpackage", "openvino": "xml", "ort_web": "onnx"}
    main = f"models/{target}/fp32/model.{suffix[target]}"
    value["artifacts"] = [{**value["artifacts"][0], "target": target, "main": main, "notes": notes}]
    call: dict[str, Any] = {"id": "0", "sizes": {}, "label": None, "answer": None}
    for side in ("inputs", "outputs"):
        call[side] = []
        for tensor in value[side]:
            sizes = [d if isinstance(d, int) else d.lo for d in map(dim_of, tensor["shape"])]
            call[side].append(
                {"name": tensor["name"], "dtype": tensor["dtype"], "shape": sizes, "file": "selftest/x.bin"}
            )
    limit = {"atol": 1e-5, "rtol": 1e-4, "scale": 0.0}
    tolerances = {f"{target}/fp32": {t["name"]: limit for t in value["outputs"]}}
    test = {"calls": [call], "tolerances": tolerances}
    return snippets.Facts(
        contract=value, artifact=value["artifacts"][0], files=[main], version="1.2.3", selftest=test, input_index={}
    )


def transformer() -> dict[str, Any]:
    """Two inputs of integers, two dynamic sizes, one of them in steps; names that are words of some language."""
    batch = {"symbol": "s0", "lo": 1, "hi": None, "scale": 1, "offset": 0}
    time = {"symbol": "s1", "lo": 8, "hi": 64, "scale": 8, "offset": 0}
    return {
        "inputs": [
            {"name": "tokens", "dtype": "int64", "shape": [batch, time], "layout": "BT"},
            {"name": "in", "dtype": "int64", "shape": [batch, time], "layout": None},
        ],
        "outputs": [{"name": "class.score", "dtype": "float32", "shape": [batch, 3]}],
        "symbols": {"s0": "batch", "s1": "sequence"},
        "decision_output": None,
        "labels": [],
        "model": "mini-lm.v6",
    }
