"""The lab run: every artifact on every device, devices in parallel, one file per measurement as it arrives."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from build.errors import DeviceError, DeviceLostError, EdgeportError, HarnessError, RejectedResultError
from build.log import say
from device_bench import measurement
from device_bench.accuracy import Outputs, against_host, against_pytorch, as_program
from device_bench.artifacts import Artifact
from device_bench.contract import Harness, Platform, Task
from device_bench.devices.base import Facts, Place
from device_bench.gate import pass_gate
from device_bench.job import Data
from device_bench.measurement import Cell
from device_bench.options import LabOptions


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a run measures, ready to be measured.

    Attributes:
        data: model, batch -> its tensors.
        host: artifact label -> outputs of this host for the same artifact and data.
    """

    folder: Path
    options: LabOptions
    platform: Platform
    artifacts: Sequence[Artifact]
    data: Mapping[tuple[str, int | None], Data]
    host: Mapping[str, Outputs]

    def cells(self, device: str) -> list[Cell]:
        """Every measurement of one device, in its order."""
        found = [
            Cell(device=device, artifact=a, repeat=repeat, point=point)
            for a in self.artifacts
            for point in self.options.points
            if self.platform.runs(a, point.variant)
            for repeat in range(1, self.options.repeats + 1)
        ]
        return measurement.ordered(found, self.options.seed or 0)


def measure_all(work: Work, devices: Sequence[Place]) -> None:
    """Measure on all devices at once; returns when each has done what it could.

    A device's failure is written into its own measurements and never ends another's. An interrupt ends the wait: what
    was measured until then lies in its files.
    """
    threads = [
        threading.Thread(target=_on_device, args=(work, device), name=device.name, daemon=True) for device in devices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # in slices: a plain join would keep signals waiting


def _on_device(work: Work, device: Place) -> None:
    cells = work.cells(device.name)
    try:
        with _exclusive(work.options.out, device.name):
            _measure_cells(work, device, cells)
    except Exception as error:  # a fault of ours on this device must not go unrecorded
        say(f"{device.name}: {type(error).__name__}: {error}")
    finally:
        device.close()


def _measure_cells(work: Work, device: Place, cells: Sequence[Cell]) -> None:
    try:
        facts = _facts(work, device)
        harness = work.platform.harness(device, facts)
    except EdgeportError as error:
        _give_up(work, device, cells, device.unknown(), None, error)
        return
    for position, cell in enumerate(cells):
        if work.options.resume and measurement.settled(work.folder, cell, harness) is not None:
            continue
        value = measurement.begin(
            cell, harness, facts, work.options.settings, seed=work.options.seed or 0, position=position
        )
        try:
            value = _measure(work, device, harness, cell, value)
        except DeviceLostError as error:
            _give_up(work, device, cells[position:], facts, harness, error)
            return
        except EdgeportError as error:
            value = measurement.failed(value, error)
            say(f"{device.name}: {cell.group}, repeat {cell.repeat}: {error}")
        else:
            s = value["statistics"]
            say(
                f"{device.name}: {cell.group}, repeat {cell.repeat}: p50 {s['p50_ms']:.3f} ms, p95 {s['p95_ms']:.3f} ms"
            )
        measurement.write(work.folder, cell, value)


def _facts(work: Work, device: Place) -> Facts:
    try:
        return device.facts()
    except DeviceLostError as error:
        say(f"{device.name}: {error.message}; waiting for it")
        if not device.wait(work.options.wait):
            raise
        return device.facts()


def _give_up(
    work: Work,
    device: Place,
    cells: Sequence[Cell],
    facts: Facts,
    harness: Harness | None,
    error: EdgeportError,
) -> None:
    """Write down why these cells cannot be measured; what was measured before stays."""
    say(f"{device.name}: {error}; what is left is for --resume")
    for position, cell in enumerate(cells):
        if work.options.resume and measurement.is_ok(work.folder, cell):
            continue
        value = measurement.begin(
            cell, harness, facts, work.options.settings, seed=work.options.seed or 0, position=position
        )
        measurement.write(work.folder, cell, measurement.failed(value, error))


def _measure(work: Work, device: Place, harness: Harness, cell: Cell, value: dict[str, Any]) -> dict[str, Any]:
    """One measurement, tried again after a lost connection or a rejected result."""
    attempts = work.options.retries + 1
    for attempt in range(1, attempts + 1):
        try:
            done = _once(work, device, harness, cell, value)
            return {**done, "attempts": attempt}
        except DeviceLostError as error:
            say(f"{device.name}: {error.message}; waiting for it (attempt {attempt} of {attempts})")
            if not device.wait(work.options.wait):
                raise
            if attempt == attempts:  # it is back: what breaks it is this artifact, and the others have their turn
                raise HarnessError(f"{error.message}, {attempts} times") from error
        except RejectedResultError as error:
            say(f"{device.name}: rejected: {error.message} (attempt {attempt} of {attempts})")
            if attempt == attempts:
                raise
    raise AssertionError("the last attempt returns or raises")


def _once(work: Work, device: Place, harness: Harness, cell: Cell, value: dict[str, Any]) -> dict[str, Any]:
    options, artifact = work.options, cell.artifact
    gate, before = pass_gate(device, limit=options.max_celsius, max_seconds=options.cool_down)
    # The evaluation set gives the same outputs every time, whatever the batch of the timed call: once for each way of
    # running is enough, and keeps the other repeats cool.
    evaluate = cell.repeat == 1 and cell.point.batch == options.points[0].batch
    data = work.data[artifact.model, cell.point.batch]
    task = Task(
        artifact=artifact,
        data=data,
        settings=cell.point.applied(options.settings),
        variant=cell.point.variant,
        evaluate=evaluate,
        timeout=options.timeout,
        emulated=value["emulated"],
    )
    run = harness.measure(task)
    after = device.conditions()
    accuracy = host = None
    if run.outputs is not None:
        outputs = as_program(artifact.record, run.outputs)
        accuracy = against_pytorch(artifact.record, artifact.program_folder, outputs)
        if artifact.label in work.host:
            here = work.host[artifact.label]
            ours = against_pytorch(artifact.record, artifact.program_folder, here)["outputs"]
            own = {name: figures["snr_db"] for name, figures in ours.items()}
            host = against_host(artifact.record, artifact.precision, outputs, here, own)
            if host["flagged"]:
                say(f"{device.name}: {artifact.label}: outputs differ from this host's: {host['why'][0]}")
    return measurement.complete(value, run, gate, before, after, batch=data.timed_batch, accuracy=accuracy, host=host)


class _exclusive:
    """One lab run at a time on a device: two would measure each other.

    Raises:
        DeviceError: another run holds it.
    """

    def __init__(self, out: Path, device: str) -> None:
        self._path = out / "bench" / "locks" / f"{device}.lock"
        self._name = device
        self._stream: IO[str] | None = None

    def __enter__(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._path.open("w")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            raise DeviceError(f"{self._name} is being measured on by another run") from error

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
