"""The functions of the compiled kernel: result and arguments of each, as ctypes needs them.

One group for each source file. A function takes addresses and lengths.
"""

import ctypes
from typing import Any

POINTER = ctypes.c_void_p
LONG = ctypes.c_int64
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "abi": (ctypes.c_int32, ()),
    "source": (ctypes.c_char_p, ()),
    "init": (ctypes.c_int32, (ctypes.c_int32,)),
    "columns": (ctypes.c_int32, ()),
    "crc32": (ctypes.c_uint32, (POINTER, LONG)),
    "count": (LONG, (POINTER, LONG, LONG)),
    "scan": (LONG, (POINTER, *[LONG] * 3, ctypes.c_int32, POINTER, LONG, POINTER)),
    "gather": (None, (POINTER, LONG, LONG, *[POINTER] * 3, ctypes.c_int32, *[POINTER] * 2)),
    "pairs": (LONG, (POINTER, LONG, LONG, *[POINTER] * 3, LONG, POINTER)),
    "read_pieces": (LONG, (ctypes.c_int32, LONG, *[POINTER] * 3, LONG)),
    "join": (LONG, (POINTER, LONG, LONG, *[POINTER] * 3, LONG, POINTER)),
    "join32": (LONG, (POINTER, LONG, LONG, *[POINTER] * 3, LONG, POINTER)),
    "java_hash": (LONG, (POINTER, LONG, LONG, *[POINTER] * 4)),
    "group": (LONG, (POINTER, LONG, LONG, *[POINTER] * 5, LONG)),
    "find_properties": (LONG, (POINTER, LONG, LONG, *[POINTER] * 3)),
    # kernel_read.c
    "fitting_units": (LONG, (POINTER, LONG, POINTER)),
    "unit_bytes": (LONG, (POINTER, LONG)),
    "copy_messages": (
        LONG,
        (POINTER, *[LONG] * 3, *[POINTER] * 2, LONG, POINTER, LONG, POINTER, LONG),
    ),
    "whole_records": (LONG, (POINTER, *[LONG] * 2, POINTER)),
    # kernel_append.c
    "append_check": (LONG, (POINTER,)),
    "append_seal": (LONG, (POINTER,)),
    "append_run": (LONG, (POINTER,) * 4),
    "put_message": (LONG, (POINTER,) * 4),
    "encode_batch": (LONG, (POINTER,) * 5),
    # kernel_items.c
    "count_items": (LONG, (POINTER, LONG)),
    "encode_items": (LONG, (POINTER,) * 4),
    "join_ids": (None, (POINTER, LONG, LONG, POINTER, LONG, POINTER)),
    # kernel_dispatch.c
    "wanted_columns": (ctypes.c_int32, ()),
    "group_queues": (LONG, (POINTER, LONG, LONG, *[POINTER] * 4, LONG)),
    "queue_units": (
        LONG,
        (*(POINTER, LONG, LONG, POINTER, POINTER, LONG), *(POINTER, LONG, POINTER, LONG))
        + (POINTER,) * 5,
    ),
    "index_keys": (LONG, (POINTER, LONG, LONG, POINTER, ctypes.c_int32, LONG, POINTER, POINTER)),
    "enter_keys": (LONG, (LONG, *[POINTER] * 3, LONG, LONG, POINTER, LONG, POINTER, POINTER)),
}
