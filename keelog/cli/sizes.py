"""Bytes for people."""


def size(count: int | None) -> str:
    """`3.4 MiB`; nothing for what is not known."""
    if count is None:
        return ""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
