"""`keelog config` and `keelog context`: settings of a node, and names for nodes.

`config` shows, checks, writes and imports settings. It imports RocketMQ's broker.conf, a Java
properties file, and says which settings hold here, and why not the rest.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import click

from keelog.cli import contexts, settings
from keelog.cli.failures import doing
from keelog.cli.options import CliGroup, node_option, output_options, settings_given_options
from keelog.cli.output import Output
from node.runtime.settings import changed, snake_case
from protocol.access.credentials import FIRST_USER_FORM, INNER_FORM, CredentialsForm
from protocol.addresses import DEFAULT_NODE, with_scheme, without_credentials
from protocol.errors import BadRequest, MqError, NotAllowed
from protocol.java_properties import java_properties

OLD_NAMES = {
    "mapedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mapedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "accessMessageInMemorymaxRatio": "access_message_in_memory_max_ratio",
}
"""As releases before 5 write them."""
_HA = "use keelog serve --ha HOST:PORT (docs/replication.md)"
_NO_COPIES = "a node has no such rule for its copies (docs/replication.md)"
_NO_SERVERS = "name servers are those of namesrvAddr; a node registers every 30 s"
_GROUPS = "a node with --remoting runs groups in its own way (docs/rocketmq-clients.md)"
_TRANSACTIONS = "a node with --remoting has other settings for them (docs/settings.md)"
_NO_USERS = "users are made with keelog user, lists with keelog acl (docs/security.md)"
_NO_WHITELIST = "there are no codes without a login: give their sender a user (docs/security.md)"
_OWN_USERS = "a node has one way to look at users, and keeps them in keelog/auth (docs/security.md)"
_V1_USERS = "keelog user import plain_acl.json (docs/security.md)"
_TLS = (
    "keelog serve -X tls_config_file=/etc/rocketmq/tls.properties, and -X tls_enable=true for"
    " the node's own connections (docs/tls.md)"
)
_THREADS = "processes take the place of thread pools: keelog serve --readers, --queue-workers"
_WHERE = "the directory is the argument of keelog serve"
_BIND = "use keelog serve --remoting HOST:PORT; --bind is for clients of Keelog"
_TIMERS = "a node with --remoting delivers delayed messages and timer messages in its own way"
REASONS: tuple[tuple[str, str], ...] = (
    (r"storePath.*|commitLogDir|.*StorePath.*", _WHERE),
    (r"listenPort|bindAddress|fastListenPort", _BIND),
    (r"brokerIP[12]", "use keelog serve --advertise HOST"),
    (r"haListenPort", _HA),
    (r"brokerRole|ha[A-Z].*|slave.*|.*Slave.*|.*InSync.*|.*Replica.*", _NO_COPIES),
    (r"enableDLegerCommitLog|dLeger.*|duplicationEnable|.*[cC]ontroller.*", _NO_COPIES),
    (r"namesrv.*|.*NameServer.*|.*Namesrv.*|registerBroker.*|fetchNamesrv.*", _NO_SERVERS),
    (r"brokerPermission", "permissions are those of each topic"),
    (r".*[tT]ransaction.*", _TRANSACTIONS),
    (r".*(Subscription|[cC]onsumer|Group|[pP]op|[rR]ebalance).*", _GROUPS),
    (r".*(Tls|TLS|tls).*", _TLS),
    (r"(authentication|authorization)Whitelist", _NO_WHITELIST),
    (r"(authentication|authorization|stateful|user|acl).*"
     r"(Provider|Strategy|Cache.*|Num|Second)", _OWN_USERS),
    (r"migrateAuthFromV1Enabled", _V1_USERS),
    (r"acl.*|.*[aA]uth.*", _NO_USERS),
    (r".*(ThreadPoolNums?|ThreadNums?)|server.*Threads?", _THREADS),
    (r".*(Timer|timer|Schedule|schedule).*", _TIMERS),
    (r".*(RocksDB|rocksdb|rocksDb).*|storeType|.*BatchCQ.*|.*Compaction.*",
     "queues are RocketMQ's plain files"),
    (r".*([mM]etrics|[tT]race).*", "the node counts without a setting: keelog status --json"),
    (r"longPollingEnable", "a pull says itself how long it waits"),
    (r".*([wW]arm|[tT]ransientStorePool.*Lock|mlock|[cC]oldData).*",
     "the page cache is left to the system"),
)  # fmt: skip
_OTHERWISE = "nothing here does what it says"


_SECRETS: dict[str, tuple[str, str, CredentialsForm]] = {
    "initAuthenticationUser": (
        "init_authentication_user_file", "init_user.json", FIRST_USER_FORM,
    ),
    "innerClientAuthenticationCredentials": (
        "inner_client_authentication_credentials_file", "inner_client.json", INNER_FORM,
    ),
}  # fmt: skip
"""By property: the setting that names a file with its value, the file's name, and its form."""
_LOGINS = ("authentication_enabled", "authorization_enabled")
"""One of them is checked against the other."""


@click.group("config", cls=CliGroup)
def config() -> None:
    """Shows settings and where they come from; checks, writes and imports settings files.

    Example: keelog config show --origin

    Example: keelog config init > keelog.toml
    """


@config.command("show")
@click.option("--origin", is_flag=True, help="Adds the default, and where the value comes from.")
@node_option
@settings_given_options
@output_options
def show(origin: bool, node: str, given: tuple[settings.Given, ...], output: Output) -> None:
    """Shows each setting as `keelog serve` with the same options would have it.

    The last of --config, variables KEELOG_STORE__NAME and KEELOG_SERVE__NAME, and -X wins; options
    of `keelog serve` go before all of them. The first row is the node that other commands would
    talk to: --node, a context named with -c, KEELOG_NODE, KEELOG_CONTEXT,
    the context in use, or the default.

    Example: keelog config show

    Example: keelog config show --origin -X store.flush_disk_type=SYNC_FLUSH -X serve.http=7855
    """
    with doing("cannot show the settings"):
        found = {table: settings.settings_of(table, given) for table in settings.TABLES}
    by_name = {(one.table, one.name): one for one in given}
    place = contexts.chosen(click.get_current_context(), node)
    url = without_credentials(place.url)
    rows: list[tuple[Any, ...]] = [("node", url, DEFAULT_NODE, place.origin, place.where)]
    for table in settings.TABLES:
        for field in dataclasses.fields(settings.kind_of(table)):
            one = by_name.get((table, field.name), settings.Given("", "default", ""))
            value = getattr(found[table], field.name)
            rows.append((f"{table}.{field.name}", value, field.default, one.origin, one.where))
    names = ("setting", "value", "default", "origin", "where") if origin else ("setting", "value")
    output.rows([dict(zip(names, row, strict=False)) for row in rows])


@config.command("check")
@click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@output_options
def check(file: Path, output: Output) -> None:
    """Says all that is wrong with a settings file: unknown names, wrong kinds, wrong values.

    Ends with 0 when `keelog serve DIR --config FILE` would take it, with 1 when not.

    Example: keelog config check keelog.toml
    """
    with doing(f"cannot check {file}"):
        _, problems = settings.read_file(file)
    output.rows((problem._asdict() for problem in problems), ("line", "setting", "problem", "hint"))
    if not problems:
        return
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    where = f"line {first.line}: " if first.line else ""
    with doing(f"{file} is not as it should be"):
        raise MqError(f"{where}{first.problem}{more}", first.hint)


@config.command("init")
@click.option("--commented", is_flag=True, help="None in force: take the # away where needed.")
def init(commented: bool) -> None:
    """Prints a settings file with all settings, their defaults, and what each does.

    Example: keelog config init > keelog.toml

    Example: keelog config init --commented
    """
    click.echo(settings.whole_file(commented), nl=False)


@config.command("import")
@click.argument(
    "file", metavar="BROKER_CONF", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--secrets", "folder", metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where files for secrets are made; else beside BROKER_CONF.",
)  # fmt: skip
def import_(file: Path, folder: Path | None) -> None:
    """Prints the settings of a RocketMQ broker's properties file as a settings file.

    What has no counterpart here is listed on stderr, each with the reason. Secrets go to files of
    their own, for you alone: settings name these.

    Example: keelog config import broker.conf > keelog.toml
    """
    with doing(f"cannot import {file}"):
        # Properties are latin-1 with \\uXXXX; comments in other encodings do no harm.
        tables, left_out, secrets = import_conf(file.read_text(encoding="latin-1"))
        for setting_name, (file_name, data) in secrets.items():
            path = (folder or file.parent).absolute() / file_name
            write_secret(path, data)
            click.echo(f"a secret is in {path}, which {setting_name} names", err=True)
            tables[settings.STORE][setting_name] = str(path)
    head = f"{sum(map(len, tables.values()))} settings of {file.name!a}"
    click.echo(settings.some_lines(tables, head), nl=False)
    for name, why in left_out.items():
        click.echo(f"left out {name!a}: {why}", err=True)


class BadBrokerConf(MqError):
    """A broker.conf with a value that is none."""


def write_secret(path: Path, data: bytes) -> None:
    """Makes a file for its owner alone. Raises BadRequest for another one in its place, OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.stat()
        if path.read_bytes() == data and not found.st_mode & 0o077:
            return
        hint = "move it away, or name another folder with --secrets"
        raise BadRequest(f"{path} is there already, and is another file", hint) from None
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(data)


class Imported(NamedTuple):
    """The contents of a broker.conf."""

    tables: dict[str, dict[str, object]]
    """The settings that hold here, by tables and our names."""
    left_out: dict[str, str]
    """Why others are left out."""
    secrets: dict[str, tuple[str, bytes]]
    """By the setting that is to name it: the name of a file, and what it is to hold."""


def import_conf(text: str) -> Imported:
    """Reads a broker.conf. Raises BadBrokerConf for a bad value; it shows no secret."""
    tables: dict[str, dict[str, object]] = {settings.BROKER: {}, settings.STORE: {}}
    left_out: dict[str, str] = {}
    secrets: dict[str, tuple[str, bytes]] = {}
    logins: list[str] = []
    for number, name, value in java_properties(text):
        if name in _SECRETS:
            if value.strip():
                secrets |= _secret(number, name, value)
            continue
        ours = OLD_NAMES.get(name) or snake_case(name)
        homes = (
            one
            for one in (settings.STORE, settings.BROKER)
            if ours in settings.kind_of(one).__dataclass_fields__
        )
        table = next(homes, None)
        if table is None or (name, value) == ("brokerRole", "SLAVE"):
            left_out[name] = reason_against(name)
            continue
        if ours in _LOGINS:
            # One alone may be refused: both of them are known only at the end.
            logins.append(f"{ours}={value.strip().lower()}")
        else:
            _put(tables, table, [f"{ours}={value}"], f"line {number}: {name}")
    _put(tables, settings.STORE, logins, "authenticationEnabled, authorizationEnabled")
    return Imported(tables, left_out, secrets)


def _put(tables: dict[str, dict[str, object]], table: str, pairs: list[str], where: str) -> None:
    """Notes settings that go together. Raises BadBrokerConf."""
    try:
        made = changed(settings.kind_of(table)(), pairs, table)
    except BadRequest as error:
        raise BadBrokerConf(f"{where}: {error.reason}", error.hint) from None
    for pair in pairs:
        ours = pair.partition("=")[0]
        tables[table][ours] = getattr(made, ours)


def _secret(number: int, name: str, value: str) -> dict[str, tuple[str, bytes]]:
    """Raises BadBrokerConf."""
    setting_name, file_name, form = _SECRETS[name]
    try:
        data = form.text(form.parse(value.encode()))
    except (BadRequest, NotAllowed) as error:
        raise BadBrokerConf(f"line {number}: {name}: {error.reason}", error.hint) from None
    return {setting_name: (file_name, data)}


def reason_against(name: str) -> str:
    """Why a property of RocketMQ has no counterpart here."""
    return next((why for what, why in REASONS if re.fullmatch(what, name)), _OTHERWISE)


@click.group("context", cls=CliGroup)
def context() -> None:
    """Gives nodes names: `keelog -c NAME …`, or one that is in use until another is.

    They are kept in ~/.config/keelog/contexts.toml (XDG_CONFIG_HOME), readable by you alone.

    Example: keelog context add prod --node tcp://10.0.0.7:7850 --use

    Example: keelog context ls
    """


@context.command("ls")
@output_options
def ls(output: Output) -> None:
    """Lists the contexts; `current` marks the one in use.

    Example: keelog context ls --json
    """
    with doing("cannot list the contexts"):
        found = contexts.load(contexts.path_of(os.environ))
    names = ("name", "node", "description", "current")
    rows = (
        (name, without_credentials(one.node), one.description, name == found.current)
        for name, one in sorted(found.named.items())
    )
    output.rows((dict(zip(names, row, strict=True)) for row in rows), names)


@context.command("add")
@click.argument("name")
@click.option("--node", required=True, metavar="URL", help="As tcp://10.0.0.7:7850.")
@click.option("--description", default="", metavar="TEXT")
@click.option(
    "--client-key", "--key", "key",
    type=click.Path(path_type=Path), metavar="FILE", help="Your .key_secret.",
)  # fmt: skip
@click.option("--server-key", metavar="KEY|FILE", help="The node's: keelog key show DIR.")
@click.option("--access-key", metavar="USER", help="As whom consumers of groups log in.")
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="FILE", help="With its password."
)
@click.option("--use", is_flag=True, help="Puts it in use, too.")
@click.option("--replace", is_flag=True, help="Replaces the one that has this name.")
def add(name: str, node: str, description: str, use: bool, replace: bool, **login: Any) -> None:
    """Gives a node a name, and says with which keys to come to it, and as which user.

    Example: keelog context add test --node tcp://127.0.0.1:7850 --description 'on this machine'
    """
    with contexts.changed(f"add the context {name}") as known:
        if not contexts.NAME.fullmatch(name):
            hint = "use letters, digits, dots and dashes"
            raise BadRequest(f"{name[:80]!a} is no name of a context", hint)
        if name in known.named and not replace:
            hint = f"keelog context add {name} --node {node} --replace"
            raise BadRequest(f"there is a context {name} already", hint)
        node = with_scheme(node)
        if not node.startswith(("tcp://", "ipc://")):
            raise BadRequest(f"{node[:80]!a} is not an address", "write tcp://127.0.0.1:7850")
        known.named[name] = contexts.Context(node, description, **_login(**login))
        if use:
            known.current = name


def _login(
    key: Path | None, server_key: str | None, access_key: str | None, secret_file: Path | None
) -> dict[str, str]:
    """The fields of a context by which to come to its node. Raises BadRequest, BadKey: a wrong file
    is found now."""
    # Imported here: most contexts have no keys, and these need ZeroMQ.
    from keelog.client.credentials import credentials_of
    from keelog.client.transport.keys import client_keys

    keys = client_keys(key, server_key)
    found: dict[str, str] = {}
    if keys is not None and key is not None:
        found |= {"key": str(key.absolute()), "server_key": keys.server}
    if (access_key is None) != (secret_file is None):
        raise click.UsageError("--access-key and --secret-file go together")
    if access_key is not None and secret_file is not None:
        credentials_of(access_key, secret_file)
        found |= {"access_key": access_key, "secret_file": str(secret_file.absolute())}
    return found


@context.command("use")
@click.argument("name", required=False, shell_complete=contexts.complete_names)
@click.option("--none", is_flag=True, help="No context is in use any more.")
def use(name: str | None, none: bool) -> None:
    """Puts a context in use: commands talk to its node when nothing else says where.

    Example: keelog context use prod

    Example: keelog context use --none
    """
    if (name is None) != none:
        raise click.UsageError("name a context, or say --none")
    with contexts.changed("change the context in use") as known:
        if name is not None:
            known.get(name)
        known.current = name


@context.command("rm")
@click.argument("name", shell_complete=contexts.complete_names)
def remove(name: str) -> None:
    """Removes a context; if it is in use, none is in use then.

    Example: keelog context rm prod
    """
    with contexts.changed(f"remove the context {name}") as known:
        known.get(name)
        del known.named[name]
        if known.current == name:
            known.current = None
