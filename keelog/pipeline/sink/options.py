"""The options of a write, parsed and checked before any row is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from keelog.pipeline.errors import BadMode, BadOption, UnknownColumn, UnknownOption
from keelog.pipeline.sink.columns import Field, places
from protocol.errors import MqError
from protocol.names import check_topic_for_send

OPTIONS = ("node", "topic", "timeoutMs", "publishTimeoutMs")
_OF_SPARK = ("checkpointlocation", "queryname", "outputmode")
"""Spark's own options of a stream, which it hands over too."""
TIMEOUT_MS = 60_000
PUBLISH_TIMEOUT_MS = 600_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write. `places`: which column of its rows is which of ours."""

    node: str
    topic: str | None
    timeout_s: float
    publish_timeout_s: float
    places: Mapping[str, int]


def parse_sink_options(
    given: Mapping[str, str], fields: Sequence[Field], overwrite: bool
) -> SinkOptions:
    """Raises BadMode, UnknownOption, BadOption, UnknownColumn."""
    if overwrite:
        raise BadMode(
            "messages cannot be overwritten: a log only grows",
            "mode('append'); for streams outputMode('append')",
        )
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in OPTIONS} | set(_OF_SPARK)
    for name in given:
        if name.lower() not in known:
            raise UnknownOption(
                f"a write takes no option {name[:80]!r}", f"one of {', '.join(OPTIONS)}"
            )
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic_for_send(topic)
        except MqError as error:
            raise BadOption(error.reason, error.hint) from None
    found = places(fields)
    if topic is None and "topic" not in found:
        raise UnknownColumn(
            "nothing says which topic the messages go to", "the option topic, or a column topic"
        )
    return SinkOptions(
        node=_node(options.get("node")),
        topic=topic,
        timeout_s=_milliseconds(options, "timeoutMs", TIMEOUT_MS) / 1000,
        publish_timeout_s=_milliseconds(options, "publishTimeoutMs", PUBLISH_TIMEOUT_MS) / 1000,
        places=found,
    )


def _node(address: str | None) -> str:
    hint = "option('node', 'tcp://host:7850'), the address that keelog serve prints"
    if address is None:
        raise BadOption("nothing says which node to write to", hint)
    try:
        parts = urlsplit(address)
        is_address = parts.scheme == "tcp" and parts.hostname is not None and bool(parts.port)
    except ValueError:
        is_address = False
    if not is_address:
        raise BadOption(f"node is {address[:80]!r}, which is not an address", hint)
    return address


def _milliseconds(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= 2**31:
        raise BadOption(f"{name} is {text[:80]!r}", "milliseconds, as 60000")
    return int(text)
