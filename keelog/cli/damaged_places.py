"""The damage that a command meets on its way: a line on stderr for each place, and exit code 5."""

import click

from keelog.cli.failures import DAMAGED, OK
from keelog.cli.output import say
from protocol.errors import BodyUnreadable, CorruptError, MessageDamaged, StoreDamaged

_SHOWN_MAX = 20
"""Damaged places that get a line each; the others are counted."""

on_damage_option = click.option(
    "--on-damage", type=click.Choice(["skip", "fail"]), default="skip", show_default=True,
    help="skip: goes on after a damaged message; fail: ends there.",
)  # fmt: skip


class DamagedPlaces:
    """The damaged places that a run meets; each gets a line on stderr."""

    def __init__(self, fails: bool = True) -> None:
        self.fails = fails
        self.places: set[tuple[str, int]] = set()
        self._hint = ""

    def meet(self, error: CorruptError, queue: str) -> int | None:
        """Returns where the queue goes on; None where nobody can say. Raises with `fails`."""
        after = error.next_offset if isinstance(error, MessageDamaged) else None
        then = f"the rest of {queue} cannot be read" if after is None else "passed over"
        self._note(error, then)
        return after

    def pass_over(self, error: StoreDamaged) -> None:
        """One record, after which the run goes on. Raises with `fails`."""
        self._note(error, "passed over")

    def leave_out(self, error: BodyUnreadable) -> None:
        """A body alone, which is left out of its message. Raises with `fails`."""
        self._note(error, "its body is left out")

    def _note(self, error: CorruptError, then: str) -> None:
        if self.fails:
            raise error
        if (error.where, error.offset) not in self.places:
            self.places.add((error.where, error.offset))
            self._hint = self._hint or error.hint.partition("; go on after it")[0]
            if len(self.places) <= _SHOWN_MAX:
                say(f"damage: {error.reason}; {then}")

    def end(self) -> int:
        """Says how many places there were, and the node's command that shows all damage; returns
        the exit code."""
        if not self.places:
            return OK
        say(f"{len(self.places)} damaged; {self._hint}")
        return DAMAGED
