"""`keelog …` as a shell runs it, but in this process: a start of Python costs more than most
commands do. What a process alone has, signals and pipes that close, is tested with processes."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from subprocess import CompletedProcess
from threading import Thread
from unittest.mock import patch

from keelog.cli.main import run


def keelog(node: str, words: Sequence[str], stdin: bytes = b"") -> CompletedProcess[bytes]:
    """What the command printed, and its exit code, with `stdin` in a pipe; of the node `node`."""
    ours, theirs = os.pipe()
    writer = Thread(target=_write, args=(theirs, stdin))
    writer.start()
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        os.fdopen(ours) as given,
        patch.dict(os.environ, KEELOG_NODE=node),
        patch.multiple(sys, stdin=given, stdout=out, stderr=err),
    ):
        code = run(words)
    writer.join()
    printed = [one.detach().getvalue() for one in (out, err)]
    return CompletedProcess(words, code, *printed)


def keelog_text(node: str, words: Sequence[str], stdin: str = "") -> CompletedProcess[str]:
    """The same in text."""
    done = keelog(node, words, stdin.encode())
    return CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def _write(descriptor: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as file:
        file.write(data)
