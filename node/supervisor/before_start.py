"""What is checked before a node starts: its directory, then all its ports together.

May the directory be a store, and do processes still use it? No port is wanted twice, and each is
free before anything starts. A node that name servers or followers are to find has a port for them.
"""

import errno
import fcntl
import logging
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from node.access.tls_settings import TlsMode, load_tls
from node.access.users_file import read_users
from node.runtime import disk
from node.runtime.addresses import address_of, listen_at
from node.runtime.event_log import fields
from node.runtime.settings import OFF, Settings
from node.runtime.state_page import run_dir
from node.runtime.store_paths import held_open, no_permission, open_regular
from node.runtime.wakeup import READER_SLOTS
from node.store.identity.places import check_links, check_own_files
from node.supervisor import bind
from node.supervisor.options import Options, ServeSettings
from protocol import names
from protocol.addresses import VIP_DISTANCE, WILDCARDS
from protocol.errors import BadRequest, NotAStore, RefusedError, StoreLocked

log = logging.getLogger("keelog.supervisor")

ORPHANS_S_MAX = 10.0
FREED_S_MAX = 2.0
"""How long the ports of a node that has just ended may take to be free."""

_OF_A_STORE = frozenset(
    {
        *(names.COMMIT_LOG_DIR, names.CONSUME_QUEUE_DIR, names.INDEX_DIR, names.CONFIG_DIR),
        *(names.KEELOG_DIR, names.CHECKPOINT_FILE, names.ABORT_FILE, names.LOCK_FILE),
    }
)
_STORE_MARKS = _OF_A_STORE - {names.INDEX_DIR, names.CONFIG_DIR, names.LOCK_FILE}
"""A directory with one of these is a store."""
_IN_EMPTY_FILE_SYSTEMS = frozenset({"lost+found"})
_OTHERS_MAY_ENTER, _OTHERS_MAY_READ = 0o011, 0o044
_COUNTED_SLOTS = ("queue-", *READER_SLOTS)
CONSOLE_LIBRARIES = {
    "starlette": "starlette>=1.3.1",
    "uvicorn": "uvicorn>=0.34",
    "jinja2": "jinja2>=3.1.6",
}
"""Those of the extra `console`, as pip takes them."""
_RETRY_S = 0.05
_PORT_HINTS = {
    errno.EADDRINUSE: "stop the process that listens there (ss -ltnp shows it), or name another",
    errno.EACCES: "ports below 1024 need a right that this process has not: name a higher one in",
}
_ADDRESS_HINT = "name an address of this machine (ip addr shows them) in"
_CANNOT_BE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def open_directory(root: Path) -> None:
    """Makes a missing directory. Raises NotAStore for one that is neither a store nor empty.

    Raises IrregularFile for anything else in the place of an own file, and StorePermission. When it
    raises, nothing was changed.
    """
    try:
        check_links(root)
        if root.exists() and not root.is_dir():
            raise NotAStore(f"{root} is a file", "name a directory")
        disk.make_durable_dir(root)
        entries = {path.name for path in root.iterdir()} - _IN_EMPTY_FILE_SYSTEMS
        log = root / names.COMMIT_LOG_DIR
        if log.exists() and not log.is_dir():
            raise NotAStore(f"{log} is a file", "name the directory of a store")
    except PermissionError as error:
        raise no_permission(error, error.filename or root) from None
    except NotADirectoryError as error:
        raise NotAStore(f"{error.filename}: {error.strerror}", "name a directory") from None
    # `index` and `config` alone may be anybody's; a `lock` alone is a start that was killed.
    has_others = entries - {names.LOCK_FILE, names.KEELOG_DIR}
    marks = entries & (_STORE_MARKS if has_others else _OF_A_STORE)
    if not run_dir(root).is_dir():
        # Not any folder of our name: a checkout of this project has one too.
        marks -= {names.KEELOG_DIR}
    if entries and not marks:
        raise NotAStore(
            f"{root} holds other things than a store ({min(entries)[:40]!a})",
            "name an empty directory, or one that holds commitlog/",
        )
    check_own_files(root)


def warn_if_open_to_others(root: Path) -> None:
    """Logs a warning if users other than the owner may read the store.

    What Keelog makes is closed to them; files of a broker, or of an earlier version, may not be.
    """
    found = open_to_others(root)
    if found is not None:
        close = f"chmod -R go= {shlex.quote(str(root))}"
        log.warning("other users may read the store", extra=fields(path=found, close=close))


def open_to_others(root: Path) -> Path | None:
    """The first file or folder of a store that other users may read; None without one.

    In a folder that they may not enter they can read nothing, whatever its mode.
    """
    is_closed = not root.stat().st_mode & _OTHERS_MAY_ENTER
    for path in sorted(root / name for name in _OF_A_STORE):
        if is_closed and not path.is_symlink():
            continue
        with suppress(FileNotFoundError):
            if path.stat().st_mode & _OTHERS_MAY_READ:
                return path
    return None


def wait_for_orphans(root: Path, wait_s: float = ORPHANS_S_MAX) -> None:
    """Waits for the processes of a killed supervisor to end; they hold locks of their slots. Raises
    StoreLocked if one does not."""
    deadline = time.monotonic() + wait_s
    for path in sorted(run_dir(root).glob("*.lock")):
        while not _is_lock_free(path):
            if time.monotonic() >= deadline:
                raise StoreLocked(
                    f"{path} is held by a process of an earlier node",
                    "stop that process; reading commands need no lock",
                )
            time.sleep(_RETRY_S)


def _is_lock_free(path: Path) -> bool:
    try:
        with held_open(open_regular(path, os.O_RDWR)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def remove_old_pages(root: Path, slots: set[str]) -> None:
    """Removes the pages of queue workers and readers that this node does not have.

    The writer reads all pages when it stops; the pid in an old page may be of another process.
    """
    for path in run_dir(root).glob("*.page"):
        if path.stem.startswith(_COUNTED_SLOTS) and path.stem not in slots:
            disk.unlink(path, missing_ok=True)


class Port(NamedTuple):
    """One that a node listens at. `what` says for what, after the words of its option."""

    option: str
    given: str
    host: str
    port: int
    what: str = ""

    @property
    def said(self) -> str:
        """For people: the option as it was given, and what of it the port is."""
        return f"{self.option} {self.given}{self.what}"


def planned_ports(
    serve: ServeSettings, control: bind.BindAddress, gateway: bind.BindAddress, ha: bind.BindAddress
) -> list[Port]:
    """The ports that are known before the start: not those that the system is left to choose."""
    host, first = control.address or control.host, control.port
    found: list[Port] = []
    if not control.any_port:
        said = ["", " (the writer, one port above)"]
        said += [f" (reader {n}, {2 + n} ports above)" for n in range(serve.readers)]
        found = [Port("--bind", serve.bind, host, first + n, what) for n, what in enumerate(said)]
    if gateway.port:
        for port, what in (
            (gateway.port, ""),
            (gateway.port - VIP_DISTANCE, " (two ports below, for old clients)"),
        ):
            found.append(Port("--remoting", serve.remoting, gateway.host, port, what))
    if ha.port:
        found.append(Port("--ha", serve.ha_listen, ha.host, ha.port))
    http = bind.parse_http(serve.http)
    if http is not None and http.port:
        found.append(Port("--http", serve.http, http.host, http.port))
    console = bind.parse_console(serve.console)
    if console is not None and console.port:
        found.append(Port("--console", serve.console, console.host, console.port))
    return found


def check_apart(ports: Sequence[Port]) -> None:
    """Raises BadRequest for a port that two ends of the node want."""
    for one, other in combinations(ports, 2):
        if one.port == other.port and _meet(one.host, other.host):
            raise BadRequest(
                f"{one.said} and {other.said} want the same port, {one.port}",
                f"name another port in {other.option}, or in {one.option}",
            )


def _meet(one: str, other: str) -> bool:
    if one == other or one in WILDCARDS or other in WILDCARDS:
        return True
    try:
        return bool(address_of(one) == address_of(other))
    except (OSError, UnicodeError):
        return False  # who listens there says so


def check_published(ports: Sequence[Port], advertised: bind.Advertised) -> None:
    """Raises BadRequest for a port of `--advertise` at which the node does not listen, and for one
    of RocketMQ's clients without a host: these do not know which they asked."""
    for own, outer in advertised.published.items():
        found = next((one for one in ports if one.port == own), None)
        if found is None:
            raise BadRequest(
                f"--advertise maps port {outer} to {own}, at which the node does not listen",
                "write PUBLISHED:OWN, as docker run -p: the node's own port is the second",
            )
        if found.option in ("--remoting", "--ha") and not advertised.host:
            raise BadRequest(
                f"--advertise maps port {own} of {found.option}, and names no host",
                f"put the host before it: --advertise db7.example.org,{outer}:{own}",
            )


def check_free(ports: Sequence[Port], wait_s: float = 0.0) -> None:
    """Raises RefusedError for a port at which somebody listens, after `wait_s`, and BadRequest for
    an address that the machine does not have."""
    deadline = time.monotonic() + wait_s
    waiting = list(ports)
    while waiting:
        one = waiting[0]
        try:
            listen_at(one.host, one.port).close()
            del waiting[0]
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                kind = BadRequest if error.errno in _CANNOT_BE else RefusedError
                raise kind(
                    f"cannot listen at {one.host}:{one.port}, for {one.said}: {error.strerror}",
                    f"{_PORT_HINTS.get(error.errno or 0, _ADDRESS_HINT)} {one.option}",
                ) from None
            time.sleep(_RETRY_S)


def check_ha(place: bind.BindAddress, settings: Settings) -> None:
    """Raises BadRequest where messages must have copies and nobody may follow."""
    if settings.waits_for_followers and not place.port:
        raise BadRequest(
            f"broker_role is {settings.broker_role} with in_sync_replicas"
            f" {settings.in_sync_replicas}, and nobody may follow this node",
            "add --ha HOST:PORT, as --ha 0.0.0.0:10912",
        )


def place_to_announce(options: Options, gateway: bind.BindAddress) -> str:
    """The address that name servers get; nothing where the node registers at none. Raises
    BadRequest."""
    name_servers = bind.parse_name_servers(options.broker.namesrv_addr)
    if not name_servers:
        return ""
    if not gateway.port:
        raise BadRequest(
            "broker.namesrv_addr (--namesrv) names name servers, but no RocketMQ client is served",
            "add --remoting HOST:PORT, as --remoting 0.0.0.0:10911",
        )
    advertised = bind.parse_advertise(options.network.advertise)
    return bind.announced_address(gateway, advertised, name_servers[0])


def check_console_libraries() -> None:
    """Raises BadRequest where the libraries of the console are not installed."""
    missing = [name for name in CONSOLE_LIBRARIES if find_spec(name) is None]
    if missing:
        raise BadRequest(
            f"the console needs {' and '.join(missing)}, and Python does not find them",
            f"pip install {' '.join(map(shlex.quote, CONSOLE_LIBRARIES.values()))}",
        )


def check_console(options: Options, settings: Settings) -> None:
    """Whether the console may be served as it is asked for: its libraries are there, and beyond
    loopback it has a login and TLS. Raises BadRequest."""
    place = bind.parse_console(options.serve.console)
    if place is None:
        return
    check_console_libraries()
    if place.resolved().is_loopback:
        return
    users = read_users(options.root)[0].users.values() if options.root.is_dir() else ()
    asks = settings.authentication_enabled != OFF and any(one.secret for one in users)
    if not asks and options.serve.console_read != "key":
        raise BadRequest(
            f"--console {options.serve.console} can be reached from other hosts, and everybody"
            " there could read every message",
            "add --console-read key, or make users with keelog user create, or serve it at"
            " 127.0.0.1 alone",
        )
    if load_tls(settings).mode is TlsMode.DISABLED:
        raise BadRequest(
            f"--console {options.serve.console} can be reached from other hosts, and without TLS"
            " others read passwords along",
            "name tls_server_cert_path and tls_server_key_path, or serve it at 127.0.0.1 alone",
        )
