"""Results as plain files, and an index over them.

The files are the truth: the lab only ever adds them, whole or not at all, so nothing is lost when two runs write at
once or one is killed. The index (``.index.sqlite`` beside them) is a cache that is filled from them and made anew when
it is broken. A file that is malformed, cut short, foreign or hostile is a :class:`Problem` and is skipped.

Reading::

    from device_bench.store import Query, open_results, plain

    store = open_results("results", out=Path("out"))      # a folder or a URL; out: manifests of builds, optional
    store.problems()                                      # [Problem(path, reason)]: show them all
    store.runs()                                          # [Run(name, started, record, measurements)], oldest first
    store.measurements(Query(devices=("pixel-7",)))       # [Measurement]: identity, figures, facts; no raw samples
    store.cells(Query(runs=("run-…",)))                   # [Cell(key, run, measurements)]: the repeats of one key
    store.latest()                                        # [Cell]: for each key, of the newest run that has it
    store.samples(measurement)                            # raw samples in ns, read on demand
    store.document(measurement)                           # the whole JSON: conditions, accuracy["changed"], …
    store.summary("run-…")                                # summary.json: rows with verdict and limits; or None
    store.manifests()                                     # [Manifest(model, target, precision, key, value…)]

A :class:`Key` is what is compared over time: model, target, precision, device, threads, batch, variant. A measurement
belongs to a manifest when ``measurement.artifact_key == manifest.key``. Texts (names of devices above all) come from
files that anyone may have written: pass them through :func:`plain` for a terminal, and escape them for anything else.
"""

from device_bench.store.results import ResultStore, open_results
from device_bench.store.rows import Cell, Facts, Key, Manifest, Measurement, Problem, Query, Run
from device_bench.store.text import plain

__all__ = [
    "Cell",
    "Facts",
    "Key",
    "Manifest",
    "Measurement",
    "Problem",
    "Query",
    "ResultStore",
    "Run",
    "open_results",
    "plain",
]
