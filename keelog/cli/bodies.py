"""How commands print the bodies of messages: plain, as stored with --raw-body, or not at all."""

import click

from keelog.cli.failures import DAMAGED, OK
from keelog.cli.options import options
from keelog.cli.output import say
from keelog.cli.shapes import Shape, message_shape
from protocol.errors import BodyUnreadable
from protocol.record.codec import Record

_SHOWN_MAX = 20
"""Bodies that cannot be unpacked and get a line each; the others are counted."""

body_options = options(
    click.option(
        "--raw-body", is_flag=True, help="Every body as stored, compressed or not, as body_b64."
    ),
    click.option("--no-body", is_flag=True, help="Leaves bodies out."),
)


class Bodies:
    """Prints bodies for one run of a command.

    One that cannot be unpacked is printed as stored, with the `sys_flag` that says so, and named on
    stderr; with `fails` it raises BodyUnreadable. CodecMissing is raised in any case.
    """

    def __init__(self, is_raw: bool = False, is_left_out: bool = False, fails: bool = False):
        self._is_raw = is_raw
        self._is_left_out = is_left_out
        self._fails = fails
        self.unreadable = 0

    def shape(self, record: Record, with_record: bool = False) -> Shape:
        """The message as JSON; `with_record` adds the bytes of its record."""
        try:
            return message_shape(record, self._is_raw, self._is_left_out, with_record)
        except BodyUnreadable as error:
            self._note(error)
            return message_shape(record, True, self._is_left_out, with_record)

    def body(self, record: Record) -> bytes:
        """The body alone."""
        if self._is_raw:
            return record.raw_body
        try:
            return record.body
        except BodyUnreadable as error:
            self._note(error)
            return record.raw_body

    def _note(self, error: BodyUnreadable) -> None:
        if self._fails:
            raise error
        self.unreadable += 1
        if self.unreadable <= _SHOWN_MAX:
            say(f"damage: {error.reason}; printed as stored")

    def end(self) -> int:
        """The exit code: 5 when there was a body that could not be unpacked."""
        if self.unreadable > _SHOWN_MAX:
            say(f"{self.unreadable} bodies were printed as stored")
        return DAMAGED if self.unreadable else OK
