"""Addresses in text that people, logs and reports get: without the credentials that are in them."""

import re

_USER = re.compile(
    # A path keeps one slash of two. A secret that nobody has quoted may hold slashes itself.
    r"(\w:/|//)(/?)(?:[^/\s]+|[^/\s@:]+:(?!\d+/)[^\s@]+)@"
)
_PARAMETER = re.compile(
    r"(?i)([?&][\w.-]*(?:secret|passw(?:or)?d|token|credential|key|sig)[\w.-]*=)[^&\s\"']+"
)


def without_credentials(text: str) -> str:
    """Text whose URLs show `***` for users, passwords, and parameters that are named like secrets.

    For showing alone: what is opened is the address as it was given.
    """
    if "@" in text:
        text = _USER.sub(r"\1\2***@", text)
    return _PARAMETER.sub(r"\1***", text) if "=" in text else text
