"""What a master says of its log: where it begins and ends, and the length of its segments."""

from contextlib import suppress
from typing import NamedTuple

from keelog.replication.replica.remoting_asker import RemotingAsker
from protocol.errors import MqError
from protocol.remoting.bodies import KVTable
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import read_body

ANSWER_S = 3.0
"""How long a connection or an answer may take."""
_SEGMENT_SETTING = "mappedFileSizeCommitLog"


class MasterFacts(NamedTuple):
    """Log offsets, and the bytes of a segment; 0 where it does not say."""

    begin: int
    end: int
    segment_bytes: int = 0


def ask_facts(place: str, with_segments: bool = True) -> MasterFacts | None:
    """Asks the master at HOST:PORT (28, and 26 `with_segments`); None without such an answer."""
    with suppress(OSError, MqError, ValueError, KeyError), RemotingAsker(place, ANSWER_S) as asker:
        answer = asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:
            return None
        table = read_body(KVTable, answer.body).table
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        # An empty log of RocketMQ begins at -1.
        return MasterFacts(
            max(begin, 0), max(end, 0), _segment_bytes(asker) if with_segments else 0
        )
    return None


def _segment_bytes(asker: RemotingAsker) -> int:
    answer = asker.ask(RequestCode.GET_BROKER_CONFIG)
    for line in answer.body.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == _SEGMENT_SETTING and value.strip().isdigit():
            return int(value)
    return 0
