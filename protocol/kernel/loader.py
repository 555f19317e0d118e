"""Loads the compiled twin of the hot loops, `kernel.c`, where the installation built it.

`active()` is the kernel or None; its caller then does the same work plainly. `unfit()` says
why a library that is there is not used: it may be an earlier version's. The environment variable
KEELOG_KERNEL=off leaves it out. It is loaded by ctypes, with plain buffers: every function
checks its lengths itself, and the interpreter's lock is free meanwhile.

`SIGNATURES` has the types of each function's result and arguments, as letters of `TYPES`, in one
group for each source file. A function takes addresses and lengths.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "l": ctypes.c_int64,
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "s": ctypes.c_char_p,
    "-": None,
}
SIGNATURES = """
    abi:i source:s init:ii columns:i crc32:upl count:lpll scan:lpllliplp gather:-pllppppp
    read_pieces:lilpppl join32:lpllppplp pairs:lpllppplp record_at:lplllp fitting_units:lplp
    unit_bytes:lpl copy_messages:lplllpplplpl whole_records:lpllp

    append_check:lppp append_seal:lpp append_run:lpppp put_message:lpppp encode_batch:lppppp
    count_items:lpl encode_items:lpppp join_ids:-pllplp

    java_hash:lpllppp find_properties:lpllppp group:lpllpppppppl queue_units:lpllpplplplppppp
    index_keys:lpllpilpp enter_keys:llpppllplpp
"""

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SWITCH = "KEELOG_KERNEL"
"""The environment variable; `off` leaves the kernel out, at run time and when installing."""
ABI = 12
"""As KERNEL_ABI in kernel.c: a library of another one is not used."""
FILE = "_kernel.so"
BUILD_AGAIN = (
    "build it again: make -B setup in a clone, else pip install --force-reinstall /path/to/keelog"
)

CRC_TABLES, CRC_FOLDING, CRC_WIDE_FOLDING = range(3)
"""How checksums are made, as in enum crc_way: which is best is the processor's affair."""
CHECK_PLACE = 1
VERIFY = 2
SEALED = 4

_PAIR_BYTES_MIN = 4
"""A name, 0x01, a value, 0x02; only the last pair may lack its 0x02."""
_OFFSET_CHARS = 16
"""Of a log offset in a message id."""
_OUTSIDE = "a piece lies outside the buffer"


class KernelMismatchError(ImportError):
    """The library was built from another kernel.c than this package's."""


class Kernel:
    """The functions of one library. Raises OSError, KernelMismatchError.

    All arrays are C-contiguous, numbers int64. A piece outside `data` raises IndexError, as numpy
    would. `crc_best` is the last of CRC_TABLES, CRC_FOLDING and CRC_WIDE_FOLDING that is allowed.
    """

    def __init__(self, path: str, crc_best: int = CRC_WIDE_FOLDING) -> None:
        library = ctypes.CDLL(path)
        self.functions: dict[str, Callable[..., Any]] = {}
        for signature in SIGNATURES.split():
            name, letters = signature.split(":")
            try:
                function = library[f"keelog_{name}"]
            except AttributeError:
                raise KernelMismatchError(f"{path} has no function keelog_{name}") from None
            function.restype, *function.argtypes = (TYPES[letter] for letter in letters)
            self.functions[name] = function
        if (found := self.call("abi")) != ABI:
            raise KernelMismatchError(f"{path} has ABI {found}, not {ABI}")
        self.source: str = self.call("source").decode()
        self.crc_way: int = self.call("init", crc_best)
        self.columns: int = self.call("columns")

    def call(self, name: str, *arguments: Any) -> Any:
        """One function, with arguments as `SIGNATURES` declares them.

        An array goes as its address, and lives until the function returns.
        """
        taken = [address(one) if isinstance(one, np.ndarray) else one for one in arguments]
        return self.functions[name](*taken)

    def scan(self, data: Bytes, position: int, base: int, flags: int) -> tuple[Ints, int]:
        """The columns of the whole records from `position` on, and the position after them."""
        rows = self.call("count", data, len(data), position)
        out = np.empty((self.columns, rows), np.int64)
        end = ctypes.c_int64(position)
        if rows:
            reached = ctypes.byref(end)
            found = self.call("scan", data, len(data), position, base, flags, out, rows, reached)
            out = out[:, :found]
        return out, end.value

    def gather(self, data: Bytes, start: Ints, size: Ints, place: Ints) -> tuple[Ints, Bools]:
        """The columns of the records that start at `start`, and which of them are whole."""
        rows = len(start)
        out, good = np.empty((self.columns, rows), np.int64), np.empty(rows, np.bool_)
        wanted = [int_column(column, rows) for column in (start, size, place)]
        self.call("gather", data, len(data), rows, *wanted, out, good)
        return out, good

    def read_pieces(self, descriptor: int, position: Ints, count: Ints) -> tuple[Bytes, int]:
        """The pieces of an open file joined, and how many of them are whole."""
        rows = len(position)
        pieces = int_column(position, rows), int_column(count, rows)
        out = np.empty(int(count.sum()), np.uint8)
        return out, int(self.call("read_pieces", descriptor, rows, *pieces, out, len(out)))

    def _over_pieces(
        self, name: str, data: Bytes, start: Ints, length: Ints, *arguments: Any
    ) -> int:
        """Calls a function over the pieces of `data`. Raises IndexError for a negative answer."""
        rows = len(start)
        pieces = int_column(start, rows), int_column(length, rows)
        answer = int(self.call(name, data, len(data), rows, *pieces, *arguments))
        if answer < 0:
            raise IndexError(_OUTSIDE)
        return answer

    def join_arrow(self, data: Bytes, start: Ints, length: Ints) -> tuple[Bytes, NDArray[np.int32]]:
        """The pieces joined, and the offsets of an Arrow array of them; below 2 GiB in all."""
        out, offsets = np.empty(int(length.sum()), np.uint8), np.empty(len(start) + 1, np.int32)
        self._over_pieces("join32", data, start, length, out, len(out), offsets)
        return out, offsets

    def java_hash(self, data: Bytes, start: Ints, length: Ints) -> NDArray[np.int32]:
        """Java's hash of each piece."""
        hashes = np.empty(len(start), np.int32)
        self._over_pieces("java_hash", data, start, length, hashes)
        return hashes

    def group(
        self, data: Bytes, start: Ints, length: Ints, queue: Ints | None = None,
        sys_flag: Ints | None = None,
    ) -> tuple[NDArray[np.int32], Ints]:  # fmt: skip
        """Each piece's number, in order of appearance, and the row where each came first.

        `queue` distinguishes pieces, too. With `sys_flag` a transaction that is open or rolled back
        has the number -1.
        """
        rows = len(start)
        number, first = np.empty(rows, np.int32), np.empty(rows, np.int64)
        table = np.full(1 << (2 * rows).bit_length(), -1, np.int32)
        more = [None if one is None else int_column(one, rows) for one in (queue, sys_flag)]
        found = (number, first, table, len(table))
        return number, first[: self._over_pieces("group", data, start, length, *more, *found)]

    def find_properties(self, data: Bytes, start: Ints, length: Ints) -> Ints:
        """Start and length of the values of KEYS, TAGS and UNIQ_KEY: six rows of a table."""
        out = np.empty((6, len(start)), np.int64)
        self._over_pieces("find_properties", data, start, length, out)
        return out

    def join_ids(self, start: str, place: int, size: Sequence[int] | NDArray[np.uint32]) -> str:
        """The message ids of records back to back in the log from `place` on, joined by commas:
        `start`, then the log offset. For a hot path."""
        size = np.ascontiguousarray(size, np.uint32)
        out = np.empty(len(size) * (len(start) + _OFFSET_CHARS + 1), np.uint8)
        self.functions["join_ids"](
            address(size), len(size), place, start.encode(), len(start), address(out)
        )
        return str(out.data[:-1], "ascii")

    def pairs(
        self, data: Bytes, start: Ints, length: Ints
    ) -> tuple[Ints, NDArray[np.int32]] | None:
        """Start, middle and end of each property (the value follows the middle), and how many each
        row has; of a repeated name the last. None where a row has too many to compare.
        """
        capacity = int((length // _PAIR_BYTES_MIN + 1).sum())
        out, counts = np.empty((3, capacity), np.int64), np.empty(len(start), np.int32)
        try:
            found = self._over_pieces("pairs", data, start, length, out, capacity, counts)
        except IndexError:
            return None
        return out[:, :found], counts


def address(array: NDArray[Any]) -> int:
    """The address of an array's first item. The caller keeps the array alive."""
    found = array.__array_interface__
    assert found["strides"] is None, "not contiguous"
    place: int = found["data"][0]
    return place


def int_column(column: Ints, rows: int) -> Ints:
    """A column as C reads it; of another length would be a reach outside."""
    assert column.shape == (rows,)
    return np.ascontiguousarray(column, np.int64)


def path() -> str:
    """Where the installation puts the library, beside this file."""
    return f"{__file__.rpartition('/')[0]}/{FILE}"


def load(library: str) -> tuple[Kernel | None, str]:
    """The kernel, or why the library that is there is none of ours; neither where nothing is."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return None, ""
    try:
        return Kernel(library), ""
    except (OSError, KernelMismatchError) as error:
        return None, str(error) if os.access(library, os.F_OK) else ""


kernel, _unfit = load(path())
"""The kernel of this process, None without one; and why."""


def unfit() -> str:
    """Why a library that is there is not used, and what mends that; else empty."""
    return f"{_unfit}; {BUILD_AGAIN}" if _unfit else ""


def describe() -> str:
    """What runs, for people: `compiled, carry-less CRC`, `compiled` or `numpy`, and after a colon
    `unfit()`."""
    if kernel is None:
        return f"numpy: {unfit()}" if _unfit else "numpy"
    return "compiled, carry-less CRC" if kernel.crc_way else "compiled"
