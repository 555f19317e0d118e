"""Figures that help to find out what is wrong with a node, as files for one zip.

Nothing of a message goes in: no body, key, tag or property. Of variables only the names, of
command lines nothing. Names of topics do: they are names of folders. The machine and its settings
are shown beside those that RocketMQ asks for.

Any process at the address may reply anything, and the zip goes to other people. So no path of a
reply is opened. Files are those that a process of the caller's own user has open, when that
process listens at the address that was asked; what the machine shows proves it, not the answer.
"""

import http.client
import importlib.metadata
import io
import ipaddress
import json
import os
import platform
import re
import resource
import socket
import stat
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

import keelog
from node.runtime.shortage import disk_space
from node.runtime.state_page import LOG_SLOT, LogPage, WorkerPage, run_dir
from node.store import checkpoints
from node.store.condition import read_checkpoint
from node.supervisor.child_process import UNKNOWN
from protocol.addresses import without_credentials
from protocol.errors import MqError, RefusedError
from protocol.human_text import printable
from protocol.kernel import loader
from protocol.names import LOCK_FILE

Fields = dict[str, Any]
KeyPlaces = tuple[str | None, str | None]
"""`key` and `server_key` for `keelog.connect`."""

LISTED_FILES_MAX = 20_000
LOG_LINES_MAX = 1_000
LOG_LINE_CHARS_MAX = 2_000
LOG_BYTES_MAX = 4 * 1024 * 1024
"""Of a log only its end is read."""
METRICS_BYTES_MAX = 4 * 1024 * 1024
HTTP_S_MAX = 5.0
"""From the connection to the last byte of the answer."""
_LOCALHOST = ("127.0.0.1", "::1")
_EVERYWHERE = ("0.0.0.0", "::")
_OURS = b"keelog_"
_NODE_S_MAX = 5.0
_PACKAGES = ("keelog", "pyzmq", "msgpack", "psutil", "numpy", "click", "rich", "prometheus-client")
_SECRET = re.compile(
    r"(?i)((?:passw(?:or)?d|passphrase|secret|token|credential|authorization|cookie|signature"
    r"|(?:access|api|private|session)[-_]?key)[\w-]*\\*[\"']?[ \t]*[=:][ \t]*)"
    r"(?:(\\*)([\"'])(?:(?!\3).)*\3?|(?:bearer[ \t]+|basic[ \t]+)?[^\s\"']+)"
)
NAME_BOTH = "name them: keelog diag ./store --log FILE -o FILE"
NAME_THE_STORE = "name the store: keelog diag ./store -o FILE  (or a node that runs: --node URL)"
ROCKETMQ_SYSCTL = {
    "vm.overcommit_memory": 1,
    "vm.zone_reclaim_mode": 0,
    "vm.max_map_count": 655_360,
    "vm.dirty_background_ratio": 50,
    "vm.dirty_ratio": 50,
    "vm.dirty_writeback_centisecs": 360_000,
    "vm.page-cluster": 3,
    "vm.swappiness": 1,
}
"""The values of RocketMQ's bin/os.sh. Its ratios for dirty pages suit a broker with a pool of its
own: here they only make a power loss dearer."""
_ATTRIBUTES = ("pid", "name", "status", "create_time", "num_threads", "num_fds", "nice")


class Bundle:
    """The files of a zip, by name. A file that cannot be had is a problem, named beside them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []

    def add(self, name: str, gather: Callable[[], object]) -> None:
        """Adds what `gather` returns: text as it is, all else as JSON; credentials nowhere."""
        try:
            found = gather()
        except (MqError, OSError) as error:
            self.lacks(f"{name}: {type(error).__name__}: {error}")
            return
        if isinstance(found, bytes):
            text = redacted(found.decode("utf-8", "replace"))
        else:
            text = json.dumps(_cleaned(found), indent=1, ensure_ascii=False, default=str) + "\n"
        self.files[name] = printable(text).encode("utf-8", "backslashreplace")

    def lacks(self, problem: str) -> None:
        """Notes what could not be had."""
        self.problems.append(redacted(problem))

    def write(self, path: Path) -> None:
        """Writes a new file, for its owner alone. Raises FileExistsError."""
        self.add("problems.json", lambda: self.problems)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zip_,
        ):
            for name, data in self.files.items():
                zip_.writestr(name, data)


def gather(
    node: str, store: Path | None, log_file: Path | None, keys: KeyPlaces = (None, None)
) -> Bundle:
    """Looks at the node, its store and the machine.

    `store` is for a node that does not run, or that is not seen to run here as the caller's user;
    `log_file` for one whose log goes elsewhere than into a file. Raises NotConnected when nobody
    replies and no store is named: then there is nothing to look at.
    """
    bundle = Bundle()
    pids: list[int] = []
    bundle.add("versions.json", versions)
    # The names of our variables that are set; their values stay where they are.
    names = sorted(name for name in os.environ if name.startswith("KEELOG_"))
    bundle.add("environment.json", lambda: names)
    try:
        key, server_key = keys
        with keelog.connect(node, _NODE_S_MAX, key=key, server_key=server_key) as client:
            status = dict(client.status().raw)
            health = dict(client.health().raw)
    except MqError as error:
        if store is None:
            _name_the_store(error)
            raise
        bundle.lacks(f"no status and no metrics, nobody answers at {node}: {error}")
    else:
        _add_answers(bundle, node, status, health)
        try:
            own_store, own_log, pids = node_here(node, status)
        except Unproven as error:
            # Its replies name paths, which may be anybody's: none of them is read.
            given = {"store/": store, "log.txt": log_file, "processes.json": None}
            absent = ", ".join(name for name, path in given.items() if path is None)
            bundle.lacks(f"{absent}: {error.reason}; {NAME_BOTH}")
        else:
            store, log_file = store or own_store, log_file or own_log
            if log_file is None:
                bundle.lacks("log.txt: the node's log goes into no file; name one with --log")
    bundle.add("processes.json", lambda: process_table(pids))
    bundle.add("machine.json", lambda: machine(store))
    if store is not None and store.is_dir():
        _add_store(bundle, store)
    elif store is not None:
        bundle.lacks(f"{store} is not on this machine")
    if log_file is not None:
        bundle.add("log.txt", lambda: last_lines(log_file))
    return bundle


def _name_the_store(error: MqError) -> None:
    """Gives the hint of a node that is away. A key that cannot be used has a hint of its own."""
    if not isinstance(error, RefusedError):
        error.hint = NAME_THE_STORE


def _add_answers(bundle: Bundle, node: str, status: Fields, health: Fields) -> None:
    answers: Fields = {"status": status, "health": health}
    answers |= {name: status.get(name) for name in ("settings", "origins")}
    for name in answers:
        bundle.add(f"{name}.json", partial(answers.get, name))
    if status.get("http") is None:
        bundle.lacks("metrics.txt: the node was started without --http")
    else:
        bundle.add("metrics.txt", lambda: metrics_text(node, status["http"]))


def _add_store(bundle: Bundle, store: Path) -> None:
    looks: dict[str, Callable[[Path], object]] = {
        "files": listing,
        "checkpoint": lambda store: read_checkpoint(store)._asdict(),
        "epochs": lambda store: [line._asdict() for line in checkpoints.load_epochs(store)],
        "own": own_numbers,
        "tails": tails_numbers,
        "pages": pages,
        "quarantine": quarantine_numbers,
    }
    for name, look in looks.items():
        bundle.add(f"store/{name}.json", partial(look, store))


def versions() -> Fields:
    """Of Keelog, of what it runs on, and of what it needs."""
    packages: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "packages": packages,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernel": loader.describe(),
    }


def listing(store: Path) -> Fields:
    """Each file with its length, what it takes on the disk, and when it was changed (ms)."""
    rows, count = [], 0
    for parent, folders, names in os.walk(store):
        folders.sort()
        for path in (Path(parent) / name for name in sorted(names)):
            count += 1
            if count > LISTED_FILES_MAX:
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = path.lstat()
                rows.append(
                    {
                        "file": str(path.relative_to(store)),
                        "bytes": status.st_size,
                        "disk_bytes": status.st_blocks * 512,
                        "changed_at": status.st_mtime_ns // 1_000_000,
                        "mode": oct(status.st_mode & 0o7777),
                    }
                )
    return {"count": count, "files": rows}


def own_numbers(store: Path) -> Fields:
    """The numbers in our small files."""
    return {
        "clean": checkpoints.is_clean(store),
        "floor": checkpoints.load_floor(store),
        "owner_epoch": checkpoints.load_owner(store),
        "progress": {name: one._asdict() for name, one in checkpoints.list_progress(store).items()},
    }


def tails_numbers(store: Path) -> Fields:
    """The snapshot of the queues' ends."""
    tails = checkpoints.load_tails(store)
    if tails is None:
        return {"at": None}
    return {
        "at": tails.at,
        "last_record": tails.last_record,
        "store_timestamp": tails.store_timestamp,
        "queues": len(tails.next_offset),
    }


def pages(store: Path) -> Fields:
    """The state pages of the processes."""
    found: Fields = {}
    for path in sorted(run_dir(store).glob("*.page")):
        try:
            with (
                LogPage.open(store) if path.stem == LOG_SLOT else WorkerPage.open(store, path.stem)
            ) as page:
                found[path.stem] = page.read()._asdict()
        except FileNotFoundError as error:
            found[path.stem] = str(error)
    return found


def quarantine_numbers(store: Path) -> list[Fields]:
    """The numbers of each report; its words may name what was cut."""
    rows = []
    for path in sorted(
        (checkpoints.own_dir(store) / checkpoints.QUARANTINE_DIR).glob("*/report.json")
    ):
        report: object = None
        with suppress(ValueError):
            report = json.loads(path.read_bytes())
        named = report if isinstance(report, dict) else {}
        numbers = {name: value for name, value in named.items() if isinstance(value, int)}
        rows.append({"folder": path.parent.name, **numbers})
    return rows


def last_lines(path: Path) -> bytes:
    """The end of a log. Raises OSError."""
    with path.open("rb") as raw, io.TextIOWrapper(raw, "utf-8", "replace") as file:
        status = os.fstat(raw.fileno())
        if stat.S_ISREG(status.st_mode):
            raw.seek(max(0, status.st_size - LOG_BYTES_MAX))
        kept = deque((line[:LOG_LINE_CHARS_MAX].rstrip("\n") for line in file), LOG_LINES_MAX)
    return "".join(f"{line}\n" for line in kept).encode()


def redacted(text: str) -> str:
    """Text without the values of passwords, tokens and keys, and without users of URLs."""
    return without_credentials(_SECRET.sub(r"\1\2\3***\3", text))


def _cleaned(found: object) -> object:
    """The same, in all texts of a structure; a text below a name like `password` goes whole."""
    match found:
        case str():
            return redacted(found)
        case Mapping():
            return {
                name: "***" if _SECRET.search(f"{name}=x") else _cleaned(value)
                for name, value in found.items()
            }
        case list() | tuple():
            return [_cleaned(one) for one in found]
    return found


def machine(store: Path | None) -> Fields:
    """Processors, memory, limits and settings of the kernel; the disk of the store. None for what
    the system does not show."""
    memory, swap = _known(psutil.virtual_memory), _known(psutil.swap_memory)
    booted_at = _known(psutil.boot_time)
    return {
        "processors": os.cpu_count(),
        "load": _known(os.getloadavg),
        "memory_bytes": memory and memory.total,
        "memory_available_bytes": memory and memory.available,
        "swap_used_bytes": swap and swap.used,
        "booted_at": booted_at and int(booted_at * 1000),
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE),
        "locked_memory_max": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "sysctl": sysctl_hints(),
        "disk": None if store is None or not store.exists() else disk(store),
    }


def _known(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except (psutil.Error, OSError, *UNKNOWN):
        return None


def sysctl_hints(root: Path = Path("/proc/sys")) -> list[Fields]:
    """Each setting as it is here and as RocketMQ's os.sh sets it; None for one that is unknown."""
    rows = []
    for name, wanted in ROCKETMQ_SYSCTL.items():
        try:
            here = int((root / name.replace(".", "/")).read_text())
        except (OSError, ValueError):
            here = None
        rows.append({"name": name, "here": here, "rocketmq": wanted, "same": here == wanted})
    return rows


def mount_of(path: Path) -> Any:
    """The mount that holds a path, as psutil has it: the one with the longest mount point."""
    mounts = [
        one
        for one in _known(partial(psutil.disk_partitions, all=True)) or ()
        if path.resolve().is_relative_to(one.mountpoint)
    ]
    return max(mounts, key=lambda one: len(one.mountpoint), default=None)


def disk(store: Path) -> Fields:
    """The file system that a store is on."""
    inodes, space, mount = os.statvfs(store).f_favail, disk_space(store), mount_of(store)
    return {
        "type": None if mount is None else mount.fstype,
        "options": None if mount is None else mount.opts,
        "total_bytes": space.total_bytes,
        "free_bytes": space.free_bytes,
        "free_inodes": inodes,
    }


def process_table(pids: Iterable[int]) -> list[Fields]:
    """The node's processes as the system sees them; one that ended meanwhile, or that it does not
    show, is left out."""
    rows = []
    for pid in pids:
        with suppress(psutil.Error, OSError, *UNKNOWN):
            process = psutil.Process(pid)
            row = process.as_dict(_ATTRIBUTES)
            row["rss_bytes"] = process.memory_info().rss
            row["cpu_s"] = sum(process.cpu_times()[:2])
            row["open_files_max"] = process.rlimit(psutil.RLIMIT_NOFILE)
            rows.append(row)
    return rows


class Unproven(MqError):
    """A node names a thing that is not proved to be its own."""


def node_here(asked: str, status: Mapping[str, Any]) -> tuple[Path, Path | None, list[int]]:
    """The store of the node that answered at the address `asked`, if it runs here as the caller's
    user; the file that its stderr is, if it is one; the pids of its processes. Raises Unproven.

    Of its status the supervisor's pid is taken, as a hint.
    """
    host, port = _place(asked)
    if not _is_of_this_machine(host):
        raise Unproven(f"{host} is not localhost or an IP address of this machine")
    supervisor = status.get("supervisor")
    pid = supervisor.get("pid") if isinstance(supervisor, Mapping) else None
    if not isinstance(pid, int):
        raise Unproven("the node names no process")
    try:
        process = psutil.Process(pid)
        if process.uids().real != os.geteuid():
            raise Unproven(f"process {pid} is of user {process.username()}: ask as that user")
        if not _listens(process, _LOCALHOST if host == "localhost" else (host,), port):
            raise Unproven(f"process {pid} does not listen at {host}, port {port}")
        children = process.children(recursive=True)
    except (psutil.Error, OSError, OverflowError, *UNKNOWN) as error:
        raise Unproven(f"process {pid} is not seen here: {error}") from None
    store = _held_store(pid)
    if store is None:
        raise Unproven(f"process {pid} holds no store of this machine")
    log_file, link = None, Path(f"/proc/{pid}/fd/2")
    with suppress(OSError):
        log_file = link if link.is_file() else None
    return store, log_file, [pid, *(child.pid for child in children)]


def metrics_text(asked: str, named: object) -> bytes:
    """Reads `/metrics` at the port that the node names. Raises Unproven, OSError."""
    host, port = _metrics_place(asked, named)
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_S_MAX)
    connection.connect()
    # The answer takes the socket out of the connection.
    is_late, end = threading.Event(), connection.sock

    def give_up() -> None:
        is_late.set()
        with suppress(OSError):  # closed at this moment
            end.shutdown(socket.SHUT_RDWR)

    # A timeout of the socket alone would let an answer come byte by byte, for ever.
    timer = threading.Timer(HTTP_S_MAX, give_up)
    timer.start()
    try:
        connection.request("GET", "/metrics")
        with connection.getresponse() as answer:
            status, text = answer.status, answer.read(METRICS_BYTES_MAX + 1)
    except http.client.HTTPException as error:
        raise Unproven(f"the answer is not HTTP: {type(error).__name__}") from None
    finally:
        timer.cancel()
        timer.join()  # the connection is not touched any more
        connection.close()
    if is_late.is_set():
        raise Unproven(f"the answer took more than {HTTP_S_MAX:.0f} s")
    if status != HTTPStatus.OK:
        raise Unproven(f"the answer is {status}")
    if len(text) > METRICS_BYTES_MAX:
        raise Unproven(f"the answer has more than {METRICS_BYTES_MAX} bytes")
    if not any(line.startswith(_OURS) for line in text.splitlines()):
        raise Unproven("the answer holds no metric of Keelog")
    return text


def _metrics_place(asked: str, named: object) -> tuple[str, int]:
    """The host that was asked, or this machine's loopback where both are on this machine."""
    host, _ = _place(asked)
    there, port = _place(named, "http", "the node names no http://HOST:PORT")
    if there == host or there in _EVERYWHERE:
        return host, port
    if there in (*_LOCALHOST, "localhost") and _is_of_this_machine(host):
        return there, port
    raise Unproven(f"the node was asked at {host}, and names another host")


def _place(
    url: object, scheme: str = "", wrong: str = "the node was not asked at a host and a port"
) -> tuple[str, int]:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Unproven(wrong) from None
    if not host or not port or scheme not in ("", parts.scheme):
        raise Unproven(wrong)
    return host, port


def _is_of_this_machine(host: str) -> bool:
    """A name may resolve to one address for the question and to another one for this look."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    ours: set[str] = set()
    with suppress(OSError, *UNKNOWN):
        ours = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return address.is_loopback or host in ours


def _listens(process: psutil.Process, hosts: tuple[str, ...], port: int) -> bool:
    return any(
        one.status == psutil.CONN_LISTEN
        and one.laddr.port == port
        and one.laddr.ip in (*hosts, *_EVERYWHERE)
        for one in process.net_connections("tcp")
    )


def _held_store(pid: int) -> Path | None:
    """The folder whose lock the process has open."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                file = link.readlink()
                if file.name == LOCK_FILE and os.path.samestat(link.stat(), file.lstat()):
                    return file.parent
    return None
