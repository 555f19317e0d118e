"""Named nodes: `~/.config/keelog/contexts.toml`, and which node a command talks to.

--node, then a context named with -c, then KEELOG_NODE, then KEELOG_CONTEXT, then the context in
use, then the default.
"""

import json
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from keelog.cli.failures import doing
from protocol.addresses import DEFAULT_NODE, with_scheme
from protocol.errors import BadRequest, MqError, NotFound
from protocol.human_text import one_line, printable

if TYPE_CHECKING:
    from keelog.client.client import Client
    from protocol.access.credentials import Credentials

NODE_VARIABLE = "KEELOG_NODE"
CONTEXT_VARIABLE = "KEELOG_CONTEXT"
TOPICS_S_MAX = 0.3
"""The longest that a press of TAB waits for a node."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMED = "keelog.context"
_PLACE = "keelog.node"
_KEYS = "keelog.keys"


class NodeAddress(NamedTuple):
    """A node, and where it was given: flag, context, environment or default."""

    url: str
    origin: str
    where: str
    key: str = ""
    """The path of the client's secret key; empty without keys."""
    server_key: str = ""
    access_key: str = ""
    """The user as whom consumers of groups log in; empty: they do not."""
    secret_file: str = ""


@dataclass(slots=True)
class Context:
    """One named node."""

    node: str
    description: str = ""
    key: str = ""
    """The path of the `.key_secret` to come with; the file has no secret itself."""
    server_key: str = ""
    """The node's public key."""
    access_key: str = ""
    """A user, for consumers of groups."""
    secret_file: str = ""
    """The path of the file with the user's password."""

    def at(self, origin: str, where: str) -> NodeAddress:
        """The node, as it was found."""
        login = self.access_key, self.secret_file
        return NodeAddress(with_scheme(self.node), origin, where, self.key, self.server_key, *login)


@dataclass(slots=True)
class Contexts:
    """All of them, and the name of the one in use."""

    named: dict[str, Context] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Context:
        """Raises NotFound for a name that is none of them, with the nearest one."""
        found = self.named.get(name)
        if found is None:
            import difflib

            near = difflib.get_close_matches(name, self.named, 1)
            hint = f"did you mean {near[0]}?" if near else "keelog context ls"
            raise NotFound(f"there is no context {name[:80]!a}", hint)
        return found


def path_of(environment: Mapping[str, str]) -> Path | None:
    """The file of the contexts, below XDG_CONFIG_HOME, else ~/.config; None without a home.

    A container may run with a user that has none, or with one of another user.
    """
    base = environment.get("XDG_CONFIG_HOME", "")
    # The XDG rule: a relative path there is to be ignored.
    if base.startswith("/"):
        return Path(base) / "keelog" / "contexts.toml"
    home = environment.get("HOME", "")
    with suppress(KeyError):
        home = home or pwd.getpwuid(os.geteuid()).pw_dir
    with suppress(PermissionError):  # this user may not look into a folder above it
        if home and (not Path(home).is_dir() or os.access(home, os.X_OK)):
            return Path(home) / ".config" / "keelog" / "contexts.toml"
    return None


def load(path: Path | None) -> Contexts:
    """Reads the file; an absent one is empty. Raises BadRequest, OSError."""
    if path is None:
        return Contexts()
    # Imported here: a command without contexts does without.
    import tomllib

    try:
        data = tomllib.loads(path.read_bytes().decode())
        named = {
            name: Context(**{key: _a_text(value) for key, value in fields.items()})
            for name, fields in data.get("contexts", {}).items()
        }
        current = data.get("current")
        return Contexts(named, None if current is None else _a_text(current))
    except FileNotFoundError:
        return Contexts()
    except (ValueError, TypeError, AttributeError) as error:
        hint = f"mend it, or remove it: rm {path}"
        raise BadRequest(f"{path} holds no contexts: {error}", hint) from None


def _a_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def save(path: Path | None, contexts: Contexts) -> None:
    """Replaces the file at once; nobody but its owner may read it. Raises BadRequest, OSError."""
    if path is None:
        raise BadRequest(
            "contexts need a home folder, and this user has none",
            "set HOME or XDG_CONFIG_HOME to a folder of yours",
        )
    lines = ["# Made by keelog context"]
    if contexts.current is not None:
        lines.append(f"current = {_quoted(contexts.current)}")
    for name, context in sorted(contexts.named.items()):
        lines += ["", f"[contexts.{_quoted(name)}]", f"node = {_quoted(context.node)}"]
        for field_name in ("description", "key", "server_key", "access_key", "secret_file"):
            if text := getattr(context, field_name):
                lines.append(f"{field_name} = {_quoted(text)}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".contexts-{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(descriptor, 0o600)
            stream.write("\n".join(lines) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def changed(what: str) -> Iterator[Contexts]:
    """The contexts, to be changed in the block and saved after it; `what` fails else."""
    with doing(f"cannot {what}"):
        path = path_of(os.environ)
        contexts = load(path)
        yield contexts
        save(path, contexts)


def _quoted(text: str) -> str:
    """A basic string of TOML, which is JSON's but for DEL."""
    return printable(json.dumps(text, ensure_ascii=False))


def resolve(
    flag: str | None,
    named: str | None,
    environment: Mapping[str, str],
    read: Callable[[], Contexts],
) -> NodeAddress:
    """The node that these say. Raises NotFound for an unknown context, BadRequest, OSError."""
    if flag is not None:
        return NodeAddress(_local_socket(flag) or with_scheme(flag), "flag", "--node")
    if named is not None:
        return read().get(named).at("flag", f"-c {named}")
    if text := environment.get(NODE_VARIABLE):
        url = _local_socket(text) or with_scheme(text)
        return NodeAddress(url, "environment", NODE_VARIABLE)
    asked = environment.get(CONTEXT_VARIABLE)
    contexts = read()
    name = asked or contexts.current
    if not name:
        return NodeAddress(DEFAULT_NODE, "default", "")
    where = f"{CONTEXT_VARIABLE}={name}" if asked else name
    return contexts.get(name).at("context", where)


def _local_socket(text: str) -> str:
    """The local socket of the node on a store directory, which takes its own user and root without
    keys; empty for any other text. Raises NotFound, OSError."""
    if "/" not in text or "://" in text or not Path(text).is_dir():
        return ""
    from node.runtime.run_files import read_control

    found = read_control(Path(text))
    if not found:
        raise NotFound(f"no node has run on {text}", f"keelog serve {text}")
    return found


def node_callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of --node: what was not said there comes from contexts and variables."""
    if ctx.resilient_parsing:
        return value
    said = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    place = find(ctx, value if said else None)
    ctx.meta[_PLACE] = place
    return place.url


def key_callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """The callback of --client-key and --server-key."""
    if value is not None:
        ctx.meta.setdefault(_KEYS, {})[parameter.name] = value


def find(ctx: click.Context, flag: str | None) -> NodeAddress:
    """The node, and the keys to come with: those of options, else those of its context."""
    named = ctx.meta.get(_NAMED)
    place = resolve(flag, named, os.environ, lambda: load(path_of(os.environ)))
    said = ctx.meta.get(_KEYS, {})
    key, server_key = said.get("client_key", place.key), said.get("server_key", place.server_key)
    if not key or not server_key:
        _check_both(said, key, server_key)
    return place._replace(key=key, server_key=server_key)


def given_keys(ctx: click.Context) -> tuple[str, str] | None:
    """The values of --client-key and --server-key; None where neither is there."""
    said = ctx.meta.get(_KEYS, {})
    key, server_key = said.get("client_key", ""), said.get("server_key", "")
    _check_both(said, key, server_key)
    return (key, server_key) if said else None


def _check_both(said: Mapping[str, str], key: str, server_key: str) -> None:
    """Raises UsageError where options say one of both keys, and nothing says the other."""
    if said and not (key and server_key):
        missing = "--server-key" if key else "--client-key"
        raise click.UsageError(f"{missing} is missing: a node with keys needs both")


def chosen(ctx: click.Context, node: str) -> NodeAddress:
    """How `node`, the value of --node, came about."""
    place: NodeAddress = ctx.meta.get(_PLACE, NodeAddress(node, "flag", "--node"))
    return place


def keys_of(node: str) -> tuple[str | None, str | None]:
    """The keys to come with to `node`, the value of --node: those of options or its context."""
    ctx = click.get_current_context(silent=True)
    place = NodeAddress(node, "", "") if ctx is None else chosen(ctx, node)
    keys = (place.key, place.server_key) if place.url == node else ("", "")
    return keys[0] or None, keys[1] or None


def connect(node: str, timeout: float | None = None) -> "Client":
    """A client of `node`, the value of --node, with the keys to come with. Raises as
    `keelog.connect`."""
    import keelog

    key, server_key = keys_of(node)
    return keelog.connect(node, timeout, key=key, server_key=server_key)


def credentials_for(
    node: str, access_key: str | None, secret_file: Path | None
) -> "Credentials | None":
    """Those that options name, else those of the context that named `node`. Raises UsageError for
    one of two options, BadRequest for a file that cannot be used."""
    if (access_key is None) != (secret_file is None):
        missing = "--secret-file" if secret_file is None else "--access-key"
        raise click.UsageError(f"{missing} is missing: a user logs in with both")
    place = chosen(click.get_current_context(), node)
    if access_key is None and place.url == node:
        access_key, secret_file = place.access_key, Path(place.secret_file)
    if not access_key or secret_file is None:
        return None
    from keelog.client.credentials import credentials_of

    return credentials_of(access_key, secret_file)


def name_callback(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """The callback of -c: the name is looked up at once, so that none is wrong in silence."""
    if value is None:
        return
    if not ctx.resilient_parsing:
        load(path_of(os.environ)).get(value)
    ctx.meta[_NAMED] = value


def complete_names(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The names that begin so, for the shell; nothing when the file is none."""
    try:
        names = load(path_of(os.environ)).named
    except (BadRequest, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def complete_topics(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The node's topics that begin with the word; none where no node replies in time."""
    try:
        place = ctx.meta[_PLACE] = find(ctx, ctx.params.get("node"))
        with ctx.scope(cleanup=False), connect(place.url, timeout=TOPICS_S_MAX) as client:
            names = [info.topic for info in client.topics()]
    except (MqError, OSError, click.UsageError):  # also one of both keys alone
        return []
    # What a shell cannot type is not completed, and the terminal does not get it.
    return sorted(n for n in names if n.startswith(incomplete) and n == one_line(n))
