"""Makes HTML of templates. Every value is escaped, and a name that is missing is an error."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from keelog.console.addresses import Links
from keelog.text import duration_text
from protocol import human_text

TEMPLATES = Path(__file__).parent / "templates"
_DATE_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""
NONE, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24


@lru_cache(maxsize=1)
def environment(folder: Path = TEMPLATES) -> jinja2.Environment:
    """The templates, with what they write values by."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "count": count,
        "size": size,
        "time_full": time_full,
        "time_short": time_short,
        "iso": iso,
        "duration": duration,
        "percent": percent,
        "speed": speed,
        "plain": plain,
        "line": human_text.one_line,
        "in_path": Links().topic,
        "spark": spark,
        "ms": milliseconds,
    }
    found.globals["spark_width"] = _SPARK_WIDTH
    found.globals["spark_height"] = _SPARK_HEIGHT
    for name in found.list_templates():
        found.get_template(name)  # a fault shows at the start; later the disk is not needed
    return found


def plain(value: Any) -> str:
    """Text of others, with control characters and signs that turn the direction made visible."""
    return human_text.printable(str(value))


def count(value: int | float | None) -> str:
    """A number with commas; a dash for none."""
    return NONE if value is None else f"{value:,.0f}"


def size(value: int | float | None) -> str:
    """Bytes as `3.42 MiB`; a dash for none."""
    return NONE if value is None else human_text.size_text(value)


def percent(value: float | None) -> str:
    """A share as `41 %`."""
    return NONE if value is None else f"{value * 100:.0f} %"


def speed(value: float | None) -> str:
    """A growth a second, with its sign: `+40/s`; nothing for none that is known."""
    if value is None or abs(value) < 0.05:
        return ""
    text = human_text.number_text(abs(value))
    return f"{'+' if value > 0 else MINUS}{text}/s"


def milliseconds(value: float | None) -> str:
    """A duration in ms: `1.20 ms`; a dash for none."""
    return NONE if value is None else f"{human_text.number_text(value)} ms"


def duration(seconds: float | None) -> str:
    """A duration as `3 m 20 s`; a dash for none."""
    return NONE if seconds is None else duration_text(seconds)


def iso(ms: int) -> str:
    """A time as `2026-11-29T15:27:31.204Z`; the number itself beyond the years that have one."""
    if not 0 <= ms <= _DATE_MS_MAX:
        return str(ms)
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def time_full(ms: int) -> str:
    """A time as `2026-11-29 15:27:31.204 UTC`."""
    text = iso(ms)
    return f"{text[:10]} {text[11:23]} UTC" if text.endswith("Z") else text


def time_short(ms: int, now_ms: int) -> str:
    """A time as `15:27:31.204`, with its day where that is not today."""
    text = iso(ms)
    if not text.endswith("Z"):
        return text
    return text[11:23] if text[:10] == iso(now_ms)[:10] else f"{text[5:10]} {text[11:19]}"


def spark(values: Sequence[float | None]) -> str:
    """The points of a line for SVG; empty for fewer than two."""
    known = [one for one in values if one is not None and math.isfinite(one)]
    if len(known) < 2:
        return ""
    top = max(known) or 1.0
    step = _SPARK_WIDTH / (len(known) - 1)
    room = _SPARK_HEIGHT - 2
    places = (
        f"{number * step:.1f},{1 + room - room * max(0.0, one) / top:.1f}"
        for number, one in enumerate(known)
    )
    return " ".join(places)
