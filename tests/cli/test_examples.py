"""Every example of every `--help` is executed: on one small store, against one node."""

import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from keelog import OutgoingMessage
from keelog.bench import running as bench_running
from keelog.bench.results import Result
from keelog.bench.workload import Workload
from keelog.cli import failures
from keelog.cli.main import run
from keelog.cli.shape_help import SHAPES
from keelog.pipeline import session as spark_jobs
from node.access.users_file import read_users
from node.runtime.settings import load_settings
from node.supervisor import loop as supervisor
from node.supervisor.options import Options
from tests.cli.conftest import SMALL
from tests.cli.tree import commands, help_of, leaves
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.support.golden import GetStore
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-node")]

MESSAGES = 120
LOOKS_UNTIL_CTRL_C = 3
ENDLESS = {"keelog top"}
"""Who watches presses Ctrl-C."""
QUICKER = {"top": ("--interval", "0.05")}
MAY_BREAK_A_LIMIT = re.compile(r"--max-|--min-rate|bench compare")
ON_SPARK = (
    "keelog spark export ./store --out ./parquet",
    "keelog spark export ./store --out ./paid --topics orders --tags paid",
    "keelog spark stats ./store --report stats.html",
)
ELSEWHERE = {
    "keelog demo": "tests/test_readme.py",
    "keelog consume orders --group billing --tags 'paid || sent' --count 100": (
        "a gateway: test_consume_group.py"
    ),
    "keelog consume orders --group billing --access-key billing --secret-file me.pw": (
        "users: test_guarded_master.py"
    ),
    "keelog produce orders 'pay by now' --delay-level 5": "a gateway: test_consume_group.py",
    "keelog produce orders 'pay by now' --delay 90s": "a gateway: test_consume_group.py",
    "keelog demo --from /var/lib/rocketmq/store": "test_node_commands.py",
    "keelog produce - --parquet ./orders --quiet": "test_export.py",
    "keelog key init ./store": "test_key.py",
    "keelog key show ./store": "test_key.py",
    "keelog replica promote ./copy": "test_replica.py",
    "keelog replica demote ./store --follow 192.0.2.8:10912": "test_replica.py",
    "keelog replica rewind ./store --to 73400320": "test_replica.py",
    "keelog replica rewind ./store --to 73400320 --apply": "test_replica.py",
    "keelog spark rebuild /mnt/store --master spark://host:7077 --out /mnt/derived": "a cluster",
    "keelog spark rebuild s3://bucket/store --plan shuffle --out s3://bucket/derived": "a bucket",
    **dict.fromkeys(ON_SPARK, "below, with Spark"),
}
"""What needs more than a node and a folder is read here, and run by who has it."""


class Part(NamedTuple):
    """One command of a line, and the file that gets its output."""

    words: tuple[str, ...]
    file: str | None


def examples() -> list[str]:
    """Each once. A removal comes last: others need what it removes. A topic takes groups along,
    and a user the access list."""
    found = dict.fromkeys(text for one in commands().values() for text in one.examples)
    return sorted(
        found, key=lambda text: (" rm " in text, re.search("(topic|user) rm", text) is not None)
    )


def parts(line: str) -> list[Part]:
    """`a b | c > file` as its commands."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    found: list[Part] = []
    words: list[str] = []
    file: str | None = None
    for word in [*lexer, "|"]:
        if word == "|":
            found.append(Part(tuple(words), file))
            words, file = [], None
        elif words and words[-1] == ">":
            words.pop()
            file = word
        else:
            words.append(word)
    return found


@pytest.fixture(scope="module", autouse=True)
def _nobody_has_to_log_in_later(node: RunningNode) -> Iterator[None]:
    yield
    for name in read_users(node.root)[0].users:
        assert run(["user", "rm", name, "--yes", "--node", str(node.root)]) == 0


@pytest.fixture(scope="module")
def folder(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the files that the examples name, among them ./store."""
    folder = tmp_path_factory.mktemp("examples")
    messages = [
        OutgoingMessage(b"message %d" % number, keys=["o-17", "order-17"], tags="paid", queue_id=0)
        for number in range(MESSAGES)
    ]
    with node.client.producer() as producer:
        producer.send_many("orders", messages)
    node.client.send("%DLQ%billing", b"nobody could handle it")
    wait_until(lambda: len(list(node.client.find("orders", "o-17"))) == MESSAGES, "the index")
    wait_until(lambda: node.client.offsets("orders")[0].max_offset == MESSAGES, "the queue")
    shutil.copytree(node.root, folder / "store", ignore=shutil.ignore_patterns("run", "lock"))
    (folder / "keelog.toml").write_text("[store]\nfile_reserved_time = 48\n")
    (folder / "secret").write_text("a-long-password\n")
    accounts = [{"accessKey": "rocketmq", "secretKey": "12345678", "topicPerms": ["orders=PUB"]}]
    (folder / "plain_acl.json").write_text(json.dumps({"accounts": accounts}))
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    (folder / "broker.conf").write_text("brokerName=broker-a\nfileReservedTime=48\n")
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One real load, small: what the loads of the examples would answer in longer."""
    place = str(tmp_path_factory.mktemp("load"))
    load = Workload(kind="store", body="16", count=50, warm_up=0.0, directory=place, settings=SMALL)
    return bench_running.run(load)


@pytest.fixture
def place(
    node: RunningNode, folder: Path, monkeypatch: pytest.MonkeyPatch, measured: Result
) -> Path:
    """The folder as working directory, and small stand-ins for what takes long."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KEELOG_NODE", node.endpoint)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.delenv("KEELOG_CONTEXT", raising=False)
    for name in ("before", "after"):
        (folder / f"{name}.json").write_text(json.dumps(measured.as_dict()))

    def load(workload: Workload, _tell: object = None) -> Result:
        workload.check()
        return measured

    def serve(options: Options) -> int:
        load_settings(options.pairs)
        return failures.OK

    def job(work: Callable[[Any], Any], *_where: object) -> Any:
        return work(PlainEngine())

    monkeypatch.setattr(bench_running, "run", load)
    monkeypatch.setattr("keelog.bench.report.html_page", lambda _result: "<!DOCTYPE html>")
    monkeypatch.setattr(spark_jobs, "run_job", job)
    # Nodes of their own are what the other tests start, by this very command.
    monkeypatch.setattr(supervisor, "serve", serve)
    return folder


def ready(node: RunningNode, words: tuple[str, ...]) -> list[str]:
    """The words, with what makes them quick, and names that are true here."""
    path = next((path for path in QUICKER if words[: len(path.split())] == tuple(path.split())), "")
    addresses = ("127.0.0.1:7850", node.endpoint.removeprefix("tcp://"))
    named = [word.replace(*addresses) for word in words]
    for place, word in enumerate(named):
        if re.fullmatch(r"[0-9A-F]{32}", word):
            named[place] = next(node.client.find("orders", "o-17")).msg_id
    if words[0] == "context":
        named = list(words)
    return [*named, *QUICKER.get(path, ())]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, node: RunningNode) -> Callable[[Part, bytes], Any]:
    """Runs one command in this process: its exit code and what it prints."""

    def one(part: Part, stdin: bytes) -> tuple[int, bytes]:
        if part.words[0] == "echo":
            return 0, " ".join(part.words[1:]).encode() + b"\n"
        assert part.words[0] == "keelog", part
        source = Path("stdin")
        source.write_bytes(stdin)
        printed = io.BytesIO()
        with source.open("rb") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", io.TextIOWrapper(printed, write_through=True))
                code = run(ready(node, part.words[1:]))
                sys.stdout.flush()
                answer = printed.getvalue()
        if part.file is not None:
            Path(part.file).write_bytes(answer)
        return code, answer

    return one


@pytest.fixture
def ctrl_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, after some looks, for an example that goes on for ever."""
    if request.node.callspec.params["example"] not in ENDLESS:
        return
    left = iter(range(LOOKS_UNTIL_CTRL_C))

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if next(left, None) is None:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(
        "keelog.cli.node.top.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("example", examples())
def test_an_example_does_what_its_help_says(
    example: str, place: Path, call: Callable[[Part, bytes], tuple[int, bytes]]
) -> None:
    if example in ELSEWHERE:
        assert_is_read(shlex.split(example)[1:])
        return
    if "context use prod" in example or "context rm prod" in example:
        assert run(["context", "add", "prod", "--node", "tcp://h:1", "--replace"]) == 0
    answer = b""
    for part in parts(example):
        code, answer = call(part, answer)
        if example in ENDLESS:
            assert code == failures.INTERRUPTED
        elif MAY_BREAK_A_LIMIT.search(example):
            assert code in (failures.OK, failures.PARTIAL)
        else:
            assert code == failures.OK
        assert_is_shaped(part.words[1:], answer)


@pytest.mark.spark_long
@pytest.mark.parametrize("example", ON_SPARK)
def test_an_example_of_spark_does_what_its_help_says(
    example: str, golden_copy: GetStore, tmp_path: Path
) -> None:
    (tmp_path / "store").symlink_to(golden_copy("small-clean"))
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(example)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == failures.OK, done.stderr
    assert json.loads(done.stdout)


def assert_is_read(words: list[str]) -> None:
    """The command is there, and takes these words."""
    path = max((path for path in leaves() if f"{' '.join(words)} ".startswith(f"{path} ")), key=len)
    rest = words[len(path.split()) :]
    leaves()[path].make_context(path, rest)


def assert_is_shaped(words: tuple[str, ...], answer: bytes) -> None:
    """What is printed as JSON has no fields but those that --format help shows."""
    name = max(
        (one for one in SHAPES if words[: len(one.split())] == tuple(one.split())), default=""
    )
    if not name or b"{" not in answer[:3] or "-f" in words:
        return
    text = answer.decode()
    rows = (
        [json.loads(text)] if "--json" in words else [json.loads(one) for one in text.splitlines()]
    )
    for row in rows[0] if rows and isinstance(rows[0], list) else rows:
        assert any(set(row) <= set(shape) for shape in SHAPES[name]), name


def test_every_help_ends_with_an_example() -> None:
    for path, one in commands().items():
        assert one.examples, f"keelog {path} --help has no example"
        assert help_of(path).splitlines()[-1].strip() == one.examples[-1], path


def test_every_example_of_a_command_is_about_that_command() -> None:
    for path, one in commands().items():
        for example in one.examples:
            assert any(
                part.words[0] == "keelog" and " ".join(part.words[1:]).startswith(path)
                for part in parts(example)
            ), f"keelog {path}: {example}"


def test_every_command_with_a_format_shows_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with_format = {
        path
        for path, one in leaves().items()
        if any(getattr(param, "type", None) and param.name == "output" for param in one.params)
    }
    assert with_format == set(SHAPES)
    for path in with_format:
        assert run([*path.split(), "--format", "help"]) == 0
        first = capsys.readouterr().out.split("\n\nor\n\n")[0]
        assert list(json.loads(first)) == list(SHAPES[path][0]), path
