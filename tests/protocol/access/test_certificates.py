"""When a certificate ends, read from its DER by hand, against the cryptography package."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.certificates import valid_until_ms
from protocol.errors import BadRequest
from tests.support.certificates import Authority, Pair


def pair_that_ends(folder: Path, ends: datetime | None) -> Pair:
    return Authority(folder).pair("c", ends=ends)


@pytest.mark.parametrize("year", [2026, 2049, 2050, 2150])  # from 2050 on it is another form
def test_the_end_is_that_of_the_first_certificate(tmp_path: Path, year: int) -> None:
    ends = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    text = pair_that_ends(tmp_path, ends).cert.read_text()
    assert valid_until_ms("comment\n" + text) == int(ends.timestamp() * 1000)
    assert valid_until_ms(text + Authority(tmp_path, "x").trust.read_text()) == int(
        ends.timestamp() * 1000
    )
    found = x509.load_pem_x509_certificate(text.encode())
    assert found.not_valid_after_utc == ends


@given(text=st.text() | st.binary().map(lambda data: data.hex()))
def test_any_text_is_refused_in_our_words(text: str) -> None:
    for one in (text, f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----"):
        with pytest.raises(BadRequest):
            valid_until_ms(one)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pair_that_ends(tmp_path_factory.mktemp("pem"), None).cert.read_text()


@given(data=st.data())
def test_a_damaged_certificate_has_some_end_or_is_refused(pem: str, data: st.DataObject) -> None:
    body = pem.partition("-----BEGIN CERTIFICATE-----\n")[2].partition("-----END")[0]
    cut = data.draw(st.integers(0, len(body) - 1))
    sign = data.draw(st.characters(min_codepoint=32, max_codepoint=126))
    harmed = body[:cut] + sign + body[cut + 1 :]
    for one in (harmed, body[:cut]):
        try:
            found = valid_until_ms(f"-----BEGIN CERTIFICATE-----\n{one}\n-----END CERTIFICATE-----")
        except BadRequest:
            continue
        assert isinstance(found, int)
