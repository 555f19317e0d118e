"""What a process of a node loads before it is ready."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["node.writer.loop", "node.reader.loop", "workers.consume_queue", "workers.index_file"],
)
def test_a_process_of_a_node_starts_without_what_it_never_uses(module: str) -> None:
    """Each of them costs a start 8 to 50 ms, and a node has six processes."""
    unused = {"asyncio", "ssl", "psutil", "node.store.query.sql"}
    code = f"import sys, {module}; print(*{unused} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
