"""mqadmin at the two sides with users: it logs in as their Super user, by its `tools.yml`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.clients.access.sides import (
    INNER,
    ROOT,
    LoginSide,
    broker_with_users,
    node_with_users,
)
from tests.clients.mqadmin.sides import AdminSide, AdminTool
from tests.clients.sides import BROKER, CLUSTER

TOPIC = "Orders"
BY_TLS = ("-Dtls.enable=true",)


@contextmanager
def admin_tool(home: Path, options: Sequence[str] = ()) -> Iterator[AdminTool]:
    """A warm process of the tools, which logs in as ROOT. `options`: of its Java."""
    ROOT.tools_yml(home)
    with AdminTool(home, options) as tool:
        yield tool


@contextmanager
def user_sides(folder: Path) -> Iterator[Sequence[AdminSide]]:
    """The broker's side and the node's. Both have the two users that a broker begins with."""
    with (
        broker_with_users(folder / "rocketmq") as broker,
        node_with_users(folder / "store") as (node, _),
        admin_tool(folder / "tools-of-broker") as broker_tool,
        admin_tool(folder / "tools-of-node") as node_tool,
    ):
        node.make_user(INNER, {}, "Super")
        yield (
            AdminSide(broker_tool, names_of(broker)),
            AdminSide(node_tool, names_of(node)),
        )


def names_of(login: LoginSide) -> dict[str, str]:
    """What the braces of cases stand for."""
    return {
        "name_server": login.side.name_server, "broker": login.side.broker, "name": BROKER,
        "cluster": CLUSTER, "topic": TOPIC,
    }  # fmt: skip
