"""The options after ``--`` of the sessions that bundle, check and release. Standard library only."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from build import options as cli
from build.bundle import documents
from build.bundle.version import Version
from build.errors import InputError
from targets.registry import all_targets, platforms

MANIFEST_SCHEMA = Path(__file__).with_name("manifest.schema.json")
DEFAULT_VERSION = "0.1.0"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """What ``bundle`` was asked for.

    Attributes:
        build: the options shared with the build: models, targets, precisions, budgets, ``out``.
        results: folder of measurements.
        allow: why refusals that can be excepted are.
        sign: private key, PEM.
        harness: pack the measuring harness too.
        like: another bundle's manifest: the same artifacts, its measurements, verdicts and exceptions taken over.
    """

    build: cli.Options
    platforms: tuple[str, ...]
    version: Version
    results: Path | None
    device_class: str
    allow: str | None
    sign: Path | None
    harness: bool
    like: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What ``verify-bundle`` was asked for. ``key``: public key, PEM; with one, the signature must be there."""

    file: Path
    key: Path | None
    json: Path | None
    debug: bool


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What ``reproduce`` was asked for. ``source``: options that name the program, where it isn't one of ours."""

    bundle: Path
    source: tuple[str, ...]
    jobs: int
    json: Path | None
    debug: bool


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """What ``promote``, ``rollback`` or ``history`` was asked for.

    Attributes:
        release: a folder, or a URL that fsspec knows.
        bundles: where fresh bundles lie.
        version: to promote, or to roll back to (None: to the one before).
    """

    release: str
    bundles: Path
    name: str
    channel: str | None
    version: Version | None
    key: Path | None
    json: Path | None
    debug: bool


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are errors of ours."""

    def __init__(self, session: str) -> None:
        super().__init__(
            prog=f"nox -s {session} --", formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Raise it."""
        raise InputError(message, remedy="Run with -- --help to see the options.")


def bundle_parser(session: str) -> Parser:
    """Options of ``bundle`` that a build does not have; the rest is a build's."""
    p = Parser(session)
    p.add_argument("--version", default=DEFAULT_VERSION, metavar="X.Y.Z", help="the bundle's semantic version")
    p.add_argument("--results", metavar="DIR", help="measurements (device_bench) to judge budgets by and to enclose")
    p.add_argument("--device-class", default="*", metavar="NAME", help="whose budgets the measured devices stand for")
    p.add_argument("--allow", metavar="REASON", help="bundle in spite of refusals; REASON is recorded in the manifest")
    p.add_argument("--sign", metavar="KEY.pem", help="sign with this ed25519 private key")
    p.add_argument("--like", metavar="MANIFEST", help="make what this manifest says, its measurements taken over")
    p.add_argument("--harness", action="store_true", help="enclose the measuring harness (for web: a page)")
    return p


def parse_bundle(session: str, argv: Sequence[str]) -> BundleOptions:
    """Parse the options of ``bundle`` or ``bundle-PLATFORM``.

    Raises:
        InputError: unknown options, paths that do not exist, a version that is none.
    """
    raw, rest = bundle_parser(session).parse_known_args(list(argv))
    known = platforms()
    wanted = tuple(known) if session == "bundle" else (session.removeprefix("bundle-"),)
    if not set(wanted) <= set(known):
        raise InputError(f"no platform is named '{wanted[0]}'", remedy=f"Platforms: {', '.join(known)}.")
    names = tuple(n for n, f in all_targets().items() if set(wanted) & set(f.platforms))
    if raw.allow is not None and not raw.allow.strip():
        raise InputError("--allow needs a reason", remedy='Say why, as the next reader needs it: --allow "…".')
    file = _file(raw.like, "--like")
    like = None if file is None else documents.read(file, MANIFEST_SCHEMA, file.name)
    return BundleOptions(
        build=cli.parse(session, names, rest),
        platforms=wanted,
        version=Version(raw.version),
        results=_folder(raw.results, "--results"),
        device_class=raw.device_class,
        allow=raw.allow,
        sign=_file(raw.sign, "--sign"),
        harness=raw.harness or bool(like and like["recipe"]["harness"]),
        like=like,
    )


def parse_verify(session: str, argv: Sequence[str]) -> VerifyOptions:
    """Parse the options of ``verify-bundle``.

    Raises:
        InputError: unknown options, files that do not exist.
    """
    p = verify_parser(session)
    raw = p.parse_args(list(argv))
    return VerifyOptions(
        file=archive_in(raw.file),
        key=_file(raw.key, "--key"),
        json=cli.file_to_write(raw.json, "--json"),
        debug=bool(raw.debug),
    )


def verify_parser(session: str) -> Parser:
    """Options of ``verify-bundle``."""
    p = Parser(session)
    p.add_argument("file", metavar="FILE", help="a bundle's .zip, or the folder it lies in")
    p.add_argument("--key", metavar="KEY.pem", help="ed25519 public key: the signature must be there, and by it")
    _common(p)
    return p


def reproduce_parser(session: str) -> Parser:
    """Options of ``reproduce``."""
    p = Parser(session)
    p.add_argument("bundle", metavar="BUNDLE", help="a bundle's .zip, or the folder it lies in")
    p.add_argument("--program", metavar="FILE.pt2", help="the program, where the bundle was made from a file")
    p.add_argument("--module", metavar="FILE.py:FACTORY", help="the module, where the bundle was made from one")
    p.add_argument("--data", metavar="FILE.safetensors", help="as it was given to the build")
    p.add_argument("--calibration", metavar="FILE.safetensors", help="as it was given to the build")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="targets built at once")
    _common(p)
    return p


def parse_reproduce(session: str, argv: Sequence[str]) -> ReproduceOptions:
    """Parse the options of ``reproduce``.

    Raises:
        InputError: unknown options, files that do not exist.
    """
    raw = reproduce_parser(session).parse_args(list(argv))
    source: list[str] = []
    for name in ("program", "data", "calibration"):
        found = _file(getattr(raw, name), f"--{name}")
        source += [] if found is None else [f"--{name}", str(found)]
    if raw.module is not None:
        file, _, factory = raw.module.rpartition(":")
        source += ["--module", f"{_file(file or raw.module, '--module')}:{factory}"]
    return ReproduceOptions(
        bundle=archive_in(raw.bundle),
        source=tuple(source),
        jobs=raw.jobs,
        json=cli.file_to_write(raw.json, "--json"),
        debug=raw.debug,
    )


def release_parser(session: str) -> Parser:
    """Options of ``promote``, ``rollback`` and ``history``."""
    p = Parser(session)
    p.add_argument("name", metavar="NAME", help="MODEL-PLATFORM, such as digits_cnn-android")
    if session == "promote":
        p.add_argument("version", metavar="VERSION")
        p.add_argument("channel", metavar="CHANNEL", help="such as canary or stable")
        p.add_argument("--key", metavar="KEY.pem", help="ed25519 public key: the bundle must be signed by it")
    elif session == "rollback":
        p.add_argument("channel", metavar="CHANNEL")
        p.add_argument("--to", metavar="VERSION", help="a published version (default: the one before)")
    else:
        p.add_argument("channel", metavar="CHANNEL", nargs="?", help="default: every one")
    p.add_argument("--release", default="out/release", metavar="DIR|URL", help="the release directory")
    p.add_argument("--out", default="out", metavar="DIR", help="where the bundles were made")
    _common(p)
    return p


def parse_release(session: str, argv: Sequence[str]) -> ReleaseOptions:
    """Parse the options of ``promote``, ``rollback`` and ``history``.

    Raises:
        InputError: unknown options, names that can't be one part of a path.
    """
    raw = release_parser(session).parse_args(list(argv))
    for what in ("name", "channel"):
        text = getattr(raw, what)
        if text is not None and _NAME.fullmatch(text) is None:
            raise InputError(f"'{text[:80]}' cannot be a {what}", remedy="Letters, digits, '-', '_' and '.'.")
    version = getattr(raw, "version", None) or getattr(raw, "to", None)
    return ReleaseOptions(
        release=raw.release,
        bundles=Path(raw.out).resolve() / "bundles",
        name=raw.name,
        channel=raw.channel,
        version=Version(version) if version else None,
        key=_file(getattr(raw, "key", None), "--key"),
        json=cli.file_to_write(raw.json, "--json"),
        debug=raw.debug,
    )


def _common(p: Parser) -> None:
    p.add_argument("--json", metavar="FILE", help="write the result as JSON")
    p.add_argument("--debug", action="store_true", help="show tracebacks")


def archive_in(name: str) -> Path:
    """The archive that a user means: a file, or the one ``.zip`` of a folder.

    Raises:
        InputError: there is none, or there are several.
    """
    path = Path(name).resolve()
    if path.is_file():
        return path
    found = sorted(path.glob("*.zip")) if path.is_dir() else []
    if len(found) != 1:
        raise InputError(f"'{name}' is no bundle", remedy="Give a bundle's .zip, or the folder that it lies in.")
    return found[0]


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).resolve()


def _file(text: str | None, option: str) -> Path | None:
    path = _path(text)
    if path is not None and not path.is_file():
        raise InputError(f"{option} {text}: no such file")
    return path


def _folder(text: str | None, option: str) -> Path | None:
    path = _path(text)
    if path is not None and not path.is_dir():
        raise InputError(f"{option} {text}: no such folder")
    return path
