"""`keelog user`: makes, shows, changes and removes users.

A password is never an argument, where `ps` and the shell's history would show it: it comes from a
file or a prompt, or it is made here.
"""

import secrets
import string
import sys
from pathlib import Path
from typing import Any

import click

from keelog.cli.access.place import UserPlace, UserRow, known_user, name_of, opened, place_options
from keelog.cli.failures import doing
from keelog.cli.node.topics import confirm, yes_option
from keelog.cli.options import CliGroup, options
from keelog.cli.output import Output, say
from keelog.text import time_text
from protocol.access.changes import CREATE_USER, DELETE_USER, UPDATE_USER, Change, changed
from protocol.access.plain_acl import read_plain_acl
from protocol.access.users import EMPTY, UserStatus, UserType
from protocol.errors import BadRequest
from protocol.remoting.auth_bodies import UserInfo
from protocol.remoting.java_json import JSON_BODY_BYTES_MAX, write_body

GENERATED_CHARS = 32
_LETTERS = string.ascii_letters + string.digits
_PASSWORD_BYTES_MAX = 4_096


@click.group("user", cls=CliGroup)
def user() -> None:
    """Makes, shows, changes and removes the users of a node.

    Example: keelog user create billing

    Example: keelog user ls --store ./store
    """


password_options = options(
    click.option(
        "--password-file",
        type=click.Path(allow_dash=True, path_type=Path),
        metavar="FILE",
        help="Its first line is the password; - is stdin.",
    ),
    click.option("--prompt", is_flag=True, help="Asks for the password, on a terminal."),
)
keys_option = click.option(
    "--public-key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="A CURVE public key of the user; may be there several times.",
)
user_argument = click.argument("name", metavar="USER")


def _password(file: Path | None, prompt: bool) -> str | None:
    """The password that was given; None where none was. Raises BadRequest."""
    if file is not None and prompt:
        raise BadRequest("--password-file and --prompt are both there", "leave one out")
    if prompt:
        if not sys.stdin.isatty():
            raise BadRequest("stdin is not a terminal, so nobody can be asked", "--password-file -")
        asked = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return str(asked)
    if file is None:
        return None
    with click.open_file(str(file), "rb") as opened_file:
        data = opened_file.read(_PASSWORD_BYTES_MAX)
    try:
        found = str(data, "utf-8").split("\n")[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise BadRequest(f"{file} is not UTF-8", "write the password as plain text") from None
    if not found.strip():
        raise BadRequest(f"the first line of {file} is empty", "write the password there")
    return found


def _generated() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(GENERATED_CHARS))


def _change(what: str, name: str, info: UserInfo) -> Change:
    return Change(what, name, write_body(info, standard=True))


def _print_with(output: Output, document: dict[str, Any], made: str | None) -> None:
    """A user, with the password that the command has made, if it has."""
    if made is not None:
        say("the password is shown once, and never again")
        document["password"] = made
    output.document(document)


def shown(row: UserRow) -> dict[str, Any]:
    """A user as commands print it."""
    return {
        "name": row["name"],
        "type": row["type"],
        "status": row["status"],
        "has_password": row["has_secret"],
        "public_keys": row["public_keys"],
        "changed_ms": row["changed_ms"],
    }


@user.command("create")
@user_argument
@click.option("--super", "is_super", is_flag=True, help="May do everything, without a list.")
@password_options
@keys_option
@place_options
def create(
    name: str,
    is_super: bool,
    password_file: Path | None,
    prompt: bool,
    output: Output,
    **given: Any,
) -> None:
    """Makes a user, with a password of 32 characters that is shown once.

    The password comes from a file or a prompt instead, if one is named; with a public key alone
    there is none. A new user may do nothing until a list allows it: keelog acl allow.

    Example: keelog user create billing

    Example: keelog user create operator --super --password-file ./secret
    """
    password = _password(password_file, prompt)
    made = _generated() if password is None and not given["keys"] else None
    kind = UserType.SUPER if is_super else UserType.NORMAL
    name = name_of(name)
    info = UserInfo(name, made or password, str(kind), None, tuple(given["keys"]) or None)
    with doing(f"cannot make user {name}"), opened(given["node"], given["store"]) as place:
        place.change([_change(CREATE_USER, name, info)])
        document = shown(known_user(place, name))
    _print_with(output, document, made)


@user.command("ls")
@place_options
def ls(node: str, store: Path | None, output: Output) -> None:
    """Lists the users.

    Example: keelog user ls --json
    """
    with doing("cannot list the users"), opened(node, store) as place:
        rows = [shown(row) for row in place.users()]
    if output.format == "table":
        for row in rows:
            row["public_keys"] = len(row["public_keys"])
            row["changed"] = time_text(row.pop("changed_ms"))
    output.rows(rows)


@user.command("show")
@user_argument
@place_options
def show(name: str, node: str, store: Path | None, output: Output) -> None:
    """Shows a user and what the list says.

    Example: keelog user show billing
    """
    name = name_of(name)
    with doing(f"cannot show user {name}"), opened(node, store) as place:
        row = known_user(place, name)
    document = shown(row)
    title = f"{name}: {row['type']}, {row['status']}"
    output.document({**document, "entries": row["entries"]}, row["entries"], title)


@user.command("set")
@user_argument
@click.option("--super/--normal", "is_super", default=None, help="The type of the user.")
@click.option("--enable/--disable", "is_enabled", default=None, help="Whether requests count.")
@click.option("--new-password", is_flag=True, help="Makes a password, and shows it once.")
@password_options
@keys_option
@place_options
def set_(name: str, output: Output, **given: Any) -> None:
    """Changes what is named of a user; all else stays.

    Public keys replace those that the user had.

    Example: keelog user set operator --disable

    Example: keelog user set billing --new-password
    """
    password = _password(given["password_file"], given["prompt"])
    if given["new_password"] and password is not None:
        raise BadRequest("there are two new passwords", "leave one of the options out")
    made = _generated() if given["new_password"] else None
    name = name_of(name)
    info = UserInfo(
        name,
        made or password,
        _either(given["is_super"], UserType.SUPER, UserType.NORMAL),
        _either(given["is_enabled"], UserStatus.ENABLE, UserStatus.DISABLE),
        tuple(given["keys"]) or None,
    )
    if info == UserInfo(name):
        raise BadRequest("nothing is to be changed", "keelog user set --help")
    with doing(f"cannot change user {name}"), opened(given["node"], given["store"]) as place:
        known_user(place, name)
        place.change([_change(UPDATE_USER, name, info)])
        document = shown(known_user(place, name))
    _print_with(output, document, made)


def _either(given: bool | None, yes: str, no: str) -> str | None:
    return None if given is None else str(yes if given else no)


@user.command("rm")
@user_argument
@yes_option
@place_options
def remove(name: str, yes: bool, node: str, store: Path | None, output: Output) -> None:
    """Removes a user together with the access list; asks first, on a terminal.

    Example: keelog user rm billing --yes
    """
    name = name_of(name)
    with doing(f"cannot remove user {name}"), opened(node, store) as place:
        row = known_user(place, name)
        confirm(f"keelog user rm {name}", "this user", yes)
        place.change([Change(DELETE_USER, name)])
    output.document({"name": name, "deleted": True, "entries": len(row["entries"])})


@user.command("import")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@place_options
def import_(file: Any, node: str, store: Path | None, output: Output) -> None:
    """Makes users and lists of RocketMQ's plain_acl.yml, written as JSON.

    Users that are there already stay as they are. White addresses get no rights: every request is
    to be signed.

    Example: keelog user import plain_acl.json
    """
    with doing(f"cannot import {file.name}"):
        found = read_plain_acl(file.read(JSON_BODY_BYTES_MAX + 1))
        with opened(node, store) as place:
            rows = _imported(place, found.changes)
    for warning in found.warnings:
        say(warning)
    output.rows(rows, ("name", "imported"))


def _imported(place: UserPlace, changes: dict[str, list[Change]]) -> list[dict[str, Any]]:
    known = {row["name"] for row in place.users()}
    wanted = [one for name, several in changes.items() if name not in known for one in several]
    _check(wanted)
    place.change(wanted)
    return [{"name": name, "imported": name not in known} for name in changes]


def _check(wanted: list[Change]) -> None:
    """All of them are applied to a table without users first: what one is refused for ends it
    before another is done."""
    table = EMPTY
    for one in wanted:
        table = changed(table, one, True, 0)
