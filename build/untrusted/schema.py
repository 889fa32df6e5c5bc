"""A program's JSON against torch's own schema: types, known fields, ops that exist. Needs torch."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import types
import typing
from typing import Any

from build.errors import InputError, UntrustedInputError
from build.untrusted.container import DAMAGED, DEFAULT_LIMITS, NEWER, Container
from build.untrusted.layout import CONSTANTS, MODEL, WEIGHTS, walk
from build.untrusted.strict_json import read_json, step

_MAX_INT = 2**63
#: namespace -> the well-known module whose import registers its ops.
_PROVIDERS = {
    "torchao": "torchao.quantization",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
}


def check_against_torch(container: Container, *, trust: bool) -> None:
    """Check what torch's loader takes on trust: it does not compare a value with its declared type.

    Raises:
        UntrustedInputError: a field has another type, or this torch does not know it.
        InputError: an op does not exist in this torch.
    """
    from torch._export.serde import schema

    model = read_json(container, MODEL, DEFAULT_LIMITS)
    checker = _Checker(container.label, vars(schema))
    checker.check(schema.ExportedProgram, model, MODEL)
    for name in (WEIGHTS, CONSTANTS):
        checker.check(schema.PayloadConfig, read_json(container, name, DEFAULT_LIMITS), name)
    for path, key, value, _ in walk(model):
        if key in ("target", "as_operator") and isinstance(value, str):
            _check_exists(value, f"{container.label}: {MODEL}{path}", trust=trust)


class _Checker:
    """Walks JSON along torch's schema dataclasses."""

    def __init__(self, label: str, namespace: dict[str, Any]) -> None:
        self._label = label
        self._namespace = namespace
        self._hints: dict[Any, dict[str, Any]] = {}

    def check(self, kind: Any, data: Any, path: str) -> None:
        """Raise when ``data`` is not of the declared ``kind``."""
        kind = self._resolve(kind)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            if data is not None:
                self.check(next(a for a in arguments if a is not type(None)), data, path)
        elif dataclasses.is_dataclass(kind):
            self._check_fields(kind, data, path)
        elif origin is list:
            self._expect(isinstance(data, list), "a list", data, path)
            for i, item in enumerate(data):
                self.check(arguments[0], item, f"{path}[{i}]")
        elif origin is dict:
            self._expect(isinstance(data, dict), "an object", data, path)
            for key, item in data.items():
                self.check(arguments[1], item, step(path, key))
        elif isinstance(kind, type) and issubclass(kind, enum.IntEnum):
            known = type(data) is int and data in set(map(int, kind))
            self._expect(known, f"a {kind.__name__} that this torch knows", data, path)
        elif kind is float:
            fine = type(data) in (int, float) or data in ("Infinity", "-Infinity", "NaN")
            self._expect(fine, "a number", data, path)
        elif kind is int:
            self._expect(type(data) is int and -_MAX_INT <= data < 2 * _MAX_INT, "a 64-bit whole number", data, path)
        elif isinstance(kind, type):
            self._expect(type(data) is kind, f"of type {kind.__name__}", data, path)

    def _resolve(self, kind: Any) -> Any:
        while True:
            if isinstance(kind, typing.ForwardRef):
                kind = kind.__forward_arg__
            if isinstance(kind, str):
                kind = self._namespace[kind]
            elif typing.get_origin(kind) is typing.Annotated:
                kind = typing.get_args(kind)[0]
            else:
                return kind

    def _check_fields(self, kind: Any, data: Any, path: str) -> None:
        self._expect(isinstance(data, dict), f"a {kind.__name__}", data, path)
        if kind not in self._hints:
            self._hints[kind] = typing.get_type_hints(kind, globalns=self._namespace)
        hints = self._hints[kind]
        unknown = [k for k in data if k not in hints]
        if unknown:
            raise UntrustedInputError(
                f"{self._label}: {path} has the unknown field {unknown[0][:40]!r}: a newer torch made it", remedy=NEWER
            )
        if _is_union(kind):
            self._expect(len(data) == 1, "exactly one alternative", sorted(data), path)
        else:
            for field in dataclasses.fields(kind):
                optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
                self._expect(field.name in data or optional, f"with a field {field.name!r}", sorted(data), path)
        for key, value in data.items():
            self.check(hints[key], value, step(path, key))

    def _expect(self, fine: bool, what: str, data: Any, path: str) -> None:
        if not fine:
            raise UntrustedInputError(f"{self._label}: {path} should be {what}, not {repr(data)[:60]}", remedy=DAMAGED)


def _is_union(kind: Any) -> bool:
    return any(base.__name__ == "_Union" for base in kind.__mro__)


def _check_exists(target: str, where: str, *, trust: bool) -> None:
    import torch

    if not target.startswith("torch.ops."):
        return
    op = target.removeprefix("torch.ops.")
    found = _resolve(op)
    provider = _PROVIDERS.get(op.partition(".")[0])
    if found is None and provider is not None:
        # The package may be absent or broken here: the op is then reported as unknown, just below.
        with contextlib.suppress(Exception):
            importlib.import_module(provider)
        found = _resolve(op)
    if not isinstance(found, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        known = provider or ("the package that registers the op" if trust else "")
        remedy = f"Install and import {known}." if known else "Use an op of this torch, and export again."
        raise InputError(f"{where}: op {op} does not exist in torch {torch.__version__}", op=op, remedy=remedy)


def _resolve(op: str) -> Any:
    import torch

    found: Any = torch.ops
    try:
        for part in op.split("."):
            found = getattr(found, part)
    except (AttributeError, RuntimeError):
        return None
    return found
