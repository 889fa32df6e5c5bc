"""How an emulated device can be told to misbehave.

A fault is a JSON file ``fault.json`` beside the device's root: ``{"kind", "times", "after"}``. It can be put there and
taken away while the device runs; it is used up after ``times`` occurrences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from build.cache import write_atomic
from build.errors import InputError

#: kind -> what happens.
KINDS: Mapping[str, str] = {
    "drop-run": "the connection breaks while the harness runs",
    "drop-push": "the connection breaks in the middle of a file being sent",
    "hang": "the harness never ends",
    "full-disk": "no file can be written",
    "crash": "the harness dies of a segmentation fault",
    "garbage": "the harness prints 100 MB of noise",
    "cut-output": "the last line of what the harness prints is missing",
    "bad-result": "the harness's result file is noise",
    "unauthorized": "the device wants its key accepted, and nobody does",
    "reboot": "the device restarts while the harness runs: gone for some seconds",
    "gone": "the connection breaks while the harness runs, and stays broken until the fault is taken away",
    "corrupt-push": "a byte of a file changes while it is sent",
}
ALWAYS = 1_000_000
FILE = "fault.json"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One misbehaviour.

    Attributes:
        times: how often it happens.
        after: seconds into the harness's run, for those that happen during it.
    """

    kind: str
    times: int = 1
    after: float = 0.3


def parse(text: str) -> tuple[int, Fault]:
    """``2=drop-run`` or ``2=drop-run*3``: device number (from 1) and fault. ``*`` alone: every time.

    Raises:
        InputError: no such kind, or not of this form.
    """
    number, mark, rest = text.partition("=")
    kind, star, times = rest.partition("*")
    if not mark or not number.isdigit() or kind not in KINDS or (times and not times.isdigit()):
        raise InputError(
            f"'{text}' is no fault", remedy=f"Write DEVICE=KIND or DEVICE=KIND*TIMES. Kinds: {', '.join(KINDS)}."
        )
    return int(number), Fault(kind=kind, times=int(times) if times else ALWAYS if star else 1)


def put(folder: Path, fault: Fault | None) -> None:
    """Have the device of this folder misbehave from now on, or behave."""
    if fault is None:
        (folder / FILE).unlink(missing_ok=True)
    else:
        write_atomic(folder / FILE, json.dumps(asdict(fault)))


class Faults:
    """What is left of a device's faults."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def present(self, *kinds: str) -> Fault | None:
        """The fault, when it is one of these kinds; it is not used up."""
        try:
            fault = Fault(**json.loads(self._file.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return fault if fault.kind in kinds and fault.times > 0 else None

    def take(self, *kinds: str) -> Fault | None:
        """The same, used up once."""
        fault = self.present(*kinds)
        if fault is not None:
            put(self._file.parent, Fault(kind=fault.kind, times=fault.times - 1, after=fault.after))
        return fault
