"""The temperature gate: a device is let cool before each measurement, for so long and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from build.log import say
from device_bench.devices.base import Conditions, Place

#: where a gate opens, in °C, for a battery sensor and for any other (a chip is warmer than the case around it).
BATTERY_LIMIT = 38.0
CHIP_LIMIT = 60.0
_POLL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Gate:
    """How a device came through the gate. ``celsius`` None: it has no sensor, and the gate is open."""

    celsius: float | None
    sensor: str | None
    limit: float | None
    waited_seconds: float
    timed_out: bool

    def to_json(self) -> dict[str, Any]:
        """For a measurement."""
        return asdict(self)


def pass_gate(
    device: Place,
    *,
    limit: float | None,
    max_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    poll: float = _POLL_SECONDS,
) -> tuple[Gate, Conditions]:
    """Wait until the device is no warmer than ``limit`` (None: the sensor's default), at most ``max_seconds``.

    Returns:
        The gate, and the conditions in which the measurement starts.
    """
    start = clock()
    told = False
    while True:
        conditions = device.conditions()
        waited = clock() - start
        if conditions.celsius is None:
            return Gate(celsius=None, sensor=None, limit=None, waited_seconds=0.0, timed_out=False), conditions
        top = limit if limit is not None else BATTERY_LIMIT if conditions.sensor == "battery" else CHIP_LIMIT
        cool = conditions.celsius <= top
        if cool or waited >= max_seconds:
            gate = Gate(
                celsius=conditions.celsius,
                sensor=conditions.sensor,
                limit=top,
                waited_seconds=round(waited, 1),
                timed_out=not cool,
            )
            return gate, conditions
        if not told:
            say(f"{device.name}: {conditions.celsius:.1f} °C ({conditions.sensor}), cooling down to {top:g}")
            told = True
        sleep(min(poll, max(max_seconds - waited, 0.0)))
