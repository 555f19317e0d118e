"""What can be wrong with a frame of the remoting protocol, named by what it costs the peer."""

from protocol.errors import BadRequest, RefusedError


class BrokenFrame(BadRequest):
    """The bytes are not a frame. The connection has to be closed, without an answer."""


class BadCommand(RefusedError):
    """A request's fields or body are not as declared: it is answered with code 1 and the reason."""

    code = 1
    status = "SYSTEM_ERROR"
