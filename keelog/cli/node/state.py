"""`keelog health`, `keelog status` and `keelog diag`: what a node says of itself.

`diag` writes one file with what helps to find out what is wrong.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import keelog
from keelog.cli.contexts import connect, keys_of
from keelog.cli.failures import OK, UNREACHABLE, doing, report
from keelog.cli.options import command, node_option, node_options, output_options
from keelog.cli.output import Output
from keelog.text import counted, disk_text, duration_text, size_text, time_text
from protocol.errors import MqError, NotConnected

_ASK_S = 2.0
_PAUSE_S = 0.1
_REACHABLE = "reachable"
_WIDTH_FOR_ENDPOINTS = 110
_ENDED_SHOWN = 3
_PLACES_SHOWN = 5
_GROUPS_SHOWN = 5


@command("health")
@node_option
@click.option(
    "--wait", default=0.0, metavar="SECONDS", help="Waits so long at most for a ready node."
)
@output_options
def health(node: str, wait: float, output: Output) -> int:
    """Ends with 0 when the node is ready, with 4 otherwise.

    Example: keelog health --wait 30

    Example: keelog health --json
    """
    deadline = time.monotonic() + wait
    while True:
        answer = _ask_health(node)
        if answer["ready"] or time.monotonic() + _PAUSE_S > deadline:
            break
        time.sleep(_PAUSE_S)
    output.document(answer, table=answer["checks"])
    if answer["ready"]:
        return OK
    failing = [
        f"{check['name']}: {check['detail']}" for check in answer["checks"] if not check["ok"]
    ]
    # Without a hint of ours that of NotConnected says how to start a node.
    hint = "" if any(check["name"] == _REACHABLE for check in answer["checks"]) else "keelog status"
    error = NotConnected("; ".join(failing) or "it is starting or stopping", hint)
    error.add_note(f"the node at {node} is not ready")
    report(error)
    return UNREACHABLE


def _ask_health(node: str) -> dict[str, Any]:
    """The node's answer; one of the same form when there is none."""
    try:
        with connect(node, timeout=_ASK_S) as client:
            return dict(client.health().raw)
    except MqError as error:
        if not error.retriable:
            raise
        check = {"name": _REACHABLE, "ok": False, "detail": error.reason}
        return {"ready": False, "checks": [check]}


@command("status")
@node_options
def status(node: str, output: Output) -> None:
    """Shows the processes with their offsets and lag, the log and the disk.

    The writer's offset is the end of the log, its lag what is not flushed yet; the others'
    offset is how far they have followed.

    Example: keelog status

    Example: keelog status --json
    """
    with doing(f"cannot ask the node at {node} for its status"), connect(node) as client:
        show_status(client, output)


def show_status(client: keelog.Client, output: Output) -> None:
    """Asks for the status and writes it."""
    answer = dict(client.status().raw)
    # For two looks, which `keelog top` takes.
    answer["operations"] = [
        {name: value for name, value in row.items() if name != "buckets"}
        for row in answer.get("operations", ())
    ]
    title = "".join(f"{line}\n" for line in _lines(answer))
    output.document(answer, table=_table(answer["processes"], output.wide), title=title)


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    """The status in lines above the table; an older node may not have all parts."""
    log, mode, kernel = answer["log"], answer["mode"], answer["kernel"]
    parts = {name: found for name, found in answer.items() if found}
    yield f"{answer['store']}: {'ready' if answer['ready'] else 'not ready'}, epoch {log['epoch']}"
    if mode not in ("normal", "replica"):
        yield f"{mode}: appends are refused, reads go on. {answer['cause']}"
    for name, lines in (("elected", _elected_lines), ("following", following_lines)):
        yield from lines(parts[name]) if name in parts else ()
    if ": " in kernel:
        yield f"kernel: {kernel}"
    yield (
        f"log: min {log['min']}, appended {log['appended']}, committed {log['committed']}, "
        f"flushed {log['flushed']}, readable {log['readable']}"
    )
    yield f"disk: {disk_text(answer['disk'])}"
    for name, lines in (("retention", _retention_lines), ("groups", _group_lines)):
        yield from lines(parts[name]) if name in parts else ()
    if pending := parts.get("timers", {}).get("pending"):
        yield f"timers: {counted(pending, 'message')} to be delivered"
    yield from _follower_lines(parts["followers"]) if "followers" in parts else ()
    if opened := parts.get("transactions", {}).get("open"):
        yield f"transactions: {opened} are open for long"
    yield from _damage_lines(answer["store"], parts["damage"]) if "damage" in parts else ()


def _elected_lines(found: dict[str, Any]) -> Iterator[str]:
    ids = ", ".join(map(str, found["in_sync"])) or "nobody"
    yield (
        f"elected: node {found['broker_id']} {found['role']}, epoch {found['epoch']}, master"
        f" {found['master_id']} at {found['master'] or 'no place'}, in sync {ids}"
    )
    yield (
        f"controllers: {found['controllers']} of {found['controllers_all']} hear the node,"
        f" {found['leader'] or 'none'} leads them"
    )
    if found["why"]:
        yield f"elected: {found['why']}"


def following_lines(found: dict[str, Any]) -> Iterator[str]:
    lag = f"lag {size_text(found['lag_bytes'])} and {found['lag_ms'] / 1000:.1f} s"
    follows = found["state"] == "following"
    if not follows:
        heard = (
            f"heard last {time_text(found['contact_ms'])}" if found["contact_ms"] else "never heard"
        )
        lag = f"lag unknown, its master was {heard}"
    master = found["master"] or found["source"]
    yield f"replica of {master}: {found['state']}, {lag}, end {found['end']}"
    if found["reason"]:
        kind = f"{found['kind']}: " if found["kind"] else ""
        yield f"replica: {kind}{found['reason']}. Try: {found['hint']}"
    if found["disconnected"]:
        when = time_text(found["disconnected_ms"])
        since = f"lost its master last at {when}" if follows else f"without its master since {when}"
        yield f"replica: {since}: {found['disconnected']}"
    for part, why in found["metadata"].items():
        if why:
            yield f"replica: {part} of the master not taken over: {why}"


def _retention_lines(found: dict[str, Any]) -> Iterator[str]:
    if found["oldest_ms"] is not None:
        age = duration_text(time.time() - found["oldest_ms"] / 1000)
        yield f"oldest message: {time_text(found['oldest_ms'])}, {age} ago"
    first = found["next"]
    if first is not None:
        causes = [f"by age at {time_text(first['at_ms'])}"]
        if first["growth_bytes"] is not None:
            causes.append(f"when the log has grown by {size_text(first['growth_bytes'])}")
        if first["disk_bytes"] is not None:
            causes.append(f"with {size_text(first['disk_bytes'])} more on the disk")
        span = f"{first['start']} to {first['end']}"
        yield f"next to go: the log from {span}, {', or '.join(causes)}, at the earliest"


def _group_lines(found: dict[str, Any]) -> Iterator[str]:
    """The consumer groups with the largest lag."""
    if not found["groups"]:
        return
    sums = f"{found['members']} members, a lag of {found['lag']} messages"
    yield f"groups: {found['groups']} with {sums}"
    late = [row for row in found["rows"] if row["lag"]]
    for row in late[:_GROUPS_SHOWN]:
        yield (
            f"group {row['group']}: lag {row['lag']} in {row['queues']} queues of {row['topic']},"
            f" {row['members']} members"
        )
    if len(late) > _GROUPS_SHOWN:
        yield "groups: all of them with keelog group ls"


def _follower_lines(found: dict[str, Any]) -> Iterator[str]:
    for row in found["followers"]:
        yield (
            f"follower {row['address']}: {'in sync' if row['in_sync'] else 'not in sync'},"
            f" lag {row['lag_bytes']} bytes and {row['lag_s']:.1f} s, acknowledged"
            f" {row['acknowledged']}"
        )
    for end in found["ended"][:_ENDED_SHOWN]:
        yield f"follower {end['address']} is gone since {time_text(end['at_ms'])}: {end['reason']}"


def _damage_lines(store: str, damage: dict[str, Any]) -> Iterator[str]:
    """The damaged places that were met last, a line for each."""
    places, others = damage["places"], damage["others"]
    for place in places[:_PLACES_SHOWN]:
        yield (
            f"damage: {place['file']}, offset {place['offset']}: {place['found']}; met"
            f" {counted(place['count'], 'time')} by {place['process']},"
            f" first {time_text(place['first_ms'])}, last {time_text(place['last_ms'])}"
        )
    if len(places) > _PLACES_SHOWN or others:
        more = max(0, len(places) - _PLACES_SHOWN)
        yield f"damage: {more} more places with --json, {others} meetings of others"
    if places or others:
        yield f"damage: on the node's machine: keelog store verify {store} --deep"


def _table(processes: Iterable[dict[str, Any]], wide: bool) -> list[dict[str, Any]]:
    """A row for each process; endpoints only where they fit into a line, or when asked for."""
    width = shutil.get_terminal_size(fallback=(_WIDTH_FOR_ENDPOINTS, 0)).columns
    return [
        {
            "process": f"{row['role']} {row['index']}",
            "pid": row["pid"],
            "state": row["state"],
            "offset": row["offset"],
            "lag": row["lag_bytes"],
            "restarts": row["restarts"],
            "uptime": duration_text(row["uptime_s"]),
            "memory": size_text(row["rss_bytes"]),
            "cpu": "" if row["cpu_s"] is None else f"{row['cpu_s']:.1f} s",
            **({"endpoint": row["endpoint"]} if wide or width >= _WIDTH_FOR_ENDPOINTS else {}),
        }
        for row in processes
    ]


@command("diag")
@click.argument("store", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The zip file to make; one that is there already is left alone.",
)
@click.option(
    "--log",
    "log_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the node wrote to stderr: its last 1000 lines go in, credentials blacked out. Not"
    " needed where stderr is a file: the node knows it.",
)
@node_options
def diag(store: Path | None, out: Path, log_file: Path | None, node: str, output: Output) -> None:
    """Gathers versions, settings, status, metrics, the files' names and sizes, and the machine.

    No message goes in, nor its key, tag or properties, and no credential; topics go in. Name the
    store's DIR when the node does not run. What could not be had is named.

    Example: keelog diag -o keelog-diag.zip

    Example: keelog diag ./store -o keelog-stopped.zip
    """
    from keelog.diag import gather

    with doing(f"cannot write {out}"):
        bundle = gather(node, store, log_file, keys_of(node))
        bundle.write(out)
    document = {
        "path": str(out),
        "bytes": out.stat().st_size,
        "files": list(bundle.files),
        "problems": bundle.problems,
    }
    rows = [{"file": name, "bytes": len(data)} for name, data in bundle.files.items()]
    problems = "".join(f"\nmissing: {problem}" for problem in bundle.problems)
    output.document(document, table=rows, title=f"{out}{problems}\n")
