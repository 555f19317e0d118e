"""What a node says of its own certificate: until when it is valid (RFC 5280, 4.1.2.5).

Python's `ssl` shows that of a peer's certificate alone. OpenSSL decides which peers may connect.
"""

import binascii
import re
from datetime import UTC, datetime

from protocol.errors import BadRequest

_PEM = re.compile(
    r"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.*?)-----END", re.DOTALL | re.ASCII
)
_SEQUENCE, _VERSION, _UTC_TIME, _TIME = 0x30, 0xA0, 0x17, 0x18
_LENGTH_BYTES_MAX = 4
_CENTURY_FROM = 50
"""A year of two digits from here on is of the last century."""


def valid_until_ms(pem: str) -> int:
    """When the first certificate of a PEM text ends, in ms since 1970. Raises BadRequest for a text
    without one that can be read."""
    found = _PEM.search(pem)
    if found is None:
        raise BadRequest("there is no certificate in it", "write PEM: -----BEGIN CERTIFICATE-----")
    try:
        return _end_of(binascii.a2b_base64(found[1]))
    except (ValueError, IndexError) as error:
        raise BadRequest(f"its first certificate cannot be read: {error}") from None


def _end_of(der: bytes) -> int:
    whole, _ = _take(der, _SEQUENCE)
    rest, _ = _take(whole, _SEQUENCE)
    if rest[0] == _VERSION:
        _, rest = _take(rest)
    for _field in ("serial number", "signature", "issuer"):
        _, rest = _take(rest)
    validity, _ = _take(rest, _SEQUENCE)
    _, ends = _take(validity)
    text, _ = _take(ends)
    if ends[0] not in (_UTC_TIME, _TIME):
        raise ValueError(f"its end has the tag {ends[0]:#x}")
    digits = text.decode("ascii")
    if ends[0] == _UTC_TIME:
        digits = ("19" if int(digits[:2]) >= _CENTURY_FROM else "20") + digits
    return int(datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def _take(data: bytes, tag: int | None = None) -> tuple[bytes, bytes]:
    """The content of the first element of DER, and what comes after it. Raises ValueError."""
    if tag is not None and data[0] != tag:
        raise ValueError(f"the tag {data[0]:#x} is there for {tag:#x}")
    size, begin = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        if count > _LENGTH_BYTES_MAX:
            raise ValueError(f"a length has {count} bytes")
        begin += count
        size = int.from_bytes(data[2:begin], "big")
    if begin + size > len(data):
        raise ValueError(f"{size} bytes are announced, {len(data) - begin} are there")
    return data[begin : begin + size], data[begin + size :]
