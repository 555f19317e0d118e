"""From where followers may come, as the setting `ha_allowed_peers` or the file that it names says.

A setting holds until the node ends. A file may change meanwhile: what it says then counts for those
who follow already, too. One that cannot be used changes nothing, and the log says so once.
"""

import logging
import os
import stat
from pathlib import Path

from node.runtime.addresses import AllowedPeers, peers_file
from node.runtime.event_log import fields, hangups_heard
from node.runtime.store_paths import held_open
from protocol.errors import BadRequest, MqError, RefusedError

log = logging.getLogger("keelog.followers")

LOOK_S = 0.5
"""Between two looks at the file; after a SIGHUP the next look is at once."""
PEERS_FILE_BYTES_MAX = 256 * 1024
_Stamp = tuple[int, ...] | None


class FollowerPeers:
    """For one thread. Times are seconds of the monotonic clock."""

    def __init__(self, setting: str) -> None:
        """Raises BadRequest, RefusedError for a file that others may change."""
        self._path = peers_file(setting)
        self._stamp: _Stamp = None
        self._problem = ""
        self._look_at = 0.0
        self._hangups = hangups_heard()
        self._allowed: AllowedPeers | None = None
        """None: nobody."""
        if self._path is None:
            self._allowed = AllowedPeers(setting)
        else:
            self._stamp = _stamp(self._path)
            try:
                self._allowed = _read(self._path)
            except OSError as error:
                raise BadRequest(f"ha_allowed_peers: {self._path}: {error.strerror}") from None

    def allow(self, host: str) -> bool:
        """Whether a follower may come from this address."""
        return self._allowed is not None and self._allowed.allow(host)

    def look(self, now: float) -> bool:
        """Takes over a file that has changed, if it is time to look. True if it did."""
        hangups = hangups_heard()
        if self._path is None or (now < self._look_at and hangups == self._hangups):
            return False
        self._look_at, self._hangups = now + LOOK_S, hangups
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        try:
            self._allowed, self._stamp, self._problem = _read(self._path), stamp, ""
        except (MqError, OSError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                details = fields(file=self._path, why=error)
                log.warning("who may follow stays as it was", extra=details)
            return False
        log.info("who may follow was read anew", extra=fields(file=self._path))
        return True


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _read(path: Path) -> AllowedPeers | None:
    """Those that a file names: addresses and networks, one a line or separated by commas, with
    comments behind `#`. None for nobody."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    with held_open(os.open(path, flags)) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > PEERS_FILE_BYTES_MAX:
            raise BadRequest(f"ha_allowed_peers: {path} is no file of addresses")
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise RefusedError(
                f"others may change {path}, which says who may follow",
                f"chown it to the user of the node, and chmod go-w {path}",
            )
        text = os.read(descriptor, PEERS_FILE_BYTES_MAX).decode("ascii", "replace")
    lines = (line.partition("#")[0] for line in text.splitlines())
    names = [one.strip() for line in lines for one in line.split(",") if one.strip()]
    return AllowedPeers(",".join(names)) if names else None
