"""Mutants of any file: its bytes changed."""

from __future__ import annotations

import random

from tests.fuzz.parts import Mutator


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def swap_chunks(data: bytes, rng: random.Random) -> bytes:
    n = rng.choice((1, 4, 64, 512))
    a, b = (rng.randrange(max(len(data) - n, 1)) for _ in range(2))
    out = bytearray(data)
    out[a : a + n], out[b : b + n] = data[b : b + n], data[a : a + n]
    return bytes(out)


def zero_range(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data))
    n = rng.choice((1, 16, 256))
    return data[:a] + bytes(len(data[a : a + n])) + data[a + n :]


def insert_bytes(data: bytes, rng: random.Random) -> bytes:
    a = rng.choice((0, len(data), rng.randrange(len(data))))
    return data[:a] + rng.randbytes(rng.choice((1, 7, 100))) + data[a:]


def overwrite_word(data: bytes, rng: random.Random) -> bytes:
    """A 4- or 8-byte number somewhere, as lengths and offsets are."""
    width = rng.choice((2, 4, 8))
    a = rng.randrange(len(data) - width)
    value = rng.choice((0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), rng.randrange(2 ** (8 * width))))
    return data[:a] + value.to_bytes(width, "little") + data[a + width :]


BYTE_MUTATORS: tuple[Mutator, ...] = (flip_bit, truncate, swap_chunks, zero_range, insert_bytes, overwrite_word)
