"""The saved package: written so that the same model gives the same bytes, and read back to see what it declares."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.cache import sha256_file
from build.errors import VerificationError

SPEC = Path("Data/com.apple.CoreML/model.mlmodel")
WEIGHTS = Path("Data/com.apple.CoreML/weights/weight.bin")
#: sha256 of the weight file, in the package's own metadata.
WEIGHTS_KEY = "edgeport.weights_sha256"
MANIFEST = Path("Manifest.json")

#: coremltools's map from ExecuTorch's debug handles, of which we have none; the package's manifest does not list it.
_DEBUG = "executorch_debug_handle_mapping.json"

#: the day of the conversion, which coremltools writes down.
_DATE = "com.github.apple.coremltools.conversion_date"
#: namespace of the package items' identifiers, which are derived from their paths.
_NAMESPACE = uuid.UUID("6f1d53cc-6a53-5f07-9d0b-2f6e6c1f8a11")


def read_spec(package: Path) -> Any:
    """The package's specification (a protobuf ``Model``).

    Raises:
        VerificationError: there is none, or it cannot be read.
    """
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    try:
        spec.ParseFromString((package / SPEC).read_bytes())
    except (OSError, ValueError) as error:
        raise VerificationError(f"{package.name} cannot be read: {error}") from error
    except Exception as error:  # protobuf's DecodeError has no public base
        raise VerificationError(f"{package.name} is damaged: {error}") from error
    return spec


def finish(package: Path, metadata: Mapping[str, str]) -> None:
    """Add our metadata and take out what differs from run to run: the date, random identifiers, the order of maps."""
    spec = read_spec(package)
    weights = {WEIGHTS_KEY: sha256_file(package / WEIGHTS)} if (package / WEIGHTS).is_file() else {}
    for key, value in {**metadata, **weights}.items():
        spec.description.metadata.userDefined[key] = value
    spec.description.metadata.userDefined.pop(_DATE, None)
    (package / SPEC).write_bytes(spec.SerializeToString(deterministic=True))
    (package / _DEBUG).unlink(missing_ok=True)
    manifest = json.loads((package / MANIFEST).read_text())
    fresh = {old: str(uuid.uuid5(_NAMESPACE, item["path"])) for old, item in manifest["itemInfoEntries"].items()}
    manifest["itemInfoEntries"] = {fresh[old]: item for old, item in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = fresh[manifest["rootModelIdentifier"]]
    (package / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def check_weights(package: Path, metadata: Mapping[str, str]) -> None:
    """Compare the weight file with the hash that the package keeps of it.

    Raises:
        VerificationError: they differ, or one of them is missing.
    """
    found = sha256_file(package / WEIGHTS) if (package / WEIGHTS).is_file() else ""
    wanted = metadata.get(WEIGHTS_KEY, "")
    if found != wanted:
        raise VerificationError(
            f"{package.name}: the weights are not those that were saved (sha256 {found[:12] or 'none'}…, "
            f"{wanted[:12] or 'none'}… when it was made)"
        )


def names(spec: Any) -> tuple[list[str], list[str]]:
    """Input and output names, in the package's order."""
    return [f.name for f in spec.description.input], [f.name for f in spec.description.output]
