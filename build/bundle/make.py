"""``bundle``: choose, gather, pack. The bundle's folder appears below ``OUT/bundles`` whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from build import envs
from build.bundle import archive, contents, provenance, readme, sbom, signing
from build.bundle import manifest as manifests
from build.bundle.choose import Chosen, choose
from build.bundle.options import BundleOptions
from build.cache import lock, put_folder, sha256_file, staging, sweep, write_atomic
from build.driver import CAPTURE_GROUP
from build.errors import EdgeportError
from build.log import fail, say
from build.manifest import failure
from build.protocol import error_to_json
from build.sources import sources
from build.summary import size_text

SCHEMA_VERSION = 1
#: beside the archive, for machines that look at many bundles
SIDECARS = (manifests.FILE, sbom.FILE, provenance.FILE)


def bundle(options: BundleOptions) -> int:
    """Make every bundle asked for; print each one's path and sha256.

    Returns:
        0, or the exit code of the first bundle that was refused; the others are made all the same.
    """
    rows: list[dict[str, Any]] = []
    first: EdgeportError | None = None
    sweep(options.build.out)
    environment = envs.ready(CAPTURE_GROUP)
    for source in sources(options.build, environment.packages if environment else {}):
        key = source.key if environment else None
        for platform in options.platforms:
            try:
                rows.append(_one(options, choose(options, source.name, platform, captured_as=key)))
            except EdgeportError as error:
                fail(error)
                first = first or error
    if options.build.json is not None:
        error_json = None if first is None else failure(error_to_json(first))
        value = {"schema_version": SCHEMA_VERSION, "bundles": rows, "error": error_json}
        write_atomic(options.build.json, json.dumps(value, indent=1) + "\n")
    return 0 if first is None else first.exit_code


def _one(options: BundleOptions, chosen: Chosen) -> dict[str, Any]:
    exceptions = chosen.settle(options.allow, options.like)
    name = f"{manifests.bundle_name(chosen.record.name, chosen.platform)}-{options.version}"
    place = options.build.out / "bundles" / name
    for exception in exceptions:
        say(f"{name}: excepted: {exception['what']}")
    with lock(options.build.out, f"bundle {name}"), staging(options.build.out) as folder:
        folder.joinpath("parts").mkdir()
        folder.joinpath("bundle").mkdir()
        manifest = pack(options, chosen, exceptions, folder / "parts", folder / "bundle")
        put_folder(folder / "bundle", place)
    file = place / f"{name}.zip"
    row = {
        "name": manifest["name"],
        "version": manifest["version"],
        "platform": chosen.platform,
        "model": chosen.record.name,
        "path": str(file),
        "bytes": file.stat().st_size,
        "sha256": sha256_file(file),
        "artifacts": [{"target": a["target"], "precision": a["precision"]} for a in manifest["artifacts"]],
        "exceptions": exceptions,
        "signed": options.sign is not None,
    }
    print(f"{file}  {size_text(row['bytes'])}  {contents.summary(manifest)}\nsha256 {row['sha256']}", flush=True)
    return row


def pack(
    options: BundleOptions, chosen: Chosen, exceptions: Sequence[Mapping[str, str]], parts: Path, place: Path
) -> dict[str, Any]:
    """Write the archive and what lies beside it into an empty folder.

    Args:
        parts: another empty folder, for what is made on the way.

    Returns:
        The manifest.
    """
    files, contract = contents.gather(chosen, parts)
    programs: frozenset[str] = frozenset()
    if options.harness:
        found, programs = contents.harness(chosen, contract, parts)
        files |= found
    files |= readme.write(options, chosen, contract, parts)
    manifest = manifests.make(options, chosen, files, exceptions, contract)
    return write_bundle(manifest, files, place, programs=programs, sign=options.sign, parts=parts)


def write_bundle(
    manifest: Mapping[str, Any],
    files: Mapping[str, Path],
    place: Path,
    *,
    parts: Path,
    programs: frozenset[str] = frozenset(),
    sign: Path | None = None,
) -> dict[str, Any]:
    """Write archive, manifest, bill of materials, provenance and checksums of a manifest that stands."""
    value = json.loads(manifests.text(manifest))
    top = f"{value['name']}-{value['version']}"
    written = contents.put(parts, manifests.FILE, manifests.text(value))
    file = place / f"{top}.zip"
    archive.write({**files, **written}, file, top=top, executables=programs)
    (place / manifests.FILE).write_bytes(written[manifests.FILE].read_bytes())
    digest = sha256_file(file)
    bill = sbom.make(value, digest)
    statement = provenance.make(value, provenance.subjects(file.name, digest, bill))
    contents.put(place, sbom.FILE, manifests.text(bill))
    contents.put(place, provenance.FILE, manifests.text(statement))
    signing.write_sums(place)
    if sign is not None:
        signing.sign(place, sign)
    return dict(value)
