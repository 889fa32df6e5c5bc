"""Size and work of a program: counted once, at capture, by torch's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from build.program import call
from build.quantize.recognise import is_quantized

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def cost_of(program: ExportedProgram, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict[str, Any]:
    """``{"parameters", "flops", "sizes"}``.

    Parameters are the elements of the module's parameters; of a program that is quantised already, whose integer
    weights are no parameters any more, those of every stored tensor. Flops are those of matrix products,
    convolutions and attention (``torch.utils.flop_counter``: one multiplication and one addition count as two), of a
    quantised program those over its dequantised values.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    stored = {**dict(program.state_dict), **dict(program.constants)}
    quantized = is_quantized(program)
    names = list(stored) if quantized else program.graph_signature.parameters
    parameters = sum(stored[n].numel() for n in names if isinstance(stored.get(n), torch.Tensor))
    with FlopCounterMode(display=False) as counter:
        call(program)([t.clone() for t in inputs.values()])
    return {"parameters": int(parameters), "flops": int(counter.get_total_flops()), "sizes": dict(sizes)}
