"""What mutants are made of, and what reading one can come to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: what hostile text would create, in the child's working folder.
CANARY = "canary"
SECONDS_PER_MUTANT = 60
EXTRA_MEMORY = 2 << 30

Entries = dict[str, bytes]
Mutator = Callable[[bytes, random.Random], bytes]

HOSTILE_CODE = f"open('{CANARY}','w').close()"
HOSTILE_TEXTS = (
    f"__import__('os').system('touch {CANARY}')",
    f"{HOSTILE_CODE}",
    f'exec("{HOSTILE_CODE}")',
    f"s0 if {HOSTILE_CODE} else s0",
    f"(lambda: {HOSTILE_CODE})()",
    f"[x for x in ().__class__.__base__.__subclasses__() if {HOSTILE_CODE}]",
    f"x\n{HOSTILE_CODE}\n#",
    f"x; {HOSTILE_CODE}",
    f"L['x'].size()[0] >= 2, '') or {HOSTILE_CODE} or ('",
    f'" + {HOSTILE_CODE} + "',
    f"'); {HOSTILE_CODE}; ('",
    "torch.os.system",
    "torch.hub.load",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.save.default",
    "_operator.attrgetter",
    "math.__loader__.load_module",
    "9**9**9**9",
    "Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(9))))",
    "LShift(Integer(1), Integer(99999999999))",
    "Integer(" * 200 + "1" + ")" * 200,
    "u99999999999",
    "Symbol('u99999999999', integer=True)",
    "../../../../etc/passwd",
    "def",
    "",
    "x" * 100_000,
    "naïve ☃",
)
HOSTILE_NUMBERS = (-1, 0, 1, 2**31, 2**62, 2**63, 2**64, 10**30, -(2**63), 1e308, True, None, 99)


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (HOSTILE_CODE,))


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A file to read, and what it is made of (its name starts with the mutator's)."""

    name: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Result:
    """What reading a mutant did.

    ``outcome``: refused, same, different (it loaded, as another program), or a fault: error, executed, crash, hang,
    long-message.
    """

    name: str
    outcome: str
    detail: str = ""


FAULTS = ("error", "executed", "crash", "hang", "long-message")
