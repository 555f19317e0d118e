"""Format strings of `consume -f`."""

import click
import pytest

from keelog.cli.messages.consume import compile_format
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_message


def render(text: str, body: bytes = b"hi") -> bytes:
    message = NewMessage(
        "orders", body, queue_id=3, tags="paid", keys=("a", "b"), properties={"x": "ü"}
    )
    record = decode(encode_message(message, crc=False), 0, sealed=False)
    assert isinstance(record, Record)
    return compile_format(text)(record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t %q %o %k %v\n", b"orders 3 0 a b hi\n"),
        ("%s|%V|%g|%x|%d", b"hi|2|paid|0|0"),
        ("%h", "TAGS=paid,KEYS=a b,x=ü".encode()),
        ("%v{hex} %v{base64} %v{json}", b'6869 aGk= "hi"'),
        ("%k{json}%q{json}", b'["a", "b"]3'),
        ("%h{json}", '{"TAGS": "paid", "KEYS": "a b", "x": "ü"}'.encode()),
        (r"100%% \t\\\x00\0", b"100% \t\\\0\0"),
        ("", b""),
    ],
)
def test_each_letter_and_modifier_has_its_meaning(text: str, expected: bytes) -> None:
    assert render(text) == expected


def test_a_body_goes_out_to_the_byte() -> None:
    assert render("%v", b"\0\xff") == b"\0\xff"
    assert render("%v{json}", b"\xff") == b'{"b64": "/w=="}'


@pytest.mark.parametrize("text", ["%z", "%", "%v{rot13}", "\\", "\\q"])
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        compile_format(text)
