"""What the C library keeps of freed memory in a process of a node."""

import os
import platform
import re
import subprocess
import sys

import pytest

_TUNABLES = {"MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "GLIBC_TUNABLES"}
_PROGRAM = """
import ctypes, threading
from node.runtime.process import keep_freed_memory
{call}
meeting = threading.Barrier(3)
def fill() -> None:
    meeting.wait()
    bytes(1 << 20)
threads = [threading.Thread(target=fill) for _ in range(2)]
for thread in threads:
    thread.start()
fill()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def _heaps(call: str) -> int:
    """How many heaps the C library has after two threads took memory beside the main one."""
    command = [sys.executable, "-c", _PROGRAM.format(call=call)]
    # Who runs the tests may have told the C library how many heaps it may have.
    others = {name: value for name, value in os.environ.items() if name not in _TUNABLES}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=others)
    return len(re.findall(r"<heap nr=", done.stdout))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's heaps")
def test_the_threads_of_a_process_share_one_heap() -> None:
    """Each heap would keep what the longest turn needs: 80 MiB more in a queue worker."""
    assert _heaps("") > 1, "nothing is shown unless threads have heaps of their own"
    assert _heaps("keep_freed_memory()") == 1
