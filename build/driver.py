"""A build: capture what is new, lower and verify each artifact in its target's worker, report every expected row."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from build import envs, manifest, outcomes, superseded
from build.cache import absent, clear_if_empty, lock, put_folder, staging
from build.envs import Environment
from build.errors import (
    INTERRUPTED_EXIT,
    ConverterCrash,
    InputError,
    StorageError,
)
from build.log import say
from build.options import Options
from build.plan import (
    Row,
    artifact_key,
    cached,
    captured,
    code_of,
    judged_as,
    program_folder,
    refusal,
    rows,
    settle,
    whole,
)
from build.protocol import Worker, error_to_json
from build.record import ProgramRecord, read_record, record_key
from build.sources import Source, sources
from build.workers import Workers
from targets.registry import TargetFacts, select

CAPTURE_GROUP = "models"
#: what to do when capture's process dies: no converter runs in it, so what was given took it along
OWN_CODE = "What was given runs in plain PyTorch there: os._exit, a crash of native code or too little memory ends it."


class Build:
    """One run. ``results`` has a row for every expected artifact, in order, when :meth:`run` returns."""

    #: what serves a target's jobs
    worker_module = "build.worker"
    #: whether artifacts below ``out`` are this run's to replace
    makes_artifacts = True

    def __init__(self, options: Options) -> None:
        self.options = options
        self.targets = select(options.targets)
        self.expected: list[Row] = []
        self.results: dict[str, dict[str, Any]] = {}
        self._records: dict[str, ProgramRecord] = {}
        self._workers = Workers(options.out)
        self._interrupted = False

    # ---- the run -------------------------------------------------------------------------------------------------

    def run(self) -> list[dict[str, Any]]:
        """Build everything.

        Raises:
            EdgeportError: the build as a whole can't start (bad options, no environment).
        """
        options = self.options
        capture_env = envs.ready(CAPTURE_GROUP) if options.dry_run else envs.ensure(CAPTURE_GROUP)
        found = sources(options, capture_env.packages if capture_env else {})
        self.expected = rows(found, self.targets, options.precisions)
        made = absent(options.out)
        try:
            self._capture(found, capture_env)
            self.expected = settle(self.expected, self._records, options)
            todo = self._plan()
            if options.dry_run:
                self._say_plan(todo)
            elif todo:
                self._lower(todo)
        except KeyboardInterrupt:
            self._interrupted = True
            self._workers.kill()
        finally:
            self._workers.close()
        if not options.dry_run:
            clear_if_empty(options.out, made)
        for row in self.expected:
            self.results.setdefault(row.label, outcomes.lost(row, interrupted=self._interrupted))
        return [self.results[row.label] for row in self.expected]

    @property
    def exit_code(self) -> int:
        """130 when interrupted, otherwise by the worst row."""
        if self._interrupted:
            return INTERRUPTED_EXIT
        return manifest.exit_code(list(self.results.values()))

    # ---- capture -------------------------------------------------------------------------------------------------

    def _capture(self, found: Sequence[Source], environment: Environment | None) -> None:
        worker: Worker | None = None
        for source in found:
            record: ProgramRecord | None = None
            try:
                record = None if self.options.force else captured(self.options.out, source)
                if record is None and not self.options.dry_run and environment is not None:
                    worker = worker or self._workers.start("capture", environment, "build.capture")
                    self._prepare_workers()
                    record = self._capture_one(source, worker)
            except Exception as error:  # one source's trouble costs no other
                self._fail_source(source, error_to_json(error))
            if record is not None:
                self._records[source.name] = record
        if worker is not None:
            worker.close()

    def _prepare_workers(self) -> None:
        """Let the first targets' processes import their toolchains while a program is captured."""
        targets = {row.target.name: row.target for row in self.expected if row.unavailable is None}
        for facts in list(targets.values())[: self.options.jobs]:
            environment = envs.ready(facts.group)
            if environment is not None:
                self._workers.prepare(facts.name, environment, self.worker_module, facts.name)

    def _capture_one(self, source: Source, worker: Worker) -> ProgramRecord | None:
        options, out = self.options, self.options.out
        with lock(out, f"capture {source.name}"):
            record = None if options.force else captured(out, source)
            if record is not None:
                return record  # another build captured it while we waited
            started = time.monotonic()
            with staging(out) as folder:
                job = {"label": source.name, "source": dict(source.job), "directory": str(folder)}
                try:
                    answer = worker.submit(job, lambda stage: say(f"{source.name}: {stage}"))
                except ConverterCrash as crash:
                    raise InputError(crash.message, remedy=OWN_CODE) from crash
                if "error" in answer:
                    self._fail_source(
                        source, answer["error"], superseded.refused_itself(source, answer["error"], options)
                    )
                    return None
                place = program_folder(out, source)
                there = whole(place)
                # The same once more stays where it is: another build may be reading it.
                if there is None or record_key(there) != record_key(read_record(folder)):
                    put_folder(folder, place)
            say(f"{source.name}: captured in {time.monotonic() - started:.1f} s")
            return read_record(program_folder(out, source))

    def _fail_source(self, source: Source, error: Mapping[str, Any], refused: bool = False) -> None:
        """``refused``: what was built from it before does not follow from it any more."""
        for row in self.expected:
            if row.source.name == source.name:
                self.results[row.label] = self._failed(row, "capture", error)
                if refused:
                    self._supersede(row, "capture", error)

    def _supersede(self, row: Row, stage: str, error: Mapping[str, Any], record: ProgramRecord | None = None) -> None:
        if self.options.dry_run or not self.makes_artifacts:
            return
        try:
            superseded.replace(row, f"failed:{stage}", error, self.options, record=record)
        except StorageError as full:
            say(f"{row.label}: the artifact of before is still there: {full}")

    # ---- plan ----------------------------------------------------------------------------------------------------

    def _plan(self) -> list[Row]:
        asked = []
        for row in self.expected:
            if row.label in self.results:
                continue
            record = self._records.get(row.source.name)
            refused = None if record is None else refusal(row, record, self.options)
            if row.unavailable is not None:
                self.results[row.label] = outcomes.bare(row, f"unavailable: {row.unavailable}")
            elif record is not None and refused is not None:
                error = error_to_json(refused)
                self.results[row.label] = self._failed(row, "input", error)
                self._supersede(row, "input", error, record)
            else:
                asked.append(row)
        todo = []
        for row, value in zip(asked, self._cached(asked), strict=True):
            if value is None:
                todo.append(row)
            else:
                self.results[row.label] = manifest.summary_row(value, cached=True, seconds=0.0)
        return todo

    def _cached(self, asked: Sequence[Row]) -> list[Mapping[str, Any] | None]:
        """The manifest of each artifact that is there. Hashing them is most of an unchanged build: side by side."""
        if self.options.force:
            return [None] * len(asked)
        keys = [self._key(row) for row in asked]
        with ThreadPoolExecutor() as pool:
            return list(pool.map(self._there, asked, keys))

    def _there(self, row: Row, key: str | None) -> Mapping[str, Any] | None:
        return None if key is None else cached(row, self._records[row.source.name], self.options.out, key)

    def _key(self, row: Row) -> str | None:
        record, environment = self._records.get(row.source.name), envs.ready(row.target.group)
        return artifact_key(row, record, environment, self.options) if record and environment else None

    def _say_plan(self, todo: Sequence[Row]) -> None:
        for row in todo:
            say(f"would build {row.label}")
            self.results[row.label] = outcomes.bare(row, "would-build")

    # ---- lower ---------------------------------------------------------------------------------------------------

    def _lower(self, todo: Sequence[Row]) -> None:
        by_target: dict[str, list[Row]] = {}
        for row in todo:
            by_target.setdefault(row.target.name, []).append(row)
        with ThreadPoolExecutor(max_workers=min(self.options.jobs, len(by_target))) as pool:
            tasks = [pool.submit(self._serve_target, group) for group in by_target.values()]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                self._interrupted = True
                for task in tasks:
                    task.cancel()
                self._workers.kill()
                raise

    def _serve_target(self, group: Sequence[Row]) -> None:
        """Build one target's artifacts, one after the other, in one worker."""
        facts = group[0].target
        try:
            environment = envs.ensure(facts.group)
        except Exception as error:
            for row in group:
                self.results[row.label] = self._failed(row, "environment", error_to_json(error))
            return
        worker: Worker | None = None
        for row in group:
            if self._interrupted:
                return
            try:
                worker = worker or self._workers.start(facts.name, environment, self.worker_module, facts.name)
                self.results[row.label] = self._build_one(row, worker, environment)
            except Exception as error:  # one row's trouble costs no other
                if not self._interrupted:
                    self.results[row.label] = self._failed(row, "lower", error_to_json(error))
        if worker is not None:
            worker.close()

    def _build_one(self, row: Row, worker: Worker, environment: Environment) -> dict[str, Any]:
        options, record = self.options, self._records[row.source.name]
        key = artifact_key(row, record, environment, options)
        started = time.monotonic()
        with lock(options.out, row.label):
            value = None if options.force else cached(row, record, options.out, key)
            if value is not None:
                return manifest.summary_row(value, cached=True, seconds=0.0)
            with staging(options.out) as folder:
                job = {
                    "label": row.label,
                    "key": key,
                    "code": code_of(row.target),
                    "judged_as": judged_as(record),
                    "program": str(program_folder(options.out, row.source)),
                    "record": record_key(record),
                    "directory": str(folder),
                    "target": row.target.name,
                    "precision": row.precision,
                    "toolchain": environment.versions(row.target.packages),
                    "strict": options.strict,
                    "min_delegated": options.min_delegated,
                    "keep_float": list(options.keep_float),
                    "auto_mixed": options.auto_mixed,
                    "max_metric_drop": options.max_metric_drop,
                    "log": str(self._workers.log(row.target.name)),
                }
                value = self._submit(worker, job, row, folder)
                # A full disk, or another build's program, says nothing about the artifact that is there: it stays.
                # Any other failure replaces it, so that nobody ships what no longer follows from the sources.
                if (value["error"] or {}).get("code") != StorageError.code:
                    put_folder(folder, row.place(options.out))
        seconds = time.monotonic() - started
        say(f"{row.label}: {value['status']} in {seconds:.1f} s")
        return manifest.summary_row(value, cached=False, seconds=seconds)

    def _submit(self, worker: Worker, job: Mapping[str, Any], row: Row, folder: Path) -> dict[str, Any]:
        """The manifest of a job, whatever became of it."""
        try:
            answer = worker.submit(job, lambda stage: say(f"{row.label}: {stage}"))
        except ConverterCrash as crash:
            if self._interrupted:
                raise
            answer = {"error": error_to_json(crash)}
        if "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        value = manifest.begin(self._records[row.source.name], job)
        value |= {"status": "failed:lower", "error": manifest.failure(answer["error"])}
        manifest.write(folder, value)
        return value

    def _failed(self, row: Row, stage: str, error: Mapping[str, Any]) -> dict[str, Any]:
        return outcomes.failed(row, stage, error, debug=self.options.debug)


def default_targets(platform: str | None, facts: Mapping[str, TargetFacts]) -> tuple[str, ...]:
    """The targets of a platform; all of them without one."""
    return tuple(n for n, f in facts.items() if platform is None or platform in f.platforms)
