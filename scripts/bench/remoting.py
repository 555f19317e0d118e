"""What a send and its answer cost in the remoting protocol, by the ways that there are.

    python -m scripts.bench.remoting

Needs msgspec, and shows orjson where it is installed. Each figure is the best of many short
rounds, in which the ways take turns.
"""

import json
import timeit
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from protocol.remoting.codes import Language, RequestCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.header_fields import REQUEST_HEADERS, SendMessageHeader, request_fields
from protocol.remoting.headers import (
    RemotingHeader,
    Serialization,
    decode_header,
    decode_json_plain,
    encode_header,
    encode_json_plain,
)

try:
    import orjson
except ImportError:
    HAS_ORJSON = False
else:
    HAS_ORJSON = True

ROUNDS = 1_000
CALLS = 200
FRAMES = 100
UNIQUE_KEY = "7F0000010A2B18B4AAC2000000000001"
SEND = RemotingHeader(
    RequestCode.SEND_MESSAGE_V2,
    12345,
    ext={
        "a": "please_rename_unique_group_name",
        "b": "TopicTest",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": f"KEYS\x01order-17\x02UNIQ_KEY\x01{UNIQUE_KEY}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    },
    language=Language.JAVA,
)
ANSWER = SEND.answer(
    0,
    {
        "queueId": "3",
        "transactionId": UNIQUE_KEY,
        "msgId": "7F00000100002A9F0000000000001234",
        "queueOffset": "12345",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    },
)
TEMPLATE = (
    encode_header(ANSWER)
    .replace(b"%", b"%%")
    .replace(UNIQUE_KEY.encode(), b"%b")
    .replace(b"12345", b"%d")
)
Way = Callable[[], Any]


def decoding(data: memoryview) -> Mapping[str, Way]:
    """Ways from the JSON header of a send to its fields."""
    send = REQUEST_HEADERS[SEND.code]
    int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
    kinds = [("abc", str), ("defh", int32), ("g", int)]
    mandatory = [(name, kind) for names, kind in kinds for name in names]
    others = [("i", str, ""), ("j", int32, 0), ("k", bool, False), ("l", int32 | None, None)]
    fields = msgspec.defstruct("V2", [*mandatory, *others, ("m", bool, False), ("n", str, "")])
    numbers = [(name, int, 0) for name in ("code", "opaque", "flag", "version")]
    texts = [("language", str, "JAVA"), ("remark", str, "")]
    header = msgspec.defstruct("Header", [*numbers, *texts, ("extFields", fields, None)])
    typed = msgspec.json.Decoder(header, strict=False)
    ways: dict[str, Way] = {
        "json: header": lambda: decode_json_plain(data),
        "json: header and fields": lambda: request_fields(decode_json_plain(data)),
        "fields alone, in a loop": lambda: send.read(SEND.ext),
        "fields alone": lambda: request_fields(SEND),
        "msgspec: header": lambda: decode_header(0, data),
        "msgspec: header and fields": lambda: request_fields(decode_header(0, data)),
        "msgspec: header and fields, typed in one pass": lambda: typed.decode(data),
        "msgspec: into maps": lambda: msgspec.json.decode(data),
    }
    if HAS_ORJSON:
        ways["orjson: into maps"] = lambda: orjson.loads(data)
        ways["orjson: header, values checked"] = lambda: _by_orjson(data)
    return ways


def _by_orjson(data: memoryview) -> RemotingHeader:
    found = orjson.loads(data)
    ext = found["extFields"]
    for value in ext.values():
        if type(value) is not str:
            raise TypeError
    fields = found["code"], found["opaque"], found.get("flag", 0), ext, found.get("remark")
    rest = Language[found["language"]], found["version"], Serialization.JSON
    return tuple.__new__(RemotingHeader, (*fields, *rest))


def encoding() -> Mapping[str, Way]:
    """Ways to the JSON header of the answer."""
    document = json.loads(encode_json_plain(ANSWER))
    numbers = UNIQUE_KEY.encode(), 12345, 12345
    ways: dict[str, Way] = {
        "json: answer": lambda: encode_json_plain(ANSWER),
        "msgspec: answer": lambda: encode_header(ANSWER),
        "msgspec: the map alone": lambda: msgspec.json.encode(document),
        "bytes template": lambda: TEMPLATE % numbers,
    }
    if HAS_ORJSON:
        ways["orjson: the map alone"] = lambda: orjson.dumps(document)
    return ways


def frames() -> Way:
    """As a connection brings them: FRAMES sends of 128 bytes in as few reads as fit."""
    data = (frame_head(SEND, 128) + bytes(128)) * FRAMES

    def read() -> None:
        reader, at = FrameReader(), 0
        while at < len(data):
            room = reader.room()
            size = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            at += size
            for header, _ in reader.received(size):
                request_fields(header)

    return read


def main() -> None:
    """Prints microseconds of each way."""
    data, binary = encode_header(SEND), SEND._replace(serialization=Serialization.ROCKETMQ)
    packed = memoryview(encode_header(binary))
    whole = f"{FRAMES} whole frames with fields, each"
    ways = {
        **decoding(memoryview(bytearray(data))),
        "binary: header": lambda: decode_header(1, packed),
        **encoding(),
    }
    best = dict.fromkeys((*ways, whole), float("inf"))
    read = frames()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            best[name] = min(best[name], timeit.timeit(way, number=CALLS) / CALLS)
        best[whole] = min(best[whole], timeit.timeit(read, number=1) / FRAMES)
    print(f"a header of {len(data)} bytes, and its answer: microseconds")
    for name, seconds in best.items():
        print(f"  {name:48} {seconds * 1e6:6.2f}")
    assert isinstance(request_fields(SEND), SendMessageHeader)


if __name__ == "__main__":
    main()
