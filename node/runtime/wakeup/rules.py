"""What both kinds of bells keep to."""

RINGS_AT_ONCE = 64
RING_BYTES_MAX = 64 * 1024


def bell_file(slot: str) -> str:
    """The socket of a slot's bell, in `keelog/run`."""
    return f"{slot}.bell"
