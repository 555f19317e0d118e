"""docs/format.md says what the code says."""

import re

from protocol.record.codec import Record, decode
from protocol.record.properties import CRC_PROPERTY_BYTES
from scripts.docs.format import PARTS, example_record, index_image
from scripts.docs.pages import ROOT, parts_of
from tests.protocol.record.test_codec import EXAMPLE


def test_the_page_shows_every_generated_part_once() -> None:
    text = (ROOT / "docs/format.md").read_text(encoding="utf-8")
    assert sorted(parts_of(text)) == sorted(PARTS)
    assert text.count("<!-- generated:") == text.count("<!-- end -->") == len(PARTS)


def test_the_record_on_the_page_is_rocketmqs_example_byte_for_byte() -> None:
    assert example_record() == EXAMPLE
    sealed = decode(example_record(crc=True), 0)
    assert isinstance(sealed, Record)
    assert sealed.size == len(EXAMPLE) + CRC_PROPERTY_BYTES


def test_the_dump_of_the_record_covers_all_its_bytes() -> None:
    lines = re.findall(r"^ *(\d+)  ([0-9a-f]+) ", PARTS["record-dump"](), re.MULTILINE)
    position = 0
    for at, data in lines:
        assert int(at) == position
        assert EXAMPLE[position:].startswith(bytes.fromhex(data))
        position += len(data) // 2
    # The last property is shown in part.
    assert EXAMPLE[position - 10 :].startswith(b"UNIQ_KEY\1")


def test_tables_have_as_many_cells_in_every_row() -> None:
    for name, part in PARTS.items():
        rows = [line for line in part().splitlines() if line.startswith("|")]
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert len(cells) <= 1, name


def test_the_index_file_on_the_page_is_found_as_the_page_says() -> None:
    image = index_image()
    entries = image.geometry.entry_position
    newest = int.from_bytes(image.data[40:44].tobytes(), "big")
    assert newest == 3
    prev = image.data[entries(3) + 16 : entries(3) + 20].tobytes()
    assert int.from_bytes(prev, "big") == 1
