"""Names of our own modules, to start or import one by its name.

In the source tree `protocol`, `node` and `workers` are packages at the top. A wheel has them inside
`keelog` (hatch_build.py), so that none of these names is taken from others.
"""

_INSIDE = __name__.removesuffix("protocol.modules")


def module_name(name: str) -> str:
    """The name under which `node.writer.loop` or `keelog.gateway.loop`, say, is imported here."""
    return _INSIDE + name.removeprefix(_INSIDE)
