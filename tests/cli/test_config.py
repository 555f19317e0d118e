"""`keelog config`: origins, checks, files that are made, and a broker's properties."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from keelog.cli import config
from keelog.cli.config import import_conf, reason_against
from keelog.cli.main import run
from keelog.cli.settings import (
    SERVE,
    STORE,
    Given,
    from_environment,
    from_file,
    plain_meaning,
    read_file,
    settings_of,
    whole_file,
)
from node.access.own_credentials import FirstUsers
from node.runtime.settings import Settings, Size
from node.supervisor import loop as supervisor
from node.supervisor.options import (
    BrokerSettings,
    NetworkSettings,
    NodeSettings,
    Options,
    ServeSettings,
)
from protocol.access.credentials import Credentials
from protocol.addresses import DEFAULT_NODE
from protocol.errors import BadRequest
from protocol.java_properties import java_properties


@pytest.fixture(autouse=True)
def no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("KEELOG_NODE", "KEELOG_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


KINDS = (Settings, ServeSettings, NetworkSettings, BrokerSettings, NodeSettings)
FIELDS = [field for kind in KINDS for field in fields(kind)]


def test_each_value_is_shown_with_who_said_it_and_the_last_of_them_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text("[store]\nmax_index_num = 9\nmaxHashSlotNum = 5\nfile_reserved_time = 1\n")
    monkeypatch.setenv("KEELOG_STORE__MAX_INDEX_NUM", "10")
    monkeypatch.setenv("KEELOG_STORE__FILE_RESERVED_TIME", "2")
    words = ["config", "show", "--origin", "--config", str(file), "-X", "fileReservedTime=3"]
    assert run(words) == 0
    rows = {row["setting"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    said = {name: (row["value"], row["origin"], row["where"]) for name, row in rows.items()}
    assert said["store.max_index_num"] == (10, "environment", "KEELOG_STORE__MAX_INDEX_NUM")
    assert said["store.max_hash_slot_num"] == (5, "file", str(file))
    assert said["store.file_reserved_time"] == (3, "-X", "")
    assert said["store.flush_disk_type"] == ("ASYNC_FLUSH", "default", "")
    assert said["node"] == ("tcp://127.0.0.1:7850", "default", "")
    assert rows["store.max_index_num"]["default"] == Settings().max_index_num
    assert len(rows) == len(FIELDS) + 1


def test_serve_takes_options_before_all_else_then_the_last_of_x_variables_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Options] = []

    def serve(options: Options) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr(supervisor, "serve", serve)
    file = tmp_path / "keelog.toml"
    file.write_text(
        "[serve]\nhttp = '1'\nreaders = 2\nqueue_workers = 2\nbind = 'tcp://h:1'\n"
        "restart_limit = 9\n[node]\nsilence_limit_s = 8\n[store]\nfile_reserved_time = 1\n"
    )
    monkeypatch.setenv("KEELOG_NODE__SILENCE_LIMIT_S", "7")
    monkeypatch.setenv("KEELOG_HTTP", "2")
    monkeypatch.setenv("KEELOG_SERVE__READERS", "3")
    monkeypatch.setenv("KEELOG_SERVE__QUEUE_WORKERS", "3")
    monkeypatch.setenv("KEELOG_NETWORK__ADVERTISE", "a.example")
    given = ["--config", str(file), "-X", "serve.queueWorkers=4"]
    assert run(["serve", str(tmp_path), *given, "--bind", "tcp://h:2"]) == 0
    (one,) = asked
    assert one.serve == ServeSettings("tcp://h:2", 4, 3, "2", restart_limit=9)
    assert (one.pairs, one.limits.crashes_max) == (("store.file_reserved_time=1",), 9)
    assert one.limits.silence_s_max == 7
    assert one.network.advertise == "a.example"
    told = {row["setting"]: (row["origin"], row["where"]) for row in one.origins}
    assert told["serve.bind"] == ("option", "--bind")
    assert told["serve.queue_workers"] == ("-X", "")
    assert told["serve.http"] == ("environment", "KEELOG_HTTP")
    assert told["store.file_reserved_time"] == ("file", str(file))
    assert told["network.advertise"] == ("environment", "KEELOG_NETWORK__ADVERTISE")
    assert "store.max_index_num" not in told
    assert run(["serve", str(tmp_path), *given, "--advertise", "b.example"]) == 0
    assert asked[-1].network.advertise == "b.example"
    last = {row["setting"]: (row["origin"], row["where"]) for row in asked[-1].origins}
    assert last["network.advertise"] == ("option", "--advertise")
    assert run(["config", "show", "--origin", *given]) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    said = {row["setting"]: (row["value"], row["origin"], row["where"]) for row in rows}
    assert said["serve.bind"] == ("tcp://h:1", "file", str(file))
    assert said["serve.queue_workers"] == (4, "-X", "")
    assert said["serve.readers"] == (3, "environment", "KEELOG_SERVE__READERS")
    assert said["serve.http"] == ("2", "environment", "KEELOG_HTTP")


def test_a_brokers_names_are_options_of_serve_that_win_over_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Options] = []

    def serve(options: Options) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr(supervisor, "serve", serve)
    monkeypatch.setenv("KEELOG_BROKER__BROKER_NAME", "other")
    given = ["-X", "broker.namesrvAddr=z:1", "-X", "broker.brokerClusterName=c1"]
    options = ["--remoting", "h:9", "--namesrv", "a:1;b:2", "--broker-name", "b1"]
    assert run(["serve", str(tmp_path), *given, *options, "--broker-id", "0"]) == 0
    assert asked[-1].broker == BrokerSettings("c1", "b1", 0, "a:1;b:2")
    said = {row["setting"]: (row["origin"], row["where"]) for row in asked[-1].origins}
    assert said["broker.namesrv_addr"] == ("option", "--namesrv")
    assert said["broker.broker_name"] == ("option", "--broker-name")
    assert said["broker.broker_cluster_name"] == ("-X", "")
    assert run(["serve", str(tmp_path), *given, "--remoting", "h:9", "--cluster", "c2"]) == 0
    assert asked[-1].broker == BrokerSettings("c2", "other", 0, "z:1")


@pytest.mark.parametrize(
    "option",
    [("--namesrv", "a:1"), ("--broker-name", "b"), ("--cluster", "c"), ("--broker-id", "0")],
)
def test_a_brokers_names_without_its_clients_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    assert run(["serve", str(tmp_path / "store"), *option]) == 2
    said = capsys.readouterr().err
    assert option[0] in said
    assert "--remoting" in said
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("option", "value", "example"),
    [
        ("--namesrv", "nowhere", "--namesrv 'ns1:9876;ns2:9876'"),
        ("--broker-name", "a b", "--broker-name orders-a"),
        ("--cluster", "a@b", "--cluster orders-a"),
        ("--broker-id", "-1", "--broker-id 0"),
    ],
)
def test_a_wrong_name_is_refused_with_an_example(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    example: str,
) -> None:
    words = ["serve", str(tmp_path / "store"), "--remoting", "h:9", option, value]
    assert run(words) == 2
    assert example in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_what_is_said_for_serve_is_nothing_to_those_who_only_read_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text("[serve]\nreaders = 2\n")
    monkeypatch.setenv("KEELOG_HTTP", "7855")
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    words = ["store", "info", str(tmp_path / "store"), "--config", str(file)]
    assert run(words) == 0
    assert run([*words, "-X", "serve.readers=2"]) == 2
    assert "there is no setting 'serve.readers'" in capsys.readouterr().err


def test_a_node_listens_where_commands_look_for_one() -> None:
    assert ServeSettings().bind == DEFAULT_NODE


def test_the_long_variable_of_a_setting_goes_before_the_short_one() -> None:
    given = from_environment({"KEELOG_SERVE__HTTP": "2", "KEELOG_HTTP": "1"})
    assert settings_of(SERVE, given).http == "2"
    with pytest.raises(BadRequest, match="the variable KEELOG_HTTP: http 'x' is not an address"):
        from_environment({"KEELOG_HTTP": "x"})


@pytest.mark.parametrize(
    ("text", "line", "setting", "problem", "hint"),
    [
        (
            "[store]\n\nflush_disk_typ = 'x'\n",
            3,
            "flush_disk_typ",
            "no setting",
            "flush_disk_type?",
        ),
        ("[store]\nmax_index_num = '7'\n", 2, "max_index_num", "is '7'", "a whole number"),
        ("[store]\nmax_index_num = true\n", 2, "max_index_num", "is true", "a whole number"),
        ("[store]\nmax_index_num = 7.0\n", 2, "max_index_num", "is 7.0", "a whole number"),
        ("[store]\nflush_commit_log_timed = 1\n", 2, "flush_commit_log_timed", "is 1", "true or"),
        ("[store]\ndelete_when = 4\n", 2, "delete_when", "is 4", "text in quotes"),
        ("[store]\ndelete_when = '25'\n", 2, "delete_when", "'25'", "04;16"),
        ("[store]\nmax_index_num = 0\n", 2, "max_index_num", "is 0", "positive"),
        ("[stor]\nmax_index_num = 9\n", 1, "stor", "no table [stor]", "did you mean [store]?"),
        ("max_index_num = 9\n", 1, "max_index_num", "in no table", "below a line [store]"),
        ("zzz = 9\n", 1, "zzz", "there is no 'zzz'", "[store]"),
        ("store = 3\n", 1, "store", "no table", "[store]"),
        ("[serv]\nreaders = 2\n", 1, "serv", "no table [serv]", "did you mean [serve]?"),
        (
            "[other]\nreaders = 2\n",
            1,
            "other",
            "no table [other]",
            "[serve], [network], [broker], [node], [store]",
        ),
        ("readers = 2\n", 1, "readers", "in no table", "below a line [serve]"),
        ("[serve]\nreader = 2\n", 2, "reader", "no setting", "did you mean readers?"),
        ("[serve]\nhttp = 7855\n", 2, "http", "is 7855", "text in quotes"),
        ("[serve]\nhttp = '99999'\n", 2, "http", "not an address", "write 7855"),
        ("[serve]\nreaders = 65\n", 2, "readers", "outside [1, 64]", ""),
        ("[serve]\nmax_index_num = 9\n", 2, "max_index_num", "no setting", "config init"),
        ("[serve]\nhttp = ''\n[store]\nhttp = ''\n", 4, "http", "no setting", "config init"),
        ("[store] # a = b\n\n'max_index_num' = 0\n", 3, "max_index_num", "is 0", "positive"),
        ("store.max_index_num = 0\n", 1, "max_index_num", "is 0", "positive"),
        ("[store\n", 1, "", "not TOML", "keelog config init"),
        ("[store]\nmax_index_num 9\n", 2, "", "not TOML", "keelog config init"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line_and_what_to_write(
    text: str, line: int, setting: str, problem: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text(text)
    _, (found,) = read_file(file)
    assert (found.line, found.setting) == (line, setting)
    assert problem in found.problem
    assert hint in found.hint
    with pytest.raises(BadRequest, match=str(file)):
        from_file(file)


def test_a_check_says_all_that_is_wrong_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text("[store]\na = 1\nmax_index_num = 'b'\n")
    assert run(["config", "check", str(file)]) == 1
    talk = capsys.readouterr()
    assert [json.loads(line)["setting"] for line in talk.out.splitlines()] == ["a", "max_index_num"]
    assert [line.split(":")[0] for line in talk.err.splitlines()] == ["error", "cause", "try"]
    assert "(and 1 more)" in talk.err
    file.write_bytes(b"\xff")
    assert run(["config", "check", str(file)]) == 1
    file.write_text("[store]\nmax_index_num = 7\n")
    capsys.readouterr()
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr() == ("", "")
    assert run(["config", "check", str(tmp_path / "none")]) == 2


def test_a_made_file_holds_every_setting_and_changes_none(tmp_path: Path) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text(whole_file(commented=False))
    pairs = [one.pair for one in from_file(file)]
    assert len(pairs) == len(FIELDS)
    assert settings_of(STORE, from_file(file)) == Settings()
    assert settings_of(SERVE, from_file(file)) == ServeSettings()
    file.write_text(whole_file(commented=True))
    assert from_file(file) == []
    awake = whole_file(commented=True).replace("\n# ", "\n")
    for field in FIELDS:
        assert f"\n{field.name} = " in awake


def test_no_meaning_has_markdown_left_in_a_made_file() -> None:
    for field in FIELDS:
        assert not set(plain_meaning(field)) & set("`[]"), field.name
        assert "docs/" not in plain_meaning(field)


def test_a_brokers_properties_become_settings_and_the_rest_is_told_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(
        b"# comment \xe4\xb8\xad\nbrokerName=broker-a\nlistenPort: 10911\n! another\n\n"
        b"namesrvAddr=ns1:9876;ns2:9876\nbrokerId=0\nbrokerClusterName=c1\n"
        b"fileReservedTime = 48\ndeleteWhen 04\nmapedFileSizeCommitLog=1048576\n"
        b"flushDiskType=SYNC_\\\n   FLUSH\nenabledAppendPropCRC=false\nbrokerRole=SYNC_MASTER\n"
        b"haListenPort=1\n"
        b"noSuchThing=1\n"
    )
    assert run(["config", "import", str(conf)]) == 0
    talk = capsys.readouterr()
    assert tomllib.loads(talk.out) == {
        "broker": {
            "broker_name": "broker-a",
            "namesrv_addr": "ns1:9876;ns2:9876",
            "broker_id": 0,
            "broker_cluster_name": "c1",
        },
        "store": {
            "broker_role": "SYNC_MASTER",
            "file_reserved_time": 48,
            "delete_when": "04",
            "mapped_file_size_commit_log": 1048576,
            "flush_disk_type": "SYNC_FLUSH",
            "enabled_append_prop_crc": False,
        },
    }
    left = dict(line.removeprefix("left out ").split(": ", 1) for line in talk.err.splitlines())
    assert list(left) == ["'listenPort'", "'haListenPort'", "'noSuchThing'"]
    assert "--bind" in left["'listenPort'"]
    assert "--ha" in left["'haListenPort'"]
    (tmp_path / "keelog.toml").write_text(talk.out)
    assert run(["config", "check", str(tmp_path / "keelog.toml")]) == 0


def test_a_brokers_value_that_is_none_ends_with_1_and_names_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("a=b\nfileReservedTime=soon\n")
    assert run(["config", "import", str(conf)]) == 1
    talk = capsys.readouterr()
    assert "cause: line 2: fileReservedTime: file_reserved_time is 'soon'" in talk.err
    assert talk.out == ""


@pytest.mark.parametrize("line", ["namesrvAddr=nowhere", "brokerName=a b", "brokerId=-1"])
def test_a_brokers_name_that_is_none_names_the_line_too(line: str) -> None:
    with pytest.raises(config.BadBrokerConf, match=f"line 1: {line.partition('=')[0]}"):
        import_conf(line)


def test_properties_are_read_as_java_reads_them() -> None:
    text = "a=1\n  b : 2\nc\\ d = e\\u0041\nlong = x,\\\n   y\nlast\\"
    assert [(name, value) for _, name, value in java_properties(text)] == [
        ("a", "1"), ("b", "2"), ("c d", "eA"), ("long", "x,y"), ("last", ""),
    ]  # fmt: skip


def test_every_setting_has_the_name_that_rocketmq_writes() -> None:
    for name in Settings.__dataclass_fields__:
        head, *rest = name.split("_")
        camel = head + "".join(word.capitalize() for word in rest)
        value = getattr(Settings(), name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        assert import_conf(f"{camel}={text}")[0]["store"] == {name: value}


def test_a_setting_is_never_explained_away() -> None:
    assert reason_against("haMasterAddress") == config._NO_COPIES
    assert reason_against("transactionTimeOut") == config._TRANSACTIONS
    assert reason_against("sendMessageThreadPoolNums") == config._THREADS
    assert reason_against("storePathRootDir") == config._WHERE
    assert reason_against("whatever") == "nothing here does what it says"


SIZES = [("16MB", 16_000_000), ("1GiB", 1 << 30), ("4 KiB", 4096), ("65536", 65_536)]


@pytest.mark.parametrize(("text", "value"), SIZES)
def test_a_size_may_have_a_unit_wherever_it_is_given(tmp_path: Path, text: str, value: int) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text(f'[store]\nmax_message_size = "{text}"\n')
    ways = [
        from_file(file),
        from_environment({"KEELOG_STORE__MAX_MESSAGE_SIZE": text}),
        [Given(f"maxMessageSize={text}", "-X", "")],
    ]
    for given in ways:
        assert settings_of(STORE, given).max_message_size == value


NAMED_LIKE_SIZES = {"transient_store_pool_size"}
"""Of these `size` means a count."""


@pytest.mark.parametrize("kind", [Settings, Options, BrokerSettings, NetworkSettings, NodeSettings])
def test_every_setting_that_is_a_size_takes_a_unit(kind: type) -> None:
    """A size by its name, or by what the table says of it, has the type for that."""
    for one in fields(kind):
        if type(one.default) is int and one.name not in NAMED_LIKE_SIZES:
            says_so = re.search("_bytes|_size|^size", one.name) or re.match(
                "bytes|size", one.metadata.get("meaning", "")
            )
            assert bool(says_so) <= (one.type == Size), one.name


def test_what_the_log_may_take_is_given_in_gigabytes(tmp_path: Path) -> None:
    file = tmp_path / "keelog.toml"
    file.write_text('[store]\nretention_bytes = "10GB"\ntransaction_op_msg_max_size = "8KiB"\n')
    found = settings_of(STORE, from_file(file))
    assert found.retention_bytes == 10_000_000_000
    assert found.transaction_op_msg_max_size == 8192


def test_a_wrong_size_says_what_is_allowed_and_what_is_no_size_takes_no_unit(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadRequest) as caught:
        settings_of(STORE, [Given("max_message_size=16 parsecs", "-X", "")])
    assert caught.value.hint == "use bytes, or a size such as 16MB or 1GiB"
    with pytest.raises(BadRequest, match="is '16MB'") as caught:
        settings_of(STORE, [Given("file_reserved_time=16MB", "-X", "")])
    assert caught.value.hint == "use a whole number"
    file = tmp_path / "keelog.toml"
    file.write_text("[store]\nmax_message_size = 1.5\n")
    _, (problem,) = read_file(file)
    assert problem.hint == "write bytes, or a size such as 16MB or 1GiB in quotes"


ACL = (
    "authorizationEnabled=TRUE\nauthenticationEnabled=true\n"
    'initAuthenticationUser={"username":"admin","password":"canary-of-admin"}\n'
    'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"canary-of-inner"}\n'
    "authenticationWhitelist=105\nauthorizationWhitelist=34\nuserCacheMaxNum=7\n"
    "authenticationMetadataProvider=org.x.Y\nmigrateAuthFromV1Enabled=true\n"
)


def test_secrets_of_a_broker_go_to_files_for_their_owner_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(ACL)
    for _ in range(2):  # the second time all is there already
        assert run(["config", "import", str(conf)]) == 0
        talk = capsys.readouterr()
        assert "canary" not in talk.out + talk.err
    store = tomllib.loads(talk.out)["store"]
    first, inner = tmp_path / "init_user.json", tmp_path / "inner_client.json"
    assert store == {
        "authentication_enabled": "true",
        "authorization_enabled": "true",
        "init_authentication_user_file": str(first),
        "inner_client_authentication_credentials_file": str(inner),
    }
    assert {one.stat().st_mode & 0o777 for one in (first, inner)} == {0o600}
    found = FirstUsers.of(Settings(**store))
    assert (found.first, found.inner) == (
        Credentials("admin", "canary-of-admin"), Credentials("inner", "canary-of-inner"),
    )  # fmt: skip
    left = dict(
        line.removeprefix("left out ").split(": ", 1)
        for line in talk.err.splitlines()
        if line.startswith("left out")
    )
    for name in ("authenticationWhitelist", "authorizationWhitelist"):
        assert "no codes without a login" in left[f"'{name}'"]
    assert "one way" in left["'authenticationMetadataProvider'"]
    assert "plain_acl" in left["'migrateAuthFromV1Enabled'"]
    assert "one way" in left["'userCacheMaxNum'"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("authorizationEnabled=true", "authorization_enabled is true"),
        ("authenticationEnabled=perhaps", "authentication_enabled is 'perhaps'"),
        ('initAuthenticationUser={"username":"a","password":"canary"}', "6 characters"),
        ("initAuthenticationUser=admin:canary-of-admin", "not a JSON object"),
        ('innerClientAuthenticationCredentials={"accessKey":"canary-key"}', "no field secretKey"),
    ],
)
def test_a_login_of_a_broker_that_cannot_be_meant_is_refused_and_makes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, why: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerId=0\n{line}\n")
    assert run(["config", "import", str(conf)]) == 1
    talk = capsys.readouterr()
    assert why in talk.err
    assert "canary" not in talk.err + talk.out
    assert [path.name for path in tmp_path.iterdir()] == ["broker.conf"]


def test_another_file_in_the_place_of_a_secret_stays_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf, inner = tmp_path / "broker.conf", tmp_path / "inner_client.json"
    conf.write_text(ACL)
    inner.write_text("mine")
    assert run(["config", "import", str(conf)]) == 2
    talk = capsys.readouterr()
    assert (talk.out, inner.read_text()) == ("", "mine")
    (tmp_path / "secrets").mkdir()
    assert run(["config", "import", str(conf), "--secrets", str(tmp_path / "secrets")]) == 0
    assert (tmp_path / "secrets" / "inner_client.json").exists()
