"""Bodies of messages: their sizes as asked for, made before the load begins."""

import itertools
import random
from typing import NamedTuple

from protocol.errors import BadRequest
from protocol.human_text import bytes_of

KINDS = "128, 1KiB, uniform:100-2000 or lognormal:512 (the median)"
POOL_BODIES = 4096
"""Different bodies of one load process; it sends them in turn."""
POOL_BYTES = 64 << 20
_LOGNORMAL_SIGMA = 1.0
_LOGNORMAL_TIMES_MAX = 64
"""The longest body, in medians."""


class Sizes(NamedTuple):
    """How long bodies are: `kind` is fixed, uniform or lognormal; bytes."""

    kind: str
    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Sizes":
        """From `128`, `1KiB`, `uniform:100-2000`, `lognormal:512`. Raises BadRequest."""
        kind, colon, rest = text.partition(":")
        if not colon:
            size = bytes_of(text)
            return cls("fixed", size, size)
        if kind == "uniform" and rest.count("-") == 1:
            low, high = (bytes_of(part) for part in rest.split("-"))
            if low <= high:
                return cls("uniform", low, high)
        if kind == "lognormal":
            median = bytes_of(rest)
            return cls("lognormal", median, median * _LOGNORMAL_TIMES_MAX)
        raise BadRequest(f"{text!r} is no body size", f"write it as {KINDS}")

    def draw(self, dice: random.Random) -> int:
        """The size of one body."""
        if self.kind == "uniform":
            return dice.randint(self.low, self.high)
        if self.kind == "lognormal":
            return min(self.high, round(self.low * dice.lognormvariate(0, _LOGNORMAL_SIGMA)))
        return self.low


def make_bodies(sizes: Sizes, seed: int) -> list[bytes]:
    """Bodies of random bytes that nothing compresses, no more than fit into POOL_BYTES."""
    dice = random.Random(seed)
    noise = dice.randbytes(2 * max(sizes.high, 1))
    bodies: list[bytes] = []
    total = 0
    while len(bodies) < POOL_BODIES and total <= POOL_BYTES:
        size, start = sizes.draw(dice), dice.randrange(max(sizes.high, 1))
        bodies.append(noise[start : start + size])
        total += size
    return bodies


def batches(bodies: list[bytes], count: int) -> list[list[bytes]]:
    """The bodies in batches of `count`, each body about once."""
    turn = itertools.cycle(bodies)
    return [[next(turn) for _ in range(count)] for _ in range(max(1, len(bodies) // count))]
