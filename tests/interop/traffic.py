"""Messages of every shape for a running node, and what each of them must look like afterwards."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from keelog.client.client import Client
from keelog.client.messages import OutgoingMessage
from keelog.client.results import Receipt
from protocol.derived.file_layouts import TAGS_KEY_PREFIX, key_hash
from protocol.ids import parse_host
from protocol.record.java_hash import tags_code
from protocol.record.properties import KEYS, TAGS, UNIQUE_KEY
from tests.interop.probe import Row

QUEUES = 4
MIB = 1024 * 1024
SINGLES_EVERY = 40
CHUNK = 1000
_TAGS = (None, "TagA", "TagB", "été", "😀x", "a tag with spaces", None, "BB", "Aa")
_WORDS = ("ключ", "鍵", "clé", "k", "😀", "straße", "Ω")
_HOSTS = (None, "192.0.2.7:40001", "[fd00::1:2]:40002", "[::1]:0", "10.0.0.1:65535")


@dataclass(frozen=True, slots=True)
class Stored:
    """One message that was acknowledged: where it must be, and what it must say.

    `born_host` is address bytes in hex, colon, port, or None where the sender did not say.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    msg_id: str
    store_timestamp: int
    unique_key: str
    tags: str
    keys: tuple[str, ...]
    properties: dict[str, str]
    flag: int
    body_length: int
    body_sha256: str
    born_host: str | None = None
    born_timestamp: int | None = None
    reconsume_times: int = 0

    @property
    def index_keys(self) -> tuple[str, ...]:
        """What the index holds it under, in the order of its entries."""
        tags = (TAGS_KEY_PREFIX + self.tags,) if self.tags else ()
        return (self.unique_key, *self.keys, *tags)

    @property
    def tags_code(self) -> int:
        """What its queue unit says."""
        return tags_code(self.tags)


def topics() -> list[str]:
    """Fifty names, among them those that need the record's second version."""
    long = [
        "%RETRY%" + "r" * (120 + 1),  # 128 bytes, the first that needs it
        "%RETRY%" + "R" * 248,  # 255, the longest there is
        "%DLQ%" + "d" * 200,
        "%RETRY%group_A",
        "t" * 127,
    ]
    return long + [f"topic-{number:02d}" for number in range(50 - len(long))]


def messages(
    count: int, names: Sequence[str], seed: int = 7, large: int = 8
) -> Iterator[OutgoingMessage]:
    """`count` messages in turn over the queues of `names`; a quarter lets the queue open.

    `large` of them have a body of 1 MiB.
    """
    rng = random.Random(seed)
    large_ones = {count * part // (large + 1) for part in range(1, large + 1)}
    for number in range(count):
        yield OutgoingMessage(
            body=_body(number, rng, number in large_ones),
            topic=names[number % len(names)],
            tags=_TAGS[rng.randrange(len(_TAGS))],
            keys=_keys(number, rng),
            properties=_properties(number, rng),
            queue_id=None if number % 4 == 3 else number // len(names) % QUEUES,
            flag=rng.randrange(-(2**31), 2**31),
            born_timestamp=1_700_000_000_000 + number,
            born_host=_HOSTS[rng.randrange(len(_HOSTS))],
            reconsume_times=rng.randrange(17) if number % 100 == 5 else 0,
        )


def _body(number: int, rng: random.Random, large: bool) -> bytes:
    if large:
        return rng.randbytes(MIB)
    if number % 50 == 17:
        return b""
    if number % 3 == 0:
        return f"сообщение {number} — メッセージ 😀".encode()
    return rng.randbytes(rng.randrange(1200))


def _keys(number: int, rng: random.Random) -> tuple[str, ...]:
    own = f"{rng.choice(_WORDS)}-{number}"
    return (own, f"shared-{number % 97}", rng.choice(_WORDS), "AaBB")[: number % 5]


def _properties(number: int, rng: random.Random) -> dict[str, str]:
    all_of_them = {
        "number": str(number),
        "регион": rng.choice(("東京", "åland", "x y  z")),
        "trace": "0123456789abcdef" * rng.randrange(1, 8),
    }
    return dict(list(all_of_them.items())[: number % 4])


def send_all(
    client: Client, batch: Iterable[OutgoingMessage], singles: bool = True
) -> list[Stored]:
    """Sends in chunks of batches, and some one by one; answers what was acknowledged, log order."""
    stored: list[Stored] = []
    chunk: list[OutgoingMessage] = []
    with client.producer(timeout=60.0) as producer:
        for number, message in enumerate(batch):
            if singles and number % SINGLES_EVERY == 11:
                stored.append(stored_of(message, send_one(client, message)))
                continue
            chunk.append(message)
            if len(chunk) == CHUNK:
                receipts = producer.send_many("", chunk)
                stored += map(stored_of, chunk, receipts)
                chunk = []
        receipts = producer.send_many("", chunk)
        stored += map(stored_of, chunk, receipts)
    return sorted(stored, key=lambda one: one.physical_offset)


def send_one(client: Client, message: OutgoingMessage) -> Receipt:
    """The other way to send: one message as a request of its own."""
    return client.send(message.topic or "", message)


def stored_of(message: OutgoingMessage, receipt: Receipt) -> Stored:
    """What must be found of a message with this receipt."""
    assert receipt.status == "PUT_OK", receipt
    keys = message.key_list()
    own = {TAGS: message.tags or "", KEYS: " ".join(keys), UNIQUE_KEY: receipt.unique_key}
    host = None
    if message.born_host is not None:
        parsed = parse_host(message.born_host)
        host = f"{parsed.ip.hex()}:{parsed.port}"
    return Stored(
        topic=receipt.topic,
        queue_id=receipt.queue_id,
        queue_offset=receipt.queue_offset,
        physical_offset=receipt.physical_offset,
        msg_id=receipt.msg_id,
        store_timestamp=receipt.store_timestamp,
        unique_key=receipt.unique_key,
        tags=message.tags or "",
        keys=keys,
        properties={**message.properties, **{name: value for name, value in own.items() if value}},
        flag=message.flag,
        body_length=len(message.body),
        body_sha256=hashlib.sha256(message.body).hexdigest(),
        born_host=host,
        born_timestamp=message.born_timestamp,
        reconsume_times=message.reconsume_times,
    )


def stored_by_rocketmq(row: Row) -> Stored:
    """What must be found of a message that RocketMQ's side appended, from its receipt."""
    return Stored(
        topic=row["topic"],
        queue_id=row["queueId"],
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        msg_id=row["msgId"],
        store_timestamp=row["storeTimestamp"],
        unique_key=row["uniqKey"],
        tags=row["tags"],
        keys=tuple(row["keys"].split(" ")),
        properties=row["properties"],
        flag=row["flag"],
        body_length=row["bodyLength"],
        body_sha256=row["bodySha256"],
    )


def lookups_of(stored: Iterable[Stored]) -> list[tuple[str, str]]:
    """Every topic and key that the index knows them by, each once, and a key that nobody has."""
    found = {(one.topic, key): None for one in stored for key in one.index_keys}
    return [*found, *((topic, "nobody") for topic in sorted({topic for topic, _ in found}))]


def expected_answers(
    stored: Iterable[Stored], lookups: Iterable[tuple[str, str]]
) -> list[list[int]]:
    """Log offsets for each look-up, newest first: by hash alone, as the index knows no more."""
    by_hash: dict[int, list[int]] = defaultdict(list)
    for one in sorted(stored, key=lambda one: one.physical_offset, reverse=True):
        for key in one.index_keys:
            by_hash[key_hash(one.topic, key)].append(one.physical_offset)
    return [by_hash.get(key_hash(topic, key), []) for topic, key in lookups]
