"""Checksums and ed25519 signatures: of ``SHA256SUMS``, as 64 raw bytes (what ``openssl pkeyutl -rawin`` makes)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from build.cache import sha256_file
from build.errors import InputError, VerificationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\x00-\x1f]+)")


def write_sums(folder: Path) -> None:
    """List every file of a folder, as ``sha256sum`` does."""
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.name not in (SUMS, SIGNATURE))
    (folder / SUMS).write_text("".join(f"{sha256_file(folder / n)}  {n}\n" for n in names))


def read_sums(folder: Path) -> dict[str, str]:
    """Name -> sha256.

    Raises:
        VerificationError: a line is not one of a checksum, or a name comes twice.
    """
    found: dict[str, str] = {}
    text = (folder / SUMS).read_bytes().decode("utf-8", errors="replace")
    for line in text.removesuffix("\n").split("\n"):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise VerificationError(f"{SUMS} is damaged: {line[:80]!r}")
        found[match[2]] = match[1]
    return found


def check_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Compare the files of a folder with their checksums.

    Raises:
        VerificationError: one is missing or altered.
    """
    for name, digest in sums.items():
        path = folder / name
        if not path.is_file():
            raise VerificationError(f"{name} is missing: {SUMS} lists it", remedy="Get the whole bundle again.")
        if sha256_file(path) != digest:
            raise VerificationError(f"{name} is not the file that {SUMS} lists", remedy="Get the whole bundle again.")


def sign(folder: Path, key: Path) -> None:
    """Sign ``SHA256SUMS``.

    Raises:
        InputError: the key is no unencrypted ed25519 private key in PEM.
    """
    (folder / SIGNATURE).write_bytes(private_key(key).sign((folder / SUMS).read_bytes()))


def check_signature(folder: Path, key: Path) -> None:
    """Check the signature of ``SHA256SUMS`` by a public key.

    Raises:
        VerificationError: there is none, or it is not by this key, or not of these bytes.
        InputError: the key is no ed25519 public key in PEM.
    """
    from cryptography.exceptions import InvalidSignature

    public = public_key(key)
    if not (folder / SUMS).is_file() or not (folder / SIGNATURE).is_file():
        raise VerificationError(
            f"the bundle is not signed: there is no {SUMS} with {SIGNATURE} beside it",
            remedy="Ask who made it for the signed one.",
        )
    try:
        public.verify((folder / SIGNATURE).read_bytes(), (folder / SUMS).read_bytes())
    except InvalidSignature as error:
        raise VerificationError(
            f"the signature is not by {key.name}, or not of this {SUMS}", remedy="Do not use it."
        ) from error


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Raises:
        InputError: see :func:`sign`.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path.name} is no private key: {error}", remedy=_MAKE_KEY) from error
    if not isinstance(found, Ed25519PrivateKey):
        raise InputError(f"{path.name} is no ed25519 key", remedy=_MAKE_KEY)
    return found


def public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        InputError: see :func:`check_signature`.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        found = load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path.name} is no public key: {error}", remedy=_MAKE_KEY) from error
    if not isinstance(found, Ed25519PublicKey):
        raise InputError(f"{path.name} is no ed25519 key", remedy=_MAKE_KEY)
    return found


_MAKE_KEY = (
    "Make a pair: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub."
)
