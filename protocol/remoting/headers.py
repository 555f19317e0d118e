"""The header of a remoting frame, in both of its serialisations: JSON, and RocketMQ's binary form.

The decoders take all that Java takes; the encoders write text values, which every client reads.
msgspec reads and writes what nearly every client does. It leaves all else to the plain codec of the
standard library, which is the oracle, and names what is wrong.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

from protocol.record.java_hash import java_text
from protocol.remoting.codes import LANGUAGES, LANGUAGES_BY_NAME, VERSION, BrokenFrame, Language
from protocol.remoting.java_json import INT32_MAX, INT32_MIN, sound_text

EXT_FIELDS_MAX = 256
ANSWER, ONE_WAY = 1, 2
"""Bits of the flag."""

_BINARY = struct.Struct(">hBhiii")
_REMARK_AT = _BINARY.size
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_unpack_int16, _unpack_int32 = _INT16.unpack_from, _INT32.unpack_from
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NO_EXT: Mapping[str, str] = MappingProxyType({})
_NAMES = {language: language.name for language in Language}


class Serialization(IntEnum):
    """The form of a header, as the frame names it."""

    JSON = 0
    ROCKETMQ = 1


# Names of their own: Python 3.11 takes a tenth of a microsecond to find the member of an enum.
_JSON, _ROCKETMQ, _OTHER = Serialization.JSON, Serialization.ROCKETMQ, Language.OTHER


class RemotingHeader(NamedTuple):
    """The fields of a frame's header, whichever its form.

    `code` is a request code, or in an answer a response code. `opaque` pairs an answer with its
    request. `ext` holds the fields of the request: texts, but not always those that it should.
    """

    code: int
    opaque: int
    flag: int = 0
    ext: Mapping[str, str] = _NO_EXT
    remark: str | None = None
    language: Language = Language.OTHER
    version: int = VERSION
    serialization: Serialization = Serialization.JSON

    @property
    def is_answer(self) -> bool:
        """True for an answer, False for a request."""
        return bool(self.flag & ANSWER)

    @property
    def is_one_way(self) -> bool:
        """True for a request that gets no answer, whatever comes of it."""
        return bool(self.flag & ONE_WAY)

    def answer(
        self, code: int, ext: Mapping[str, str] = _NO_EXT, remark: str | None = None
    ) -> "RemotingHeader":
        """Returns the header of an answer to this request, in the same form."""
        return RemotingHeader(
            code, self.opaque, ANSWER, ext, remark, serialization=self.serialization
        )


class _UsualHeader(
    msgspec.Struct,
    gc=False,
    # The values of unknown fields would not be checked, so the plain decoder has to see them.
    forbid_unknown_fields=True,
    rename={"ext": "extFields", "form": "serializeTypeCurrentRPC"},
):
    code: Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)] = 0
    opaque: Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)] = 0
    flag: Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)] = 0
    version: Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)] = 0
    ext: dict[str, str] | None = None
    remark: str | None = None
    language: str = "JAVA"
    form: str = ""


_usual_header = msgspec.json.Decoder(_UsualHeader).decode
_encode_usual = msgspec.json.Encoder().encode


def decode_header(serialization: int, data: memoryview) -> RemotingHeader:
    """Returns the header in `data`. Raises BrokenFrame, whatever the bytes are."""
    if serialization == _ROCKETMQ:
        return decode_binary(data)
    try:
        found = _usual_header(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return decode_json_plain(data)
    if len(ext := found.ext or {}) > EXT_FIELDS_MAX:
        raise _too_many(len(ext))
    return tuple.__new__(
        RemotingHeader,
        (
            found.code,
            found.opaque,
            found.flag,
            ext,
            found.remark,
            LANGUAGES_BY_NAME.get(found.language, _OTHER),
            found.version,
            _JSON,
        ),
    )


def encode_header(header: RemotingHeader) -> bytes:
    """Returns the header in its form."""
    if header.serialization == _ROCKETMQ:
        return encode_binary(header)
    try:
        encoded: bytes = _encode_usual(_document(header))
    except UnicodeError:
        return encode_json_plain(header)
    return encoded


def encode_json_plain(header: RemotingHeader) -> bytes:
    """As `encode_header` for JSON, with the standard library. The oracle for it."""
    # Half a surrogate pair becomes a question mark, as in Java.
    return _ENCODE(_document(header)).encode("utf-8", "replace")


def _document(header: RemotingHeader) -> dict[str, Any]:
    """The header as a map, with its keys in Java's order, without those that are null."""
    document: dict[str, Any] = {"code": header.code}
    if header.ext:
        document["extFields"] = header.ext
    document["flag"] = header.flag
    document["language"] = _NAMES[header.language]
    document["opaque"] = header.opaque
    if header.remark is not None:
        document["remark"] = header.remark
    document["serializeTypeCurrentRPC"] = "JSON"
    document["version"] = header.version
    return document


def decode_json_plain(data: memoryview) -> RemotingHeader:
    """As `decode_header` for JSON, with the standard library. The oracle for it.

    Java takes numbers and booleans as values of `extFields`, a language as a number, and a header
    without a language for its own.
    """
    try:
        found = json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"the header is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BrokenFrame(f"the header is {type(found).__name__}, not a map")
    ext = found.get("extFields") or {}
    if not isinstance(ext, dict):
        raise BrokenFrame(f"extFields is {type(ext).__name__}, not a map")
    if len(ext) > EXT_FIELDS_MAX:
        raise _too_many(len(ext))
    remark = found.get("remark")
    return RemotingHeader(
        code=_number(found, "code"),
        opaque=_number(found, "opaque"),
        flag=_number(found, "flag"),
        ext={
            sound_text(name): _text(name, value) for name, value in ext.items() if value is not None
        },
        remark=None if remark is None else _text("remark", remark),
        language=_language(found.get("language")),
        version=_number(found, "version"),
    )


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    if value is None:
        return 0
    try:
        number = int(value) if isinstance(value, int | str) or value.is_integer() else None
    except (ValueError, AttributeError):
        number = None
    if number is None or isinstance(value, bool) or not INT32_MIN <= number <= INT32_MAX:
        raise BrokenFrame(f"{name} is {_shown(value)}, not a number of 32 bits")
    return number


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise BrokenFrame(f"{name[:40]!a} is {_shown(value)}, not a text")


def _language(value: Any) -> Language:
    """Java writes the name and takes the number too. Unknown ones are nobody's: OTHER."""
    if value is None:
        return Language.JAVA
    if isinstance(value, str):
        return LANGUAGES_BY_NAME.get(value, _OTHER)
    return LANGUAGES.get(value, _OTHER) if isinstance(value, int) else _OTHER


def _shown(value: Any) -> str:
    return f"{value[:40]!a}" if isinstance(value, str) else type(value).__name__


def _too_many(count: int) -> BrokenFrame:
    return BrokenFrame(f"the header has {count} fields", f"send up to {EXT_FIELDS_MAX}")


def decode_binary(data: memoryview) -> RemotingHeader:
    """As `decode_header` for the binary form. A text of no bytes is null there, so it is absent."""
    header = bytes(data)
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY.unpack_from(header)
        ext_at = _REMARK_AT + max(remark_bytes, 0)
        (ext_bytes,) = _INT32.unpack_from(header, ext_at)
    except struct.error:
        raise BrokenFrame("the binary header ends within its remark") from None
    at = ext_at + _INT32.size
    return RemotingHeader(
        code,
        opaque,
        flag,
        _decode_ext(header[at : at + max(ext_bytes, 0)], ext_bytes),
        _utf8(header[_REMARK_AT:ext_at]) or None,
        LANGUAGES.get(language, _OTHER),
        version,
        Serialization.ROCKETMQ,
    )


def _decode_ext(data: bytes, size: int) -> dict[str, str]:
    """Pairs of a name, after its length in 16 bits, and a value, after its length in 32 bits."""
    ext: dict[str, str] = {}
    at = 0
    for number in range(EXT_FIELDS_MAX + 1):
        if at >= size:
            return ext
        try:
            (name_bytes,) = _unpack_int16(data, at)
            name_at = at + _INT16.size
            name_end = name_at + name_bytes if name_bytes > 0 else name_at
            (value_bytes,) = _unpack_int32(data, name_end)
        except struct.error:
            raise _cut(number) from None
        value_at = name_end + _INT32.size
        at = value_at + value_bytes if value_bytes > 0 else value_at
        if at > len(data):
            raise _cut(number)
        if name_at < name_end and value_at < at:
            ext[_utf8(data[name_at:name_end])] = _utf8(data[value_at:at])
    raise _too_many(EXT_FIELDS_MAX + 1)


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return java_text(data)


def _cut(number: int) -> BrokenFrame:
    return BrokenFrame(f"field {number} of the binary header does not end within it")


def encode_binary(header: RemotingHeader) -> bytes:
    """As `encode_header` for the binary form. It keeps the lowest 16 bits of a code."""
    remark = (header.remark or "").encode("utf-8", "replace")
    ext = b"".join(
        _INT16.pack(len(key)) + key + _INT32.pack(len(text)) + text
        for name, value in header.ext.items()
        if (key := name.encode("utf-8", "replace")) and (text := value.encode("utf-8", "replace"))
    )
    fixed = _BINARY.pack(
        _lowest_16_bits(header.code),
        header.language,
        _lowest_16_bits(header.version),
        header.opaque,
        header.flag,
        len(remark),
    )
    return fixed + remark + _INT32.pack(len(ext)) + ext


def _lowest_16_bits(number: int) -> int:
    return (number + 0x8000) % 0x10000 - 0x8000
