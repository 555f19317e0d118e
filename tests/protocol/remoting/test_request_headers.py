"""Requests: codes with RocketMQ's names, fields of sends in both versions, and standard JSON."""

import pytest

from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.header_fields import REQUEST_HEADERS, request_fields, wants_standard_json
from protocol.remoting.headers import RemotingHeader

V1 = {
    "producerGroup": "g",
    "topic": "t",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "1",
    "bornTimestamp": "1700000000000",
    "flag": "9",
    "properties": "A\x01b\x02",
    "reconsumeTimes": "2",
    "unitMode": "true",
    "maxReconsumeTimes": "16",
    "batch": "false",
}


def test_both_versions_of_a_send_give_the_same_value() -> None:
    v2 = dict(zip("abcdefghijklm", V1.values(), strict=True))
    first = request_fields(RemotingHeader(RequestCode.SEND_MESSAGE, 1, ext={**V1, "bname": "b"}))
    second = request_fields(RemotingHeader(RequestCode.SEND_MESSAGE_V2, 1, ext={**v2, "n": "b"}))
    assert first == second
    assert (first.queue_id, first.born_timestamp, first.flag) == (-1, 1_700_000_000_000, 9)
    assert (first.unit_mode, first.max_reconsume_times, first.batch) == (True, 16, False)
    assert first.broker_name == "b"


@pytest.mark.parametrize(
    ("version", "only", "standard"), [(400, False, False), (401, False, True), (317, True, True)]
)
def test_integer_keys_have_quotes_for_new_clients_and_for_those_that_ask(
    version: int, only: bool, standard: bool
) -> None:
    ext = {"topic": "t"} | ({"acceptStandardJsonOnly": "true"} if only else {})
    header = RemotingHeader(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, ext=ext, version=version)
    fields = request_fields(header)
    assert wants_standard_json(header, fields.accept_standard_json_only) is standard


def test_codes_have_rocketmqs_numbers() -> None:
    assert (RequestCode.HEART_BEAT, RequestCode.POP_MESSAGE) == (34, 200050)
    assert (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.ILLEGAL_OPERATION) == (17, 604)
    assert set(REQUEST_HEADERS) <= set(RequestCode)
