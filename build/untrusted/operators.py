"""Which functions a program's graph may call. Standard library only.

torch looks the name of an operator up in its whole namespace, where ``torch.os.system`` is to be found too.
"""

from __future__ import annotations

import re

from build.errors import UntrustedInputError
from build.untrusted.words import words

#: namespaces whose ops only compute.
NAMESPACES = frozenset({"export", "aten", "prims", "quantized_decomposed", "torchao", "torchvision", "torchaudio"})
#: ops of those namespaces that touch files or memory outside their inputs (``torch._C._jit_get_all_schemas()``).
_DENIED = {
    "aten.from_file": "maps a file of this machine",
    "aten.save": "writes a file",
    "aten._print": "prints",
    "aten._reshape_alias": "skips the bounds check",
    "aten._sparse_coo_tensor_unsafe": "skips the bounds check",
    "aten._sparse_compressed_tensor_unsafe": "skips the bounds check",
    "aten._sparse_csr_tensor_unsafe": "skips the bounds check",
    "aten._sparse_csc_tensor_unsafe": "skips the bounds check",
    "aten._sparse_bsr_tensor_unsafe": "skips the bounds check",
    "aten._sparse_bsc_tensor_unsafe": "skips the bounds check",
}
_HIGHER_ORDER = words(
    "cond while_loop map_impl scan associative_scan wrap_with_set_grad_enabled wrap_with_autocast out_dtype "
    "strict_mode hints_wrapper flex_attention auto_functionalized auto_functionalized_v2 invoke_subgraph"
)
#: torch._export.serde.serialize._SYM_OPS and the getitem that the loader itself writes.
_PLAIN = words(
    "_operator.or_ _operator.and_ _operator.le _operator.lt _operator.ge _operator.gt _operator.eq _operator.ne "
    "_operator.truediv _operator.floordiv _operator.mod _operator.neg _operator.pos _operator.lshift _operator.rshift "
    "_operator.pow _operator.add _operator.sub _operator.mul _operator.getitem math.trunc math.ceil math.floor "
    "torch._sym_sqrt torch.sym_not torch.sym_float torch.sym_int torch.sym_max torch.sym_min torch.sym_ite "
    "torch.sym_sum"
)
_OVERLOAD = re.compile(r"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_HIGHER = re.compile(r"torch\.ops\.higher_order\.([A-Za-z_]\w*)", re.ASCII)


def check_operator(target: object, where: str, *, trust: bool) -> None:
    """One call target of a program.

    Args:
        target: as torch writes it: ``torch.ops.aten.add.Tensor``.
        where: how messages name the place.
        trust: also allow ops of namespaces that this build does not know (custom ops that the caller registered).

    Raises:
        UntrustedInputError: names the op and says why it is refused.
    """
    if isinstance(target, str) and len(target) <= 512:
        if target in _PLAIN:
            return
        higher = _HIGHER.fullmatch(target)
        if higher and higher[1] in _HIGHER_ORDER:
            return
        overload = _OVERLOAD.fullmatch(target)
        if overload:
            namespace, packet, name = overload.groups()
            op = f"{namespace}.{packet}.{name}"
            reason = _DENIED.get(f"{namespace}.{packet}")
            if reason is None and (namespace in NAMESPACES or trust):
                return
            if reason is not None:
                raise UntrustedInputError(f"{where}: op {op} {reason}; a program may not", op=op)
            raise UntrustedInputError(
                f"{where}: custom op {op} is not part of torch",
                op=op,
                remedy="Build the model from torch's own ops; or import the op's package and say --trust.",
            )
    shown = repr(target)[:80]
    raise UntrustedInputError(
        f"{where}: the program calls {shown}, which is not a tensor op",
        op=shown,
        remedy="Get the file from its maker again, or export the program again.",
    )
