"""Bodies that their producer compressed, as `sys_flag` says (MessageSysFlag, CompressionType).

The log keeps them as they came. RocketMQ's Java client compresses by zlib from 4 KiB on by
default; clients in other languages leave the type out, which means zlib too. LZ4 and ZSTD
need a library each, which is imported when the first such body is read.
"""

import zlib
from collections.abc import Callable

COMPRESSED = 0x1
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_BITS = COMPRESSED | COMPRESSION_TYPE_MASK
PLAIN_BODY_BYTES_MAX = 64 * 1024 * 1024
"""A body that becomes larger is not unpacked: few bytes may become very many."""


class BrokenBody(ValueError):
    """The compressed bytes break the rules of their codec, or become too many."""


class UnknownCodec(ValueError):
    """Nothing here unpacks such a body; the second argument says what to try."""


def unpack(stored: bytes, sys_flag: int) -> bytes:
    """The body as its producer's program gave it.

    Raises BrokenBody, and UnknownCodec for a codec that is not known, or not installed.
    """
    if not sys_flag & COMPRESSED:
        return stored
    kind = sys_flag & COMPRESSION_TYPE_MASK
    if kind not in _CODECS:
        raise UnknownCodec(f"its compression, type {kind >> 8}, is not known", "a newer Keelog")
    name, inflate = _CODECS[kind]
    plain = inflate(stored)
    if plain is None or len(plain) > PLAIN_BODY_BYTES_MAX:
        raise BrokenBody(
            f"its {name} stream is cut, or becomes larger than {PLAIN_BODY_BYTES_MAX} bytes"
        )
    return plain


# Each returns None for a stream that did not end within one byte more than is allowed.


def _by_zlib(stored: bytes) -> bytes | None:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(stored, PLAIN_BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise BrokenBody(f"its zlib stream is broken: {error}") from None
    return plain if stream.eof else None


def _by_lz4(stored: bytes) -> bytes | None:
    try:
        from lz4.frame import LZ4FrameDecompressor
    except ImportError:
        raise _missing("LZ4", "lz4") from None
    stream = LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(stored, PLAIN_BODY_BYTES_MAX + 1)
    except (RuntimeError, EOFError) as error:
        raise BrokenBody(f"its LZ4 stream is broken: {error}") from None
    return plain if stream.eof else None


def _by_zstd(stored: bytes) -> bytes | None:
    try:
        import zstandard
    except ImportError:
        raise _missing("ZSTD", "zstandard") from None
    try:
        # Memory is taken for what the stream's head states, -1 where it states nothing.
        if zstandard.frame_content_size(stored) > PLAIN_BODY_BYTES_MAX:
            return None
        return zstandard.ZstdDecompressor().decompress(stored, PLAIN_BODY_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise BrokenBody(
            f"its ZSTD stream is broken, or becomes larger than {PLAIN_BODY_BYTES_MAX} bytes:"
            f" {error}"
        ) from None


def _missing(name: str, package: str) -> UnknownCodec:
    why = f"it is compressed by {name}, and the Python package {package} is not installed"
    return UnknownCodec(why, f"pip install {package}")


_CODECS: dict[int, tuple[str, Callable[[bytes], bytes | None]]] = {
    0x000: ("zlib", _by_zlib),
    0x100: ("LZ4", _by_lz4),
    0x200: ("ZSTD", _by_zstd),
    0x300: ("zlib", _by_zlib),
}
