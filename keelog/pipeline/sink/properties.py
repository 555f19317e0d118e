"""The properties of many messages at once, as they are stored: name 0x01 value 0x02, each."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keelog.pipeline.read.arrays import offsets_of
from protocol.record.columns import Bools
from protocol.record.encode import NOT_OFFERED
from protocol.record.properties import CRC32, EMPTY_CRC_PROPERTY, KEYS, TAGS, UNIQUE_KEY, WAIT

RESERVED = frozenset({TAGS, KEYS, UNIQUE_KEY, WAIT, CRC32, *NOT_OFFERED})
"""Properties that have a column of their own, or by which a broker would do more than store."""
_SEPARATORS = "[\x01\x02]"
Refuse = Callable[[Bools, str], None]


def encoded_properties(
    columns: Mapping[str, Any], unique_keys: pa.Array, crc: bool, refuse: Refuse
) -> pa.Array:
    """TAGS, KEYS, UNIQ_KEY, the user's own, and room for the checksum where `crc` asks for it.

    `columns` has those of tags, keys and properties that there are. `refuse(bad, why)` raises for
    the first row that is bad.
    """
    pieces: list[Any] = []
    if "tags" in columns:
        tags = columns["tags"]
        refuse(_has(tags), "tags hold 0x01 or 0x02, which separate properties")
        pieces.append(_pair(TAGS, tags.cast(pa.binary())))
    if "keys" in columns:
        keys = _joined_keys(columns["keys"], refuse)
        refuse(_has(keys), "keys hold 0x01 or 0x02, which separate properties")
        pieces.append(_pair(KEYS, keys.cast(pa.binary())))
    pieces.append(_pair(UNIQUE_KEY, unique_keys))
    if "properties" in columns:
        pieces.append(_own(columns["properties"], refuse))
    tail = EMPTY_CRC_PROPERTY if crc else b""
    return pc.binary_join_element_wise(*pieces, pa.scalar(tail, pa.binary()), b"")


def _pair(name: str, values: Any) -> Any:
    """`name 0x01 value 0x02`; nothing where the value is NULL or empty."""
    start, end = pa.scalar(f"{name}\x01".encode(), pa.binary()), pa.scalar(b"\x02", pa.binary())
    pairs = pc.binary_join_element_wise(start, values, end, b"")
    return _where(pc.greater(pc.binary_length(values), 0), pairs)


def _where(wanted: Any, values: Any) -> Any:
    return pc.if_else(pc.fill_null(wanted, False), values, pa.scalar(b"", pa.binary()))


def _has(texts: Any, pattern: str = _SEPARATORS) -> Bools:
    found = pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _joined_keys(keys: Any, refuse: Refuse) -> Any:
    """The keys of each row with one space between."""
    if not pa.types.is_list(keys.type) and not pa.types.is_large_list(keys.type):
        single = pc.replace_substring_regex(keys.cast(pa.string()), " +", " ")
        return pc.utf8_trim(single, " ")
    flat, row = pc.list_flatten(keys).cast(pa.string()), pc.list_parent_indices(keys).to_numpy()
    bad = ~np.asarray(flat.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    bad |= _has(flat, "^$| ")
    refuse(_rows(bad, row, len(keys)), "one of the keys is NULL, empty, or holds a space")
    return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")


def _own(properties: Any, refuse: Refuse) -> Any:
    """The user's own properties of each row, in the order of the map."""
    count = len(properties)
    lists = _entries(properties)
    row = pc.list_parent_indices(lists).to_numpy()
    entries = pc.list_flatten(lists)
    names, values = entries.field(0).cast(pa.string()), entries.field(1).cast(pa.string())
    refuse(_rows(_has(names, "^$"), row, count), "a property has no name")
    refuse(_rows(_has(values, "^$"), row, count), "a property has an empty value")
    bad = _has(names) | _has(values)
    refuse(_rows(bad, row, count), "properties hold 0x01 or 0x02, which separate them")
    reserved = pc.is_in(names, pa.array(sorted(RESERVED)))
    refuse(
        _rows(np.asarray(reserved.to_numpy(zero_copy_only=False), np.bool_), row, count),
        f"properties name one that is reserved ({', '.join(sorted(RESERVED))}); TAGS and KEYS have "
        "columns of their own",
    )
    pairs = pc.binary_join_element_wise(
        names.cast(pa.binary()), pa.scalar(b"\x01", pa.binary()), values.cast(pa.binary()),
        pa.scalar(b"\x02", pa.binary()), b"",
    )  # fmt: skip
    pairs = _where(values.is_valid(), pairs)
    return pc.binary_join(pa.ListArray.from_arrays(offsets_of(row, count), pairs), b"")


def _entries(properties: Any) -> Any:
    """A map as a list of pairs; NULL stays NULL."""
    pair = pa.struct([("key", properties.type.key_type), ("value", properties.type.item_type)])
    return properties.cast(pa.list_(pair))


def _rows(bad: Bools, row: Any, count: int) -> Bools:
    """Which rows have a bad item."""
    found = np.zeros(count, np.bool_)
    found[row[bad]] = True
    return found
