"""``python -m device_bench SESSION [options]``: what the ``bench-…`` sessions of nox run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from build.cache import write_atomic
from build.entry import main as run_as_process
from build.errors import EdgeportError, InputError
from build.log import fail, say
from device_bench import artifacts, runs, summary
from device_bench import options as cli
from device_bench.devices import adb, ssh
from device_bench.devices.base import Device
from device_bench.devices.local import local_device
from device_bench.emulator.launch import emulated_devices
from device_bench.host import host_outputs
from device_bench.job import make_data
from device_bench.lab import Work, measure_all
from device_bench.options import SESSIONS, LabOptions


def main(argv: Sequence[str]) -> int:
    """Measure and report; returns the exit code."""
    session, *rest = argv or [""]
    if session not in SESSIONS:
        fail(InputError(f"no session is named '{session}'", remedy=f"Sessions: {', '.join(SESSIONS)}."))
        return InputError.exit_code
    if "--help" in rest or "-h" in rest:
        cli.parser(session).print_help()
        return 0
    try:
        return _run(cli.parse(session, rest))
    except EdgeportError as error:
        if "--debug" in rest:
            traceback.print_exc()
        fail(error)
        return error.exit_code


def _run(options: LabOptions) -> int:
    if options.resume:
        folder, options = runs.resume(options)
        found = _artifacts(options)
    else:
        found = _artifacts(options)  # before a folder is made: a wrong name leaves nothing behind
        folder, options = runs.start(options)
    data = {a.model: make_data(options.out, a.record, a.program_folder, options.settings.batch) for a in found}
    with _devices(options) as devices:
        names = runs.note_devices(folder, [d.name for d in devices])
        host = {a.label: host_outputs(options.out, a, data[a.model]) for a in found}
        work = Work(folder=folder, options=options, artifacts=found, data=data, host=host)
        say(f"{len(devices)} device(s), {len(found)} artifact(s), {options.repeats} repeats each; seed {options.seed}")
        try:
            measure_all(work, devices)
        except KeyboardInterrupt:
            say(f"interrupted: what was measured lies in {_shown(folder)}; --resume takes the rest")
            raise
    rows = summary.rows(work, names)
    text = json.dumps(summary.to_json(folder, options, rows), indent=1) + "\n"
    write_atomic(folder / "summary.json", text)
    if options.json is not None:
        write_atomic(options.json, text)
    print(summary.table(rows, options.repeats), flush=True)
    print(f"results: {_shown(folder)}", flush=True)
    return summary.exit_code(rows, options)


def _shown(folder: os.PathLike[str]) -> str:
    return os.path.relpath(folder)


def _artifacts(options: LabOptions) -> list[artifacts.Artifact]:
    builder = "build-linux-arm64" if options.session == "bench-local" else options.session.replace("bench", "build")
    return artifacts.find(
        options.out,
        models=options.models,
        targets=options.targets,
        precisions=options.precisions,
        build_session=builder,
    )


@contextlib.contextmanager
def _devices(options: LabOptions) -> Iterator[list[Device]]:
    if options.session == "bench-local":
        yield [local_device(options.out / "bench" / "local")]
    elif options.session == "bench-linux-arm64":
        if not options.serials:
            raise InputError("no board is named", remedy="Name one: -- --serial user@host")
        yield [ssh.ssh_device(host, config=options.ssh_config) for host in options.serials]
    elif options.emulated:
        with emulated_devices(options.out / "bench" / "emulated", options.emulated) as started:
            yield list(adb.find([*options.serials, *started.serials]))
    else:
        yield list(adb.find(options.serials))


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
