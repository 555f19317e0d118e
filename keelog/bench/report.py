"""The result of a load for people: lines while it runs, tables when it is over, an HTML page.

There is a line each second. The page needs nothing else: it has pictures, figures, and what the
load ran on.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keelog.bench.results import Result, Second, Summary
from keelog.bench.running import LoadListener
from keelog.pipeline.report import page as frame
from keelog.pipeline.report import section, table
from keelog.text import ms_text, status_line
from protocol.errors import RefusedError
from protocol.human_text import count_text, number_text, size_text

NAMES = {
    "send": "sent",
    "consume": "consumed",
    "end_to_end": "send to consumer",
    "from_send": "the same from the real send",
    "lateness": "generator late by",
    "find": "looked up",
    "store": "stored",
}
"""Names of streams for people."""
UNSHOWN = ("from_send", "lateness")
"""Streams that are not in each second's line."""
TITLES = {
    "send": "Messages sent to a node",
    "consume": "Stored messages read",
    "e2e": "From the send to a waiting consumer",
    "mixed": "Producers, consumers, look-ups and kills at once",
    "store": "The store alone, without sockets",
}


def second_line(at: float, streams: dict[str, Second], lag: dict[str, int]) -> str:
    parts = [f"{at:4.0f} s"]
    for name, one in streams.items():
        if name in UNSHOWN:
            continue
        text = f"{NAMES.get(name, name)} {count_text(one.messages_per_s)}/s"
        text += f" {number_text(one.mb_per_s)} MB/s"
        if one.p50_ms is not None:
            text += f", p50 {ms_text(one.p50_ms)}, p99 {ms_text(one.p99_ms)}"
        parts.append(text + (f", {one.failures} FAILED" if one.failures else ""))
    if lag:
        parts.append(f"workers {size_text(max(lag.values()))} behind")
    return " | ".join(parts)


@contextmanager
def listening() -> Iterator[LoadListener]:
    """Shows what goes on, and a line each second, on stderr."""
    with status_line() as (show, print_line):
        if sys.stderr.isatty():
            show("starting a node")
        yield LoadListener(show, lambda *figures: print_line(second_line(*figures)))


def summary_rows(result: Result) -> list[dict[str, Any]]:
    """The figures, a column for each stream; of the steady part, and last of the whole run."""
    columns = {
        NAMES.get(name, name): one.steady
        for name, one in result.streams.items()
        if name != "lateness" and (one.steady.messages or one.steady.p50_ms is not None)
    }
    if result.summary != result.steady:
        columns["with warm-up"] = result.summary
    return [
        {"steady": what, **dict(zip(columns, values, strict=True))}
        for what, values in _rows(list(columns.values()))
    ]


def _rows(columns: list[Summary]) -> Iterator[tuple[str, list[str]]]:
    yield "seconds", [f"{one.seconds:.1f}" for one in columns]
    yield "messages", [f"{one.messages:,}" if one.messages else "-" for one in columns]
    yield "messages/s", [f"{one.messages_per_s:,.0f}" if one.messages else "-" for one in columns]
    yield "MB/s", [f"{one.mb_per_s:.2f}" if one.messages else "-" for one in columns]
    for name in ("avg_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"):
        yield name.removesuffix("_ms"), [ms_text(getattr(one, name)) for one in columns]
    yield (
        "failures",
        [", ".join(f"{n} {kind}" for kind, n in one.failures.items()) or "0" for one in columns],
    )


def process_rows(result: Result) -> list[dict[str, Any]]:
    """The cost of each process, the sum last."""
    rows = [
        {
            "process": one.name,
            "CPU": f"{one.cpu_s:.2f} s",
            "CPU/million": _seconds(one.cpu_s_per_million),
            "PSS": _size(one.pss_bytes),
            "USS": _size(one.uss_bytes),
            "without files": _size(one.anon_bytes),
        }
        for one in result.processes
    ]
    total = {"process": "all", "CPU": f"{sum(one.cpu_s for one in result.processes):.2f} s"}
    total["CPU/million"] = _seconds(result.cpu_s_per_million)
    return [*rows, total] if rows else []


def _check_lines(checks: dict[str, Any]) -> Iterator[str]:
    for name, words in (
        ("seconds_with_kills", "sends in seconds with kills"),
        ("seconds_without", "sends in all other seconds"),
    ):
        if name in checks:
            found = checks[name]
            yield f"{words}: p50 {ms_text(found['p50_ms'])}, p99 {ms_text(found['p99_ms'])}"
    kills = checks.get("kills")
    if kills:
        longest = max(one["back_s"] for one in kills)
        yield f"{len(kills)} processes killed; the longest was away for {longest:.1f} s"
    for name, sizes in checks.get("memory", {}).items():
        first, last = size_text(sizes["first"]), size_text(sizes["last"])
        yield f"memory of {name}: {first}, at the end {last}"
    if "acknowledged" in checks:
        yield f"{checks['acknowledged']:,} messages acknowledged, {checks['pulled']:,} pulled again"
    if "verify_deep" in checks:
        found = checks["verify_deep"]
        yield f"store verify --deep: {found['exit']} in {found['seconds']:.1f} s"


def _size(value: float | None) -> str:
    return "-" if value is None else size_text(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def last_lines(result: Result) -> list[str]:
    """The lines below the tables."""
    lines = []
    if result.generator_cpu_s_per_million is not None and result.cpu_s_per_million:
        share = result.generator_cpu_s_per_million / result.cpu_s_per_million
        lines.append(f"the generator's own part of the CPU: {share:.1%}")
    if result.dispatched_after_s is not None:
        lag = max(result.lag_at_end_bytes.values(), default=0)
        lines.append(
            f"workers at the end: {size_text(lag)} behind;"
            f" everything dispatched {result.dispatched_after_s:.2f} s later"
        )
    late = result.streams.get("lateness")
    if late is not None:
        steady = late.steady
        lines.append(
            f"the generator was late by p50 {ms_text(steady.p50_ms)}, p99 {ms_text(steady.p99_ms)},"
            " which is part of what is shown"
        )
    lines += _check_lines(result.checks)
    lines += [f"LOST: {fault}" for fault in result.faults]
    return lines + [f"limit broken: {text}" for text in result.limits_broken]


class PicturesMissing(RefusedError):
    """The extra that draws is not installed."""


def check_pictures() -> None:
    """Raises PicturesMissing where matplotlib is not installed: before a load, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PicturesMissing(
            "--html needs matplotlib, which is not installed", "pip install 'matplotlib>=3.9'"
        )


def html_page(result: Result) -> str:
    """The page. Raises PicturesMissing."""
    check_pictures()
    machine = result.machine
    return frame(
        TITLES[result.kind],
        f"{machine['command']}  ({machine['at']})",
        _cards(result),
        _sections(result),
    )


def _cards(result: Result) -> dict[str, str]:
    steady = result.steady
    cards = {
        "messages a second": count_text(steady.messages_per_s),
        "MB a second": number_text(steady.mb_per_s),
    }
    if steady.p50_ms is not None:
        cards |= {"p50": ms_text(steady.p50_ms), "p99": ms_text(steady.p99_ms)}
        cards["p99.9"] = ms_text(steady.p999_ms)
    if result.cpu_s_per_million is not None:
        cards["CPU s per million"] = f"{result.cpu_s_per_million:,.1f}"
    cards["failures"] = str(sum(steady.failures.values()) + len(result.faults))
    return cards


def _sections(result: Result) -> list[str]:
    # Imported here: it imports matplotlib.
    from keelog.bench import pictures as draw

    text = "Acknowledged or received in each second. Grey is the warm-up, a line is a kill."
    found = [("Throughput", text, draw.throughput(result))]
    if any(one.summary.p50_ms is not None for one in result.streams.values()):
        text = "At full speed from the call to its answer."
        if result.workload["rate"]:
            text = "From the moment that the plan says, so that a late send counts as waiting."
        found.append(("Latency of each second", text, draw.latency(result)))
        found.append(("Latency by percentile", "Without the warm-up.", draw.percentiles(result)))
    if result.looks:
        text = "What queue and index workers had not dispatched yet."
        found.append(("Lag", text, draw.lag(result)))
        found.append(("CPU", "Cores in use by each process.", draw.cpu(result)))
    if sum(bool(one.anon) for one in result.looks) > 1:
        found.append(("Memory", "", draw.memory(result)))
    figures = f"Figures: {NAMES.get(result.main, result.main)}"
    found.append((figures, " · ".join(last_lines(result)), table(summary_rows(result))))
    if result.processes:
        text = "CPU until all was dispatched; memory is the most that was seen."
        found.append(("Processes", text, table(process_rows(result))))
    found.append(("What it ran on", "", table(_facts(result))))
    return [section(*one) for one in found]


def _facts(result: Result) -> list[dict[str, str]]:
    machine, load = result.machine, result.workload
    memory = size_text(machine["memory_bytes"])
    words: dict[str, Any] = {
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {memory}",
        "system": f"{machine['system']}, Python {machine['python']}",
        "Keelog": f"{machine['version']}, revision {machine['revision'] or 'unknown'}",
        "compiled kernel": machine["kernel"],
        "file system": machine["file_system"] or "of a node that was given",
        "flush mode": machine["flush_mode"],
        "settings": " ".join(machine["settings"]) or "defaults",
        "load": ", ".join(f"{name} {value}" for name, value in load.items() if value),
    }
    return [{"what": name, "": str(value)} for name, value in words.items()]
