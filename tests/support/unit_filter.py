"""Runs a command under the system calls that the unit allows, without systemd.

`python -m tests.support.unit_filter COMMAND…`: what `SystemCallFilter=` and
`RestrictAddressFamilies=` of deploy/systemd/keelog.service say becomes a filter of libseccomp.
"""

import ctypes
import errno
import os
import shutil
import socket
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "keelog.service"
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EQUAL = 4
_PR_SET_NO_NEW_PRIVS = 38


class _Argument(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("number", ctypes.c_uint), ("compare", ctypes.c_int),
        ("value", ctypes.c_uint64), ("unused", ctypes.c_uint64),
    )  # fmt: skip


def missing() -> str:
    """Why it cannot be done here; empty when it can."""
    if find_library("seccomp") is None:
        return "libseccomp is not installed (Debian: apt-get install libseccomp2)"
    if shutil.which("systemd-analyze") is None:
        return "systemd-analyze is not on the PATH (Debian: apt-get install systemd)"
    return ""


def _values(option: str) -> list[str]:
    """What the unit says for an option that is written more than once, line by line."""
    pairs = (line.partition("=") for line in UNIT.read_text().splitlines())
    return [value for name, _, value in pairs if name == option]


def _members(name: str) -> set[str]:
    """The calls of a group of systemd's, or the call itself."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", name]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    words = [line.strip() for line in lines[1:]]
    return {call for word in words if word and word[0] != "#" for call in _members(word)}


def allowed_calls() -> set[str]:
    """The names of all calls that the unit lets through."""
    allowed = _members("@default")
    for value in _values("SystemCallFilter"):
        calls = {call for name in value.lstrip("~").split() for call in _members(name)}
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


def load() -> None:
    """From now on this process, and all that it starts, may make these calls alone."""
    library = ctypes.CDLL(find_library("seccomp"))
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.EPERM))
    (families,) = _values("RestrictAddressFamilies")
    for call in sorted(allowed_calls()):
        number = library.seccomp_syscall_resolve_name(call.encode())
        wanted = (
            [getattr(socket, name) for name in families.split()] if call == "socket" else [None]
        )
        for family in wanted:
            given = (_Argument * 1)(_Argument(0, _EQUAL, family or 0, 0))
            count = 0 if family is None else 1
            library.seccomp_rule_add_array(rules, _ALLOW, number, count, given)
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    failed = library.seccomp_load(rules)
    assert not failed, os.strerror(-failed)


if __name__ == "__main__":
    load()
    os.execvp(sys.argv[1], sys.argv[1:])
