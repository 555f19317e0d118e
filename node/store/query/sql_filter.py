"""Selects the messages of a subscription in SQL92, by their properties as they are stored."""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from node.store.query.sql_values import UndecidedError
from node.store.query.tag_filter import stored_properties
from node.store.queues.files import Units
from protocol.layout import Readable
from protocol.record.codec import Record, decode
from protocol.record.properties import CRC_PROPERTY_BYTES, crc_property, decode_properties

if TYPE_CHECKING:
    from node.store.query.sql_tree import Node, Properties


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An expression; it decides as a TagFilter does, but units tell it nothing."""

    tree: "Node"

    def takes_units(self, units: Units) -> NDArray[np.bool_]:
        """Marks all units."""
        return np.ones(len(units), np.bool_)

    def takes_record(self, raw: Readable) -> bool:
        """True if the properties fit, and for what is not a record: its reader reports that."""
        data = bytes(raw)
        properties = stored_properties(data)
        if properties is None or self.takes(decode_properties(properties)):
            return True
        # Damage must not be passed over in silence.
        return not _is_sealed(data) and not isinstance(decode(data, 0), Record)

    def takes(self, properties: "Properties") -> bool:
        """True if the expression is TRUE: not if it is FALSE or NULL, or cannot be decided."""
        try:
            return self.tree.value(properties) is True
        except UndecidedError:
            return False


def _is_sealed(data: bytes) -> bool:
    """Whether the record's last property is the checksum of the rest."""
    seal = data[-CRC_PROPERTY_BYTES:]
    return seal == crc_property(zlib.crc32(memoryview(data)[:-CRC_PROPERTY_BYTES]))


def sql_filter(expression: str) -> SqlFilter:
    """The filter of an expression. Raises BadRequest."""
    # Only here: each process that reads would load the language, and few ever meet it.
    from node.store.query.sql_parser import parse_sql

    return SqlFilter(parse_sql(expression))
