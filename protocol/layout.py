"""A structure of bytes, declared once: struct, numpy dtype and table derive from a NamedTuple.

A field is `Annotated[int, Wire(">i8", "what it means")]`. The format is a numpy one, always
big-endian. `Wire("ip", …)` is an IP address of 4 or 16 bytes, whose width the layout gets.
"""

import struct
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

Row = TypeVar("Row", bound=tuple[Any, ...])
Readable = bytes | bytearray | memoryview

_STRUCT_CODES = {">i8": "q", ">i4": "i", ">i2": "h", ">i1": "b", ">u4": "I"}


class Wire(NamedTuple):
    """How one field lies on disk or on the wire."""

    format: str
    meaning: str


class StructLayout(Generic[Row]):
    """The codec of one structure.

    `struct` for single rows, `dtype` for many, `size` in bytes, `offsets` of each field.
    """

    def __init__(self, row: type[Row], ip_bytes: Mapping[str, int] | None = None) -> None:
        self.row = row
        self.wires: dict[str, Wire] = {}
        codes: list[str] = []
        fields: list[tuple[str, str]] = []
        for name, hint in get_type_hints(row, include_extras=True).items():
            wire = next(note for note in hint.__metadata__ if isinstance(note, Wire))
            self.wires[name] = wire
            if wire.format == "ip":
                width = (ip_bytes or {})[name]
                codes.append(f"{width}s")
                fields.append((name, f"V{width}"))
            else:
                codes.append(_STRUCT_CODES[wire.format])
                fields.append((name, wire.format))
        self.struct = struct.Struct(">" + "".join(codes))
        self.dtype = np.dtype(fields)
        self.size = self.struct.size
        assert self.dtype.itemsize == self.size
        self.offsets = {name: int(self.dtype.fields[name][1]) for name, _ in fields}  # type: ignore[index]

    def read(self, buffer: Readable, position: int = 0) -> Row:
        """The row at `position`. Raises ValueError when it does not fit."""
        if position < 0 or position + self.size > len(buffer):
            raise ValueError(f"{self.row.__name__} needs {self.size} bytes at {position}")
        return self.row(*self.struct.unpack_from(buffer, position))

    def pack(self, row: Row) -> bytes:
        """The bytes of `row`; a value out of its field's range raises struct.error."""
        return self.struct.pack(*row)

    def view(self, buffer: Any, position: int = 0, count: int = -1) -> NDArray[Any]:
        """Rows as a structured array over the buffer's own memory (read-only if that is)."""
        if count < 0:
            count = (memoryview(buffer).nbytes - position) // self.size
        return np.frombuffer(buffer, self.dtype, count, position)

    def table(self) -> str:
        """The layout as a Markdown table, for docs/format.md."""
        lines = ["| offset | bytes | type | field | meaning |", "|---:|---:|---|---|---|"]
        for name, wire in self.wires.items():
            width = self.dtype[name].itemsize
            kind = "bytes" if wire.format == "ip" else f"{wire.format[1]}{8 * width}"
            meaning = wire.meaning.replace("|", "\\|")
            lines.append(f"| {self.offsets[name]} | {width} | {kind} | {name} | {meaning} |")
        return "\n".join(lines)
