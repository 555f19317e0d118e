"""What scripts may rely on: names of commands and options, fields, exit codes. Nothing may go.

The tables are the contract itself; adding to the product is allowed, taking away is not.
"""

import re
from typing import Any

import click
import pytest

from keelog.cli import failures, shapes
from keelog.cli.help import TOPICS
from keelog.cli.output import FORMATS
from keelog.cli.shape_help import SHAPES
from tests.cli.tree import help_of, leaves

COMMANDS = """\
serve DIR --bind --queue-workers --readers --open -X --config
health --wait --json --node
status --json --node
top --once --node
produce TOPIC --file --quiet --key-separator --any-topic --delay-level --delay --deliver-at
produce TOPIC --queue --tags --key -p --jsonl --csv --parquet --batch --sync --node
consume TOPIC --from --count --until-end --template --merge --cursor --group --on-damage
consume TOPIC -o -n -e --queue --tags -f --raw-body --no-body --node --format --json --jsonl
export TOPICS --sqlite --parquet --csv --overwrite --tags --from --to --on-damage --node --format
topic ls --node --format --json --jsonl
topic describe TOPIC --node --format --json --jsonl
topic create TOPIC --queues --node --format --json --jsonl
topic rm TOPIC --yes --node --format --json --jsonl
topic purge TOPIC --before --queue --yes --node --format --json --jsonl
user create USER --super --password-file --prompt --public-key --node --store --format --json
user ls --node --store --format --json --jsonl
user show USER --node --store --format --json
user set USER --super --enable --new-password --password-file --prompt --public-key
user rm USER --yes --node --store --format --json
user import FILE --node --store --format --json
acl allow USER RESOURCE ACTIONS --from --default --node --store --format --json
acl deny USER RESOURCE ACTIONS --from --default --node --store --format --json
acl ls USER --node --store --format --json --jsonl
acl rm USER RESOURCE --default --yes --node --store --format --json
acl check USER ACTION RESOURCE --from --node --store --format --json
dead ls GROUP --id --since --until --raw-body --no-body --node --format --json --jsonl
dead resend GROUP --id --since --until --all --again --apply --node --format --json --jsonl
msg get ID --raw-body --no-body --node --format --json --jsonl
msg find --topic --key --since --until --limit --raw-body --no-body --node --format
store info DIR -X --format --json --jsonl
store dump DIR --what --raw --topic --from --to --limit --headers --raw-body --no-body -X --format
store get DIR --topic --queue --offset --count --tags --max-messages --max-bytes -X --format
store find DIR --topic --key --since --until --limit --unique --candidates -X --format
store seek DIR --topic --queue --time --boundary -X --format
store verify DIR --deep -X --format
store repair DIR --apply -X --format
store rebuild DIR --queues --index -X --format
store export DIR --parquet --sqlite -X --format
key init DIR --format --json --jsonl
key new NAME --folder --format --json --jsonl
key show DIR --format --json --jsonl
spark rebuild --master -X
spark audit --master -X
spark export --master -X
spark stats --master -X
bench send --max-p99 --node -X
bench consume --max-p99 --node -X
bench e2e --max-p99 --node -X
bench store --max-p99 -X
demo --format
"""
CHOICES = {
    ("store dump", "--what"): {"messages", "queues", "index"},
    ("store seek", "--boundary"): {"lower", "upper"},
    ("consume", "--on-damage"): {"skip", "fail"},
    ("export", "--on-damage"): {"skip", "fail"},
}
DEFAULTS = {("store get", "--count"): 32, ("spark audit", "--master"): "local[*]"}
MESSAGE = """\
{"topic", "queue_id", "queue_offset", "physical_offset", "store_size", "msg_id", "unique_key",
"tags", "keys": [..], "properties": {..}, "flag", "sys_flag", "born_timestamp", "born_host",
"store_timestamp", "store_host", "body_crc", "reconsume_times", "prepared_transaction_offset",
"version": 1 | 2, "body" | "body_b64"}"""
FIELDS = {
    "consume": MESSAGE,
    "msg get": MESSAGE,
    "msg find": MESSAGE,
    "dead ls": MESSAGE + '"origin_topic", "sent_back"',
    "dead resend": '{"group", "topic", "found", "sent_back_before", "sent", "applied"}',
    "store find": MESSAGE,
    "store dump": MESSAGE + '"record_b64"',
    "produce": """\
{"status": "PUT_OK" | "FLUSH_DISK_TIMEOUT" | …, "topic", "queue_id", "queue_offset",
"physical_offset", "msg_id", "unique_key", "flushed": bool}""",
    "store get": """\
{"status", "next_begin_offset", "min_offset", "max_offset", "messages": [3.1 …]}""",
    "store seek": '{"offset": n}',
    "store verify": """\
{"ok": bool, "clean_shutdown": bool, "commit_log": {"min_offset", "max_offset", "records", "bytes"},
"queues": {"count", "units"}, "index": {"files", "entries"}, "findings": [{"severity": "error" |
"warning", "kind", "file", "offset", "topic", "queue_id", "queue_offset", "detail"}]}""",
}
OTHER_FIELDS = {
    "unit": '{"topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code"}',
    "entry": '{"file", "slot", "entry", "key_hash", "physical_offset", "time_diff_s", "prev"}',
    "header": """\
{"file", "begin_timestamp", "end_timestamp", "begin_physical_offset", "end_physical_offset",
"slot_count", "index_count"}""",
}
CODES = {
    0: failures.OK,
    1: failures.FAILED,
    2: failures.USAGE,
    3: failures.NOT_FOUND,
    4: failures.UNREACHABLE,
    5: failures.DAMAGED,
    6: failures.LOCKED,
    7: failures.PARTIAL,
    130: failures.INTERRUPTED,
}


def named_in(contract: str) -> set[str]:
    """The fields of a shape as the contract writes it: quoted words that are no values."""
    return set(re.findall(r'"([a-z][a-z0-9_]*)"', contract)) - {"error", "warning"}


def fields_of(shape: Any) -> set[str]:
    """The fields of a shape, also those inside."""
    if isinstance(shape, list):
        return set().union(*map(fields_of, shape))
    if not isinstance(shape, dict):
        return set()
    return set(shape) | set().union(*map(fields_of, shape.values()))


def option(command: click.Command, name: str) -> click.Option:
    found = [one for one in command.params if isinstance(one, click.Option) and name in one.opts]
    assert found, f"{command.name} has no {name}"
    return found[0]


@pytest.mark.parametrize("line", COMMANDS.splitlines())
def test_every_command_of_the_contract_takes_what_it_promises(line: str) -> None:
    path, options = re.fullmatch(r"([a-z0-9 ]+?)((?: (?:[A-Z]|-).*)?)", line).groups()  # type: ignore[union-attr]
    command = leaves()[path]
    metavars = {
        str(one.human_readable_name).strip("[]").upper()
        for one in command.params
        if isinstance(one, click.Argument)
    }
    for word in options.split():
        if word.startswith("-"):
            option(command, word)
        else:
            assert word in metavars, f"{path} takes {metavars}"


def test_choices_and_defaults_of_the_contract_hold() -> None:
    for (path, name), values in CHOICES.items():
        kind = option(leaves()[path], name).type
        assert isinstance(kind, click.Choice)
        assert values <= set(kind.choices)
    for (path, name), value in DEFAULTS.items():
        assert option(leaves()[path], name).default == value
    assert {"table", "json", "jsonl", "csv"} <= set(FORMATS)


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_of_the_contract_is_in_the_shape_of_the_command(path: str) -> None:
    assert named_in(FIELDS[path]) <= fields_of(SHAPES[path][0])


def test_units_entries_and_headers_have_the_fields_of_the_contract() -> None:
    dumped: list[shapes.Shape] = list(SHAPES["store dump"][1:])
    for contract, shape in zip(OTHER_FIELDS.values(), dumped, strict=True):
        assert named_in(contract) == fields_of(shape)


def test_messages_are_shown_as_they_are_printed() -> None:
    assert tuple(SHAPES["consume"][0]) == shapes.MESSAGE_COLUMNS


def test_exit_codes_are_those_of_the_contract_and_explained() -> None:
    assert all(code == number for number, code in CODES.items())
    explained = re.findall(r"^(\d+) ", TOPICS["exit-codes"], re.MULTILINE)
    assert [int(number) for number in explained] == list(CODES)
    told = " ".join(help_of("").split())
    assert all(re.search(rf"\b{number} [a-z]", told) for number in CODES)


def test_names_in_json_are_snake_case() -> None:
    for path, found in SHAPES.items():
        for shape in found:
            for name in fields_of(shape) - {"NAME", "REASON", "FOLDER"}:
                assert re.fullmatch(r"[a-z][a-z0-9_]*", name), f"{path}: {name}"
