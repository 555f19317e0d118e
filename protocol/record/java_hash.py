"""Java's `String.hashCode`, for single strings and for columns of bytes."""

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from protocol.kernel import loader

_MASK = 0xFFFFFFFF
_CACHED_CHARS_MAX = 256
"""Longer strings are not kept: they come from clients, and the cache holds many."""
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_text(data: bytes) -> str:
    """`new String(data, UTF_8)` in Java: what is not UTF-8 becomes U+FFFD.

    As Python's "replace", but for an encoded surrogate, which counts as one and not as up to three.
    """
    if b"\xed" in data:
        data = _ENCODED_SURROGATE.sub(b"\xff", data)
    return data.decode("utf-8", "replace")


def java_hash(text: str) -> int:
    """`text.hashCode()` in Java: over UTF-16 code units, as a signed 32-bit number."""
    return _cached_hash(text) if len(text) <= _CACHED_CHARS_MAX else _plain_hash(text)


def _plain_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK
    return value - (1 << 32) if value >= 1 << 31 else value


_cached_hash = lru_cache(maxsize=65_536)(_plain_hash)


def tags_code(tags: str) -> int:
    """What a ConsumeQueue unit holds for TAGS (tagsString2tagsCode): 0 when there is none."""
    return java_hash(tags) if tags else 0


def powers_of_31(count: int) -> NDArray[np.uint32]:
    """31**i mod 2**32 for i in [0, count)."""
    powers = np.full(max(count, 1), 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


def hash_pieces(
    flat: NDArray[np.uint8], start: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Java hashes of the UTF-8 strings `flat[start:start+length]`, all at once.

    Bytes that are not UTF-8 count as `java_text` has them. Without the kernel, strings that are not
    pure ASCII take the plain path one by one.
    """
    compiled = loader.kernel
    if compiled is not None:
        return compiled.java_hash(flat, start, length)
    hashes, not_ascii = _hashes_of_bytes(flat, start, length)
    for row in np.flatnonzero(not_ascii).tolist():
        hashes[row] = java_hash(java_text(bytes(flat[start[row] : start[row] + length[row]])))
    return hashes


def _hashes_of_bytes(
    flat: NDArray[np.uint8], start: NDArray[np.int64], length: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The hash of each piece, and which are not ASCII, so that theirs is not right."""
    if not len(start):
        return np.empty(0, np.int32), np.empty(0, np.bool_)
    longest = int(length.max())
    total = int(length.sum())
    ends = np.cumsum(length)
    index = np.arange(total) + np.repeat(start - (ends - length), length)
    chars = flat[index]
    weight = powers_of_31(longest)[np.repeat(ends, length) - 1 - np.arange(total)]
    sums = np.zeros(total + 1, np.uint32)
    np.cumsum(chars * weight, dtype=np.uint32, out=sums[1:])
    hashes: NDArray[np.int32] = (sums[ends] - sums[ends - length]).view(np.int32)
    wide = np.zeros(total + 1, np.int64)
    np.cumsum(chars >= 0x80, out=wide[1:])
    return hashes, wide[ends] > wide[ends - length]
