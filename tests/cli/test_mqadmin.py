"""`keelog mqadmin`: RocketMQ's names and flags as our commands, or what to use instead."""

import json
import shlex

import pytest

from keelog.cli.main import run
from keelog.cli.mqadmin.names import ALIASES, INSTEAD, translate
from protocol.errors import BadRequest
from tests.cli.test_examples import assert_is_read
from tests.support.node import RunningNode, wait_until


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("topicList -n h:7850", "topic ls --node tcp://h:7850"),
        ("topicList -n 'a:1;b:2' -c", "topic ls --node tcp://a:1"),
        ("topicStatus -t T --namesrvAddr=tcp://h:1", "topic describe T --node tcp://h:1"),
        ("updateTopic -b h:1 -t T -r 4 -w 4 -p 6", "topic create T --queues 4 --perm 6 --node tcp://h:1"),
        ("updateTopic -c DefaultCluster -t T", "topic create T"),
        ("deleteTopic --topic T -c any -n h:1 -b i:2", "topic rm T --yes --node tcp://h:1"),
        ("topicRoute -t T -l", "status"),
        ("clusterList -m -i 10", "status"),
        ("brokerStatus -b h:1", "status --node tcp://h:1"),
        ("statsAll -a -t T", "top --once"),
        ("queryMsgById -i 7F00 -t T", "msg get 7F00"),
        ("queryMsgByKey -t T -k a -m 9", "msg find --topic T --key a --limit 9"),
        ("queryMsgByKey -t T -k a -b 5 -e 7", "msg find --topic T --key a --since 5 --until 7"),
        ("queryMsgByUniqueKey -t T -i U", "msg get --topic T --unique-key U"),
        ("queryMsgByUniqueKey -a -t T -i U", "msg find --topic T --key U --unique"),
        ("queryMsgByOffset -t T -b broker-a -i 2 -o 7", "msg get --topic T --queue 2 --offset 7"),
        ("printMsg -t T -s 'a || b' -d false", "consume T -e --tags 'a || b' --no-body"),
        ("printMsg -t T -b 2026-11-20#10:00:00:000", "consume T -o @2026-11-20T10:00:00.000 -e"),
        ("printMsgByQueue -t T -i 3 -a b -p true -e 9", "consume T -o start:@9 -e --queue 3"),
        ("consumeMessage -t T -g G -i 1 -o 5", "consume T -o 5 -e -n 128 --queue 1"),
        ("consumeMessage -t T -s 5 -e 6 -c 3", "consume T -o @5:@6 -e -n 3"),
        ("queryCq -t T -q 1 -i 5 -c 3", "consume T --queue 1 -o 5:8 -e --no-body"),
        ("sendMessage -t T -p x -k a -c b -i 1", "produce T --queue 1 --tags b --key a"),
    ],
)  # fmt: skip
def test_a_command_of_mqadmin_is_one_of_ours(theirs: str, ours: str) -> None:
    name, *words = shlex.split(theirs)
    assert translate(name, words) == tuple(shlex.split(ours))
    assert_is_read(list(translate(name, words)))


@pytest.mark.parametrize(
    ("theirs", "why", "hint"),
    [
        ("consumerProgress -g G", "no counterpart", "consume TOPIC"),
        ("resetOffsetByTime", "no counterpart", "no consumer groups"),
        ("cleanExpiredCQ -b h:1", "no counterpart", "file_reserved_time"),
        ("checkMsgSendRT", "no counterpart", "keelog bench send"),
        ("topicLst", "not known", "did you mean topicList?"),
        ("zzzzzzzz", "not known", "mqadmin --help"),
        ("topicStatus", "needs -t", "-t is topic"),
        ("topicStatus -t", "no value", "-t VALUE"),
        ("topicStatus -t T -z", "has no '-z'", "-b, -c, -n, -t"),
        ("updateTopic -t T -r 4 -w 8", "differ", "-r 8 -w 8"),
        ("queryMsgByKey -t T -k a -b noon", "is not a time", "2026-11-20#10:00:00:000"),
        ("queryCq -t T -q 0 -i x", "no numbers", "-i 0"),
    ],
)
def test_what_does_not_exist_or_is_wrong_says_what_to_use(theirs: str, why: str, hint: str) -> None:
    name, *words = shlex.split(theirs)
    with pytest.raises(BadRequest) as caught:
        translate(name, words)
    assert why in caught.value.reason
    assert hint in caught.value.hint


def test_every_alias_is_carried_out_and_none_is_called_missing() -> None:
    assert not set(ALIASES) & set(INSTEAD)


def test_a_missing_counterpart_is_three_lines_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mqadmin", "consumerProgress", "-h"]) == 2
    talk = capsys.readouterr()
    assert [line.split(":")[0] for line in talk.err.splitlines()] == ["error", "cause", "try"]
    assert run(["mqadmin"]) == 0
    assert "queryMsgByKey" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.xdist_group("cli-node")
def test_a_runbook_of_mqadmin_runs_against_a_node(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ["-n", node.endpoint.removeprefix("tcp://")]

    def mqadmin(*words: str) -> list[dict[str, object]]:
        assert run(["mqadmin", *words, *address]) == 0
        talk = capsys.readouterr()
        assert talk.err.startswith("this is: keelog ")
        return [json.loads(line) for line in talk.out.splitlines()]

    assert mqadmin("updateTopic", "-t", "runbook", "-w", "2", "-r", "2")[0]["created"] is True
    body = "two\nlines, ü"
    (receipt,) = mqadmin(
        "sendMessage", "-t", "runbook", "-p", body, "-k", "k1", "-c", "a", "-i", "1"
    )
    assert (receipt["status"], receipt["queue_id"]) == ("PUT_OK", 1)
    wait_until(lambda: any(node.client.find("runbook", "k1")), "the index")
    (found,) = mqadmin("queryMsgByKey", "-t", "runbook", "-k", "k1")
    assert (found["body"], found["tags"], found["keys"]) == (body, "a", ["k1"])
    assert mqadmin("queryMsgById", "-i", str(receipt["msg_id"])) == [found]
    assert mqadmin("printMsg", "-t", "runbook") == [found]
    assert mqadmin("consumeMessage", "-t", "runbook", "-i", "1", "-o", "0") == [found]
    (unit,) = mqadmin("queryCq", "-t", "runbook", "-q", "1", "-i", "0")
    assert unit["physical_offset"] == receipt["physical_offset"]
    assert "body" not in unit
    (gone,) = mqadmin("deleteTopic", "-t", "runbook")
    assert (gone["topic"], gone["deleted"], gone["until"]) == ("runbook", True, None)
    assert gone["left_in_log_bytes"]
