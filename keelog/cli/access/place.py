"""Where users are looked at and changed: at a node that runs, or in a store at rest."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

import keelog
from keelog.cli.contexts import connect
from keelog.cli.options import node_option, options, output_options
from keelog.client.users import change_at, users_of
from keelog.replication.roles import stopped_store
from node.access.answers import users_page
from node.access.audit import DONE, AuditEvent, AuditLog
from node.access.user_table import replace_user_table
from node.access.users_file import read_users
from node.runtime.process import now_ms
from protocol.access.changes import DELETE_ACL, Change
from protocol.access.users import SUBJECT_PREFIX, check_name
from protocol.errors import NotFound

UserRow = dict[str, Any]
"""A user as the operation `users` answers: without a secret, with the entries of the list."""

place_options = options(
    node_option,
    click.option(
        "--store",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A store whose node does not run, instead of a node.",
    ),
    output_options,
)
"""The command gets `node: str`, `store: Path | None` and `output: Output`."""


class UserPlace(Protocol):
    """A node, or a store at rest."""

    def users(self, name: str | None = None) -> list[UserRow]:
        """All users, or the one of this name."""

    def change(self, wanted: Sequence[Change]) -> None:
        """Applies changes, in their order."""


class _NodePlace:
    def __init__(self, client: keelog.Client) -> None:
        self._client = client

    def users(self, name: str | None = None) -> list[UserRow]:
        return users_of(self._client, name)

    def change(self, wanted: Sequence[Change]) -> None:
        for one in wanted:
            change_at(self._client, one)


class _StorePlace:
    """The store's lock is held."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def users(self, name: str | None = None) -> list[UserRow]:
        table, _ = read_users(self._root)
        names = sorted(table.users) if name is None else [name]
        return [row for one in names for row in users_page(table, one, "")["users"]]

    def change(self, wanted: Sequence[Change]) -> None:
        at = now_ms()
        replace_user_table(self._root, list(wanted), at)
        audit, who = AuditLog(self._root), f"uid {os.getuid()}"
        for one in wanted:
            what = f"{one.name} {one.resource}" if one.what == DELETE_ACL else one.name
            audit.write(AuditEvent("command", who, "", one.what, what.strip(), DONE), at)
        audit.close()


def make_store(directory: Path) -> None:
    """Makes a store where there is none, as keelog serve would. Raises NotAStore for a folder that
    holds something else, StorePermission."""
    from node.store.identity.places import create_store
    from node.supervisor.before_start import open_directory

    open_directory(directory)
    create_store(directory)


@contextmanager
def opened(node: str, store: Path | None) -> Iterator[UserPlace]:
    """The place that a command names. Raises StoreLocked while a node runs on the store."""
    if store is None:
        with connect(node) as client:
            yield _NodePlace(client)
    else:
        with stopped_store(store) as root:
            yield _StorePlace(root)


def name_of(text: str) -> str:
    """The user that `alice` or `User:alice` names. Raises NotAllowed."""
    name = text.removeprefix(SUBJECT_PREFIX)
    check_name(name)
    return name


def known_user(place: UserPlace, name: str) -> UserRow:
    """The user of this name. Raises NotFound."""
    found = place.users(name)
    if not found:
        raise NotFound(f"nobody is called {name} here", "see them: keelog user ls")
    return found[0]
