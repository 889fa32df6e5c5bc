"""``python -m device_bench SESSION [options]``: what the ``bench-…`` sessions of nox run."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

from build.cache import write_atomic
from build.entry import main as run_as_process
from build.errors import DeviceError, EdgeportError, InputError
from build.log import fail, say
from device_bench import artifacts, platforms, runs, summary
from device_bench import options as cli
from device_bench.contract import Platform
from device_bench.job import make_data
from device_bench.lab import Work, measure_all
from device_bench.options import LabOptions
from device_bench.platforms import SESSIONS
from device_bench.store.keep import keep_manifest


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
    platform = platforms.load(options.session)
    folder = None
    if options.resume:
        folder, options = runs.resume(options)
    platform.check(options)
    broken: list[str] = []
    found = _artifacts(options, platform, broken)
    for line in broken:
        say(line)
    summary.check_class(options, [a.record for a in found])
    batches = dict.fromkeys(p.batch for p in options.points)
    data = {(a.model, b): make_data(options.out, a.record, a.program_folder, b) for a in found for b in batches}
    with platform.places(options) as devices:
        if folder is None:  # only now: a wrong name or a missing device leaves nothing behind
            folder, options = runs.start(options)
        names = runs.note_devices(folder, [d.name for d in devices])
        for a in found:
            keep_manifest(options.results, a.manifest)
        host = {}
        for a in found:
            outputs = platform.host_outputs(options, a, data[a.model, options.points[0].batch])
            if outputs is not None:
                host[a.label] = outputs
        work = Work(folder=folder, options=options, platform=platform, artifacts=found, data=data, host=host)
        points = f", {len(options.points)} points" if len(options.points) > 1 else ""
        say(
            f"{len(devices)} device(s), {len(found)} artifact(s){points}, {options.repeats} repeats each; "
            f"seed {options.seed}"
        )
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
    print("\n".join([summary.table(rows, options.repeats, options.keep_p95_ms), *broken]), flush=True)
    print(f"results: {_shown(folder)}", flush=True)
    # What could not even be built is missing from the results as much as what could not be measured.
    return summary.exit_code(rows, options) or (DeviceError.exit_code if broken else 0)


def _shown(folder: os.PathLike[str]) -> str:
    return os.path.relpath(folder)


def _artifacts(options: LabOptions, platform: Platform, broken: list[str]) -> list[artifacts.Artifact]:
    return artifacts.find(
        options.out,
        models=options.models,
        targets=options.targets,
        precisions=options.precisions,
        build_session=platform.BUILDER,
        broken=broken,
    )


if __name__ == "__main__":
    run_as_process(lambda: main(sys.argv[1:]))
