"""Bounds of Clip: what ONNX Runtime takes for a bound that is left out."""

from __future__ import annotations

from typing import Any

from targets.onnx_web.model import graphs


def open_bounds(model: Any) -> None:
    """Give each float Clip with one bound the other one, infinite, in place.

    ONNX Runtime 1.32 takes the largest finite number for a bound that is left out, and so makes infinity finite.
    """
    import numpy as np
    import onnx

    made: dict[tuple[int, float], str] = {}
    inner = list(graphs(model.graph))
    types = {t.name: t.data_type for g in inner for t in g.initializer}
    values = [v for g in inner for v in (*g.input, *g.value_info, *g.output)]
    types |= {v.name: v.type.tensor_type.elem_type for v in values}
    constants = [(n.output[0], a.t.data_type) for g in inner for n in g.node for a in n.attribute if a.name == "value"]
    types |= dict(constants)
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    for node in (n for g in inner for n in g.node if n.op_type == "Clip"):
        held = [*node.input, "", ""][:3]
        kind = next((types[name] for name in (*held, node.output[0]) if types.get(name)), None)
        if kind not in floats or all(held) or not any(held[1:]):
            continue
        for place, number in ((1, -np.inf), (2, np.inf)):
            if held[place]:
                continue
            name = made.setdefault((kind, number), f"bound_{'minus_' if place == 1 else ''}infinity_{kind}")
            if name not in types:
                types[name] = kind
                dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, dtype), name))
            held[place] = name
        del node.input[:]
        node.input.extend(held)
