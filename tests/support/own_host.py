"""An address of this machine that no other test process uses."""

import os

_PID = os.getpid()
OWN_HOST = f"127.{64 + (_PID >> 16) % 64}.{_PID >> 8 & 255}.{_PID & 255}"
"""Clients of nodes that other tests have killed go on asking at 127.0.0.1, and the kernel gives
the port of a dead node to the next server. Who counts the requests of a server binds it here."""
ANY_PORT = f"tcp://{OWN_HOST}:0"
