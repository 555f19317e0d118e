"""Bodies that their producer compressed, unpacked up to a bound: few bytes may become very many."""

import zlib
from typing import NamedTuple

from protocol.record.bodies import COMPRESSED, COMPRESSION_TYPE_MASK

UNPACKED_BYTES_MAX = 4 * 1024 * 1024
_LZ4, _ZSTD = 0x100, 0x200


class Unpacked(NamedTuple):
    """A body as its producer gave it, or the begin of it."""

    data: bytes
    codec: str
    """Empty for one that was not compressed."""
    is_cut: bool = False
    """Whether it would go on."""
    why: str = ""
    """Why it is shown as it is stored."""


def unpacked(stored: bytes, sys_flag: int, most: int = UNPACKED_BYTES_MAX) -> Unpacked:
    """The body, at most `most` bytes of it; as stored where nothing here unpacks it."""
    if not sys_flag & COMPRESSED:
        return Unpacked(stored, "")
    kind = sys_flag & COMPRESSION_TYPE_MASK
    if kind == _LZ4:
        return _by_lz4(stored, most)
    return _by_zstd(stored, most) if kind == _ZSTD else _by_zlib(stored, most)


def _by_zlib(stored: bytes, most: int) -> Unpacked:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(stored, most)
    except zlib.error as error:
        return Unpacked(stored, "zlib", why=f"its zlib stream is broken: {error}")
    return _found(data, stored, "zlib", not stream.eof, most)


def _by_lz4(stored: bytes, most: int) -> Unpacked:
    try:
        from lz4.frame import LZ4FrameDecompressor
    except ImportError:
        return Unpacked(stored, "LZ4", why="the package lz4 is not installed here")
    stream = LZ4FrameDecompressor()
    try:
        data = bytes(stream.decompress(stored, most))
    except (RuntimeError, EOFError) as error:
        return Unpacked(stored, "LZ4", why=f"its LZ4 stream is broken: {error}")
    return _found(data, stored, "LZ4", not stream.eof, most)


def _by_zstd(stored: bytes, most: int) -> Unpacked:
    try:
        import zstandard
    except ImportError:
        return Unpacked(stored, "ZSTD", why="the package zstandard is not installed here")
    try:
        with zstandard.ZstdDecompressor().stream_reader(stored) as stream:
            data = stream.read(most)
            is_cut = bool(stream.read(1))
    except zstandard.ZstdError as error:
        return Unpacked(stored, "ZSTD", why=f"its ZSTD stream is broken: {error}")
    return _found(data, stored, "ZSTD", is_cut, most)


def _found(data: bytes, stored: bytes, codec: str, is_cut: bool, most: int) -> Unpacked:
    """A stream that ends before its end is shown as it is stored."""
    if is_cut and len(data) < most:
        return Unpacked(stored, codec, why=f"its {codec} stream is broken: it ends too early")
    return Unpacked(data, codec, is_cut)
