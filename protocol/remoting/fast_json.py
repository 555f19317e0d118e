"""JSON headers by msgspec, where it is installed: a Python without a wheel of it does without.

It takes what nearly every client writes, and leaves all else to the plain codec of
`protocol.remoting.headers`, which names what is wrong: None means that the plain one has to do it.
"""

from collections.abc import Callable
from typing import Annotated, Any

from protocol.remoting.java_json import INT32_MAX, INT32_MIN

Decode = Callable[[memoryview], Any]
Encode = Callable[[dict[str, Any]], bytes | None]


def _nothing(_: Any) -> None:
    return None


def _codec() -> tuple[Decode, Encode]:
    try:
        import msgspec
    except ImportError:
        return _nothing, _nothing
    int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
    numbers = [(name, int32, 0) for name in ("code", "opaque", "flag", "version")]
    others = [
        ("extFields", dict[str, str] | None, None),
        ("remark", str | None, None),
        ("language", str, "JAVA"),
        ("serializeTypeCurrentRPC", str, ""),
    ]
    # The values of unknown fields would not be checked, so the plain decoder has to see them.
    header = msgspec.defstruct("Header", [*numbers, *others], gc=False, forbid_unknown_fields=True)
    decoder, encoder = msgspec.json.Decoder(header), msgspec.json.Encoder()

    def decode(data: memoryview) -> Any:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None

    def encode(document: dict[str, Any]) -> bytes | None:
        try:
            encoded: bytes = encoder.encode(document)
        except UnicodeError:
            return None
        return encoded

    return decode, encode


decode, encode = _codec()
