"""Strict grammars for the text in a program file that torch evaluates as Python or looks up by name.

torch reads symbolic sizes with ``sympy.sympify`` (which is ``eval``), executes the guards, and pastes node names into
the Python source of the graph. Each of these texts must match what torch's own writer produces. Standard library only.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from typing import Any

from build.errors import UntrustedInputError
from build.untrusted.words import words

MAX_TEXT = 8192
_MAX_NESTING = 80
_MAX_INTEGER = 2**64
_MAX_EXPONENT = 8
_MAX_POWERS = 4
#: torch numbers unbacked symbols from 0 and loops up to the largest one on load.
_MAX_SYMBOL_DIGITS = 6

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(rf"(?:s|u|zuf|zf|z|f|m)[0-9]{{1,{_MAX_SYMBOL_DIGITS}}}")
_PATH = re.compile(r"[A-Za-z0-9_.\-+:/@$ ]*")
#: names that torch's generated code uses itself; a node of that name would shadow them.
_TAKEN = frozenset({"torch", "self", "math", "operator", "inf", "nan", "device", "fx_pytree", "pytree", "NoneType"})

#: sympy's and torch's functions over sizes (torch._export.serde.serialize: ``sympy_functions``).
_FUNCTIONS = words(
    "Add Mul Max Min Mod PythonMod Abs FloorDiv CleanDiv CeilDiv ModularIndexing Where FloorToInt CeilToInt "
    "TruncToInt TruncToFloat RoundToInt RoundDecimal ToFloat Identity IntTrueDiv FloatTrueDiv "
    "IsNonOverlappingAndDenseIndicator floor ceiling Equality Eq Unequality Ne StrictLessThan Lt LessThan Le "
    "StrictGreaterThan Gt GreaterThan Ge And Or Not Rational Half"
)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"})
_CONSTANTS = frozenset({"true", "false", "True", "False", "oo", "int_oo", "nan"})
_SYMBOL_FLAGS = frozenset({"positive", "integer", "nonnegative", "real", "finite", "zero", "extended_real"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
#: functions that the guard printer writes (torch.fx.experimental.symbolic_shapes.SYMPY_INTERP).
_GUARD_FUNCTIONS = words(
    "min max abs Max Min Mod PythonMod FloorDiv CeilDiv CleanDiv ModularIndexing Where IntTrueDiv FloatTrueDiv ToFloat "
    "FloorToInt CeilToInt TruncToInt TruncToFloat Eq Ne Gt Lt Le Ge IsNonOverlappingAndDenseIndicator float "
    "cast_symbool_to_symint_guardless"
)


def refuse(where: str, what: str, text: object) -> UntrustedInputError:
    """The error for text outside a grammar, with the text quoted and shortened."""
    shown = repr(text)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return UntrustedInputError(
        f"{where}: {what} {shown}; torch could run such text as code",
        remedy="Get the file from its maker again, or export the program again.",
    )


def check_identifier(text: object, where: str) -> None:
    """A node's or input's name: torch pastes it into Python source."""
    if not isinstance(text, str) or len(text) > MAX_TEXT or not _IDENTIFIER.fullmatch(text):
        raise refuse(where, "not a plain name:", text)
    if keyword.iskeyword(text) or text in _TAKEN:
        raise refuse(where, "a reserved name:", text)


def check_path(text: object, where: str) -> None:
    """A module's or tensor's dotted name (``layers.0.weight``)."""
    if not isinstance(text, str) or len(text) > MAX_TEXT or not _PATH.fullmatch(text) or "__" in text.split("."):
        raise refuse(where, "not a module or tensor name:", text)


def check_expression(text: object, where: str) -> None:
    """A symbolic size, as ``sympy.srepr`` writes it: ``Mul(Integer(2), Symbol('s1', positive=True, integer=True))``."""
    tree = _parse(text, where, "not a symbolic size:")
    powers = 0
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            powers += node.func.id in _POWERS
            stack += _call_arguments(node, text, where)
        elif _is_atom(node):
            continue
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            stack.append(node.operand)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
            stack += [node.left, node.right]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            powers += 1
            _check_exponent(node.right, text, where)
            stack.append(node.left)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _COMPARISONS):
            stack += [node.left, *node.comparators]
        else:
            raise refuse(where, "not a symbolic size:", text)
    if powers > _MAX_POWERS:
        raise refuse(where, "too many powers in a symbolic size:", text)


def check_guard(text: object, where: str) -> None:
    """A guard over input sizes, as torch prints it: ``L['x'].size()[0] % 8 == 0``."""
    stack: list[ast.AST] = [_parse(text, where, "not a guard:")]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and _is_guard_call(node):
            stack += node.args
            if isinstance(node.func, ast.Attribute):
                stack.append(node.func.value)
        elif isinstance(node, ast.Name) and node.id in ("L", "True", "False"):
            continue
        elif isinstance(node, ast.Subscript):
            stack += [node.value, node.slice]
        elif isinstance(node, ast.Constant) and (_is_number(node.value) or _is_key(node.value)):
            continue
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
            stack.append(node.operand)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
            stack += [node.left, node.right]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            _check_exponent(node.right, text, where)
            stack.append(node.left)
        elif isinstance(node, ast.BoolOp):
            stack += node.values
        elif isinstance(node, ast.Compare) and all(isinstance(op, _COMPARISONS) for op in node.ops):
            stack += [node.left, *node.comparators]
        else:
            raise refuse(where, "not a guard over sizes:", text)


def check_range_key(text: object, where: str) -> None:
    """The key of a range constraint: a symbol or an expression in ``str`` form (``8*s1``). torch only compares it."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise refuse(where, "not a symbol:", text)
    if re.match(r"(u|zuf)[0-9]", text) and not _SYMBOL.fullmatch(text):
        raise refuse(where, "not a symbol:", text)


_CONTAINERS = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})


def check_treespec(text: object, where: str, *, keyword_names: bool) -> None:
    """The structure of inputs or outputs: tuples, lists and dicts with plain keys.

    Other types are looked up, and some import the module that the file names.

    Args:
        keyword_names: it is an input structure, whose keyword names are pasted into Python source.
    """
    try:
        protocol, root = json.loads(text) if isinstance(text, str) and len(text) <= 1 << 20 else (None, None)
    except (ValueError, TypeError, RecursionError):
        raise refuse(where, "not a structure:", text) from None
    if protocol != 1:
        raise refuse(where, "unknown structure format", protocol)
    stack: list[tuple[Any, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict) or set(node) != {"type", "context", "children_spec"} or depth > _MAX_NESTING:
            raise refuse(where, "not a structure:", node)
        kind, children = node["type"], node["children_spec"]
        if not isinstance(children, list):
            raise refuse(where, "not a structure:", node)
        keys = _context_keys(node, where)
        if keys is not None and len(keys) != len(children):
            raise refuse(where, "a dict's keys and values differ in number:", node)
        if keyword_names and depth == 1 and kind == "builtins.dict":
            for key in keys or []:
                check_identifier(key, where)
        stack += [(child, depth + 1) for child in children]


def _context_keys(node: dict[str, Any], where: str) -> list[Any] | None:
    kind, context = node["type"], node["context"]
    if kind is None:
        if context is not None or node["children_spec"]:
            raise refuse(where, "not a structure:", node)
        return None
    if kind not in _CONTAINERS:
        raise UntrustedInputError(
            f"{where}: inputs or outputs of type {str(kind)[:80]!r} need that type's own code to load",
            remedy="Take and return tensors, tuples, lists or dicts, or say --trust if you made this file yourself.",
        )
    try:
        value = json.loads(context) if isinstance(context, str) else None
    except (ValueError, RecursionError):
        raise refuse(where, "not a structure:", node) from None
    if kind in ("builtins.tuple", "builtins.list"):
        if value is not None:
            raise refuse(where, "not a structure:", node)
        return None
    if not isinstance(value, list) or not all(_is_key(k) or type(k) is int for k in value):
        raise refuse(where, "a dict with unusual keys:", context)
    if len(set(map(str, value))) != len(value):
        raise refuse(where, "a dict with two equal keys:", context)
    return value


def _parse(text: object, where: str, what: str) -> ast.AST:
    if not isinstance(text, str) or not text or len(text) > MAX_TEXT or not text.isascii() or not text.isprintable():
        raise refuse(where, what, text)
    depth = deepest = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        deepest = max(deepest, depth)
    # Operators such as '-' nest without brackets; the parser's stack must not be at the mercy of the file.
    if deepest > _MAX_NESTING or re.search(r"(?:[-+~] ?){8}|(?:not ){8}|\*\*.*\*\*.*\*\*", text):
        raise refuse(where, what, text)
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise refuse(where, what, text) from None


def _call_arguments(node: ast.Call, text: object, where: str) -> list[ast.expr]:
    assert isinstance(node.func, ast.Name)
    name, arguments = node.func.id, node.args
    if name == "Symbol":
        label = arguments[0].value if len(arguments) == 1 and isinstance(arguments[0], ast.Constant) else None
        flags_fine = all(
            k.arg in _SYMBOL_FLAGS and isinstance(k.value, ast.Constant) and isinstance(k.value.value, bool)
            for k in node.keywords
        )
        if not flags_fine or not isinstance(label, str) or not _SYMBOL.fullmatch(label):
            raise refuse(where, "not a symbol:", text)
        return []
    if name == "Float":
        digits = arguments[0].value if len(arguments) == 1 and isinstance(arguments[0], ast.Constant) else None
        precise = all(
            k.arg in ("precision", "dps") and isinstance(k.value, ast.Constant) and k.value.value in (15, 17, 53)
            for k in node.keywords
        )
        if not precise or not re.fullmatch(r"-?[0-9.]{1,40}(e[-+]?[0-9]{1,3})?", str(digits)):
            raise refuse(where, "not a number:", text)
        return []
    if node.keywords or (name not in _FUNCTIONS and name not in _POWERS and name != "Integer"):
        raise refuse(where, "not a symbolic size:", text)
    if name in ("Integer", "Rational") and not all(_is_literal(a) for a in arguments):
        raise refuse(where, "not a number:", text)
    if name in _POWERS:
        if len(arguments) != 2:
            raise refuse(where, "not a symbolic size:", text)
        _check_exponent(arguments[1], text, where)
        return [arguments[0]]
    return arguments


def _check_exponent(node: ast.expr, text: object, where: str) -> None:
    """Powers and shifts by a small literal only: ``9**9**9`` would take all memory."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Integer", "Rational"):
        parts = node.args
    else:
        parts = [node]
    for part in parts:
        value = part.operand if isinstance(part, ast.UnaryOp) else part
        if not (_is_literal(value) and isinstance(value, ast.Constant) and abs(value.value) <= _MAX_EXPONENT):  # type: ignore[arg-type]
            raise refuse(where, "a power that is not a small number:", text)


def _is_guard_call(node: ast.Call) -> bool:
    if node.keywords:
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in ("size", "stride", "storage_offset") and not node.args
    return isinstance(node.func, ast.Name) and node.func.id in _GUARD_FUNCTIONS


def _is_atom(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _CONSTANTS or _SYMBOL.fullmatch(node.id) is not None
    return isinstance(node, ast.Constant) and _is_number(node.value)


def _is_number(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, (int, float)) and abs(value) <= _MAX_INTEGER)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and _is_number(node.value)


def _is_key(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 256 and _PATH.fullmatch(value) is not None
