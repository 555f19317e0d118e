"""A load as one HTML page that needs nothing else: pictures, figures, and what it ran on."""

import importlib.util
from typing import Any

from keelog.bench.report.text_report import NAMES, last_lines, process_rows, summary_rows
from keelog.bench.results import Result
from keelog.pipeline.report_page import page as frame
from keelog.pipeline.report_page import section, table
from keelog.text import ms_text
from protocol.errors import RefusedError
from protocol.human_text import count_text, number_text, size_text

TITLES = {
    "send": "Messages sent to a node",
    "consume": "Stored messages read",
    "e2e": "From the send to a waiting consumer",
    "mixed": "Producers, consumers, look-ups and kills at once",
    "store": "The store alone, without sockets",
}


class PicturesMissing(RefusedError):
    """The extra that draws is not installed."""


def check_pictures() -> None:
    """Raises PicturesMissing where matplotlib is not installed: before a load, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PicturesMissing(
            "--html needs matplotlib, which is not installed", "pip install 'matplotlib>=3.9'"
        )


def page(result: Result) -> str:
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
    from keelog.bench.report import pictures

    main = NAMES.get(result.main, result.main)
    sections = [
        section(
            "Throughput",
            "Acknowledged or received in each second. Grey is the warm-up, a line is a kill.",
            pictures.throughput(result),
        )
    ]  # fmt: skip
    if any(one.summary.p50_ms is not None for one in result.streams.values()):
        how = "At full speed from the call to its answer."
        if result.workload["rate"]:
            how = "From the moment that the plan says, so that a late send counts as waiting."
        sections.append(section("Latency of each second", how, pictures.latency(result)))
        sections.append(
            section("Latency by percentile", "Without the warm-up.", pictures.percentiles(result))
        )
    if result.looks:
        sections += [
            section(
                "Lag", "What queue and index workers had not dispatched yet.", pictures.lag(result)
            ),
            section("CPU", "Cores in use by each process.", pictures.cpu(result)),
        ]
    if sum(bool(one.anon) for one in result.looks) > 1:
        sections.append(section("Memory", "", pictures.memory(result)))
    ending = " · ".join(last_lines(result))
    sections.append(section(f"Figures: {main}", ending, table(summary_rows(result))))
    if result.processes:
        how = "CPU until all was dispatched; memory is the most that was seen."
        sections.append(section("Processes", how, table(process_rows(result))))
    return [*sections, section("What it ran on", "", table(_facts(result)))]


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
