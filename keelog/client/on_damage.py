"""The choice of a program that reads: what damage on its way does."""

from collections.abc import Callable
from typing import Literal

from protocol.errors import BadRequest, MessageDamaged, StoreDamaged

OnDamage = Literal["fail", "skip"] | Callable[[MessageDamaged], object]
OnFoundDamage = Literal["fail", "skip"] | Callable[[StoreDamaged], object]
"""Of reads that follow no queue."""


def check_on_damage(wanted: object) -> None:
    """Raises BadRequest for anything else."""
    if wanted not in ("fail", "skip") and not callable(wanted):
        raise BadRequest(f"on_damage is {wanted!r}", "use 'fail', 'skip' or a function")
