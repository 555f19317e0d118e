"""Which ends of a node other hosts can reach, and what each of them asks for then.

An end at loopback is reached by programs of this machine alone. Beyond it a node does not start
where an end lets in everybody, unless `--open` names that end: then the log says so each hour, and
a health check fails. Nothing is bound or written before that is decided.
"""

import logging
import shlex
from collections.abc import Collection, Iterator, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from node.access.curve import server_keys
from node.access.tls_settings import TlsMode, load_tls
from node.access.token_file import read_token
from node.access.users_file import read_users
from node.runtime.addresses import AllowedPeers
from node.runtime.event_log import fields
from node.runtime.settings import AUTO, OFF, ON, Settings
from node.supervisor import bind
from node.supervisor.bind import BindAddress, End
from node.supervisor.options import Options, ServeSettings
from protocol.access.users import EMPTY, AccessTable
from protocol.errors import BadRequest

log = logging.getLogger("keelog.supervisor")

WARN_EVERY_S = 3600.0
_FIRST_USER = "operator"


class ServedEnd(NamedTuple):
    """An end at which the node listens. `option` and `given` are as people wrote them."""

    end: End
    option: str
    given: str
    place: BindAddress
    """With the address of its host: the decision and the socket are about the same one."""

    def __str__(self) -> str:
        return f"{self.option} {self.given}"


class Lack(Enum):
    """What an end lacks to let in those alone who are known."""

    LOGIN = auto()
    """`authentication_enabled` is false."""
    PASSWORD = auto()
    SERVER_KEYS = auto()
    CLIENT_KEY = auto()
    PEERS = auto()
    TOKEN = auto()


_WORDS = {
    Lack.LOGIN: "authentication_enabled is false",
    Lack.PASSWORD: "no user has a password",
    Lack.SERVER_KEYS: "the node has no keys",
    Lack.CLIENT_KEY: "no user has a public key",
    Lack.PEERS: "ha_allowed_peers names nobody in particular, and nobody shows a certificate",
    Lack.TOKEN: "there is no http_token_file, nor both a user and a certificate of the node",
}


class EndNeedsLogin(BadRequest):
    """An end beyond loopback would let in everybody."""


class KnownUsers(NamedTuple):
    """Who may come, as the files of a store have it."""

    table: AccessTable = EMPTY
    has_server_keys: bool = False

    @property
    def has_password(self) -> bool:
        """Whether somebody can log in by a password."""
        return any(one.is_enabled and one.secret for one in self.table.users.values())

    @property
    def has_client_key(self) -> bool:
        """Whether somebody can come by a key."""
        return any(one.is_enabled and one.public_keys for one in self.table.users.values())


def known_at(root: Path) -> KnownUsers:
    """Who may come to the node on a store, which need not be there yet. Raises UnsafeUsers,
    StoreDamaged and BadKey for files that cannot be believed, OSError."""
    try:
        table, _ = read_users(root)
        return KnownUsers(table, server_keys(root) is not None)
    except NotADirectoryError:
        return KnownUsers()  # who opens the store says so


def served_ends(serve: ServeSettings) -> tuple[ServedEnd, ...]:
    """Where the node listens. Raises BadRequest for a name that does not resolve."""
    found = (
        (End.ZEROMQ, "--bind", serve.bind, bind.parse_bind(serve.bind)),
        (End.REMOTING, "--remoting", serve.remoting, bind.parse_remoting(serve.remoting)),
        (End.HA, "--ha", serve.ha_listen, bind.parse_ha(serve.ha_listen)),
        (End.HTTP, "--http", serve.http, bind.parse_http(serve.http)),
    )
    return tuple(
        ServedEnd(end, option, given, place.resolved())
        for end, option, given, place in found
        if place is not None
    )


class Exposure:
    """The ends of one node, and which of them are open to everybody because `--open` says so."""

    def __init__(
        self, ends: Sequence[ServedEnd], opened: Collection[End], settings: Settings
    ) -> None:
        self.ends = ends
        self._settings = settings
        self._beyond = {one.end for one in ends if not one.place.is_loopback}
        self.opened = tuple(one for one in ends if one.end in opened)
        self._open_ends = frozenset(opened)

    @property
    def is_beyond(self) -> bool:
        """Whether other hosts reach any end."""
        return bool(self._beyond)

    def place(self, end: End) -> BindAddress | None:
        """Where an end listens; None: it does not."""
        return next((one.place for one in self.ends if one.end is end), None)

    def login(self, end: End) -> str:
        """`authentication_enabled` as it is for an end. AUTO is left only where other hosts reach
        neither `--bind` nor `--remoting`: there it means, as soon as there is a user."""
        asked = self._settings.authentication_enabled
        if end in self._open_ends:
            return OFF
        if end is End.HTTP and (end in self._beyond or self._settings.http_token_file):
            return ON
        logs_in = {End.ZEROMQ, End.REMOTING} & self._beyond - self._open_ends
        return ON if asked == AUTO and logs_in else asked

    def check(self, root: Path, known: KnownUsers) -> None:
        """Raises EndNeedsLogin for ends that would let in everybody, and BadRequest for an end that
        `--open` names in vain. `root`: the store's, for the commands that help."""
        self._check_opened(known)
        closed = [one for one in self.ends if one.end in self._beyond - self._open_ends]
        lacks = {one: found for one in closed if (found := self._lacks(one.end, known))}
        if not lacks:
            return
        texts = [
            f"other hosts reach {one}, and {' and '.join(_WORDS[lack] for lack in found)}"
            for one, found in lacks.items()
        ]
        every = {lack for found in lacks.values() for lack in found}
        words = ",".join(one.end for one in (*self.opened, *lacks))
        raise EndNeedsLogin(
            "; ".join(texts),
            f"{_help(root, known, every)}; or, where everybody may come, with --open {words}",
        )

    def _check_opened(self, known: KnownUsers) -> None:
        for end in sorted(self._open_ends):
            why = self._no_opening(end, known)
            if why:
                raise BadRequest(f"--open {end} opens nothing: {why}", f"leave {end} out of it")

    def _no_opening(self, end: End, known: KnownUsers) -> str:
        """Why an end needs no opening; empty where it does."""
        served = next((one for one in self.ends if one.end is end), None)
        if served is None:
            option = {End.HA: "--ha", End.HTTP: "--http"}.get(end, "--remoting")
            return f"the node has no {option}"
        if end not in self._beyond:
            return f"{served} is for this machine alone"
        settings = self._settings
        if end is End.ZEROMQ and known.has_server_keys:
            return "the node has keys, so clients come with keys"
        if end is End.REMOTING and settings.authentication_enabled == ON:
            return "authentication_enabled is true"
        if end is End.HA and not self._lacks(end, known):
            return "ha_allowed_peers, or certificates, say who may follow"
        return "http_token_file is set" if end is End.HTTP and settings.http_token_file else ""

    def _lacks(self, end: End, known: KnownUsers) -> tuple[Lack, ...]:
        settings = self._settings
        has_password = known.has_password or makes_first_user(settings)
        has: dict[Lack, bool] = {}
        match end:
            case End.ZEROMQ:
                has[Lack.SERVER_KEYS] = known.has_server_keys
                has[Lack.CLIENT_KEY] = known.has_client_key
            case End.REMOTING:
                has[Lack.LOGIN] = settings.authentication_enabled != OFF
                has[Lack.PASSWORD] = has_password
            case End.HA:
                has[Lack.PEERS] = _knows_followers(settings)
            case End.HTTP:
                takes = bool(settings.http_token_file) or _takes_passwords(settings, has_password)
                has[Lack.TOKEN] = takes
        return tuple(lack for lack, is_there in has.items() if not is_there)


def checked_exposure(options: Options, settings: Settings) -> Exposure:
    """The ends of the node. Raises EndNeedsLogin for one beyond loopback that would let in
    everybody, BadRequest, and as `known_at` and `read_token` for files that say who may come."""
    serve = options.serve
    if settings.http_token_file:
        read_token(settings.http_token_file)
    exposure = Exposure(served_ends(serve), bind.parse_open_ends(serve.open_ends), settings)
    # At loopback alone nobody has to be known, so what is there does not matter.
    exposure.check(options.root, known_at(options.root) if exposure.is_beyond else KnownUsers())
    return exposure


def makes_first_user(settings: Settings) -> bool:
    """Whether the start makes a user with a password (`init_authentication_user_file`)."""
    return bool(
        settings.init_authentication_user_file
        or settings.inner_client_authentication_credentials_file
    )


def _takes_passwords(settings: Settings, has_password: bool) -> bool:
    """Whether somebody can log in at `--http`: passwords go there over TLS alone."""
    if not has_password or settings.authentication_enabled == OFF:
        return False
    return load_tls(settings).mode is not TlsMode.DISABLED


def _knows_followers(settings: Settings) -> bool:
    """Whether those alone may follow whom `ha_allowed_peers` names, or who show a certificate."""
    if not AllowedPeers(settings.ha_allowed_peers).are_everybody:
        return True
    tls = load_tls(settings)
    return tls.mode is TlsMode.ENFORCING and bool(tls.settings.tls_server_trust_cert_path)


def _help(root: Path, known: KnownUsers, lacks: Collection[Lack]) -> str:
    """The commands, and settings, that give the ends what they lack."""
    folder = shlex.quote(str(root))
    commands, said = list(_user_commands(folder, known, lacks)), []
    if Lack.TOKEN in lacks:
        token = shlex.quote(f"{root}.http_token")
        commands.append(f"(umask 077; openssl rand -hex 32 > {token})")
        said.append(f"-X http_token_file={token}")
    if Lack.PEERS in lacks:
        said.append(
            "-X ha_allowed_peers=ADDRESSES  (of those who follow, as 192.0.2.7,10.1.0.0/16)"
        )
    if Lack.LOGIN in lacks:
        said.append("-X authentication_enabled=auto")
    again = "the same command again" + (f" with {' '.join(said)}" if said else "")
    return f"{' && '.join(commands)}, then {again}" if commands else again


def _user_commands(folder: str, known: KnownUsers, lacks: Collection[Lack]) -> Iterator[str]:
    """What makes a user, or gives one what is lacking. One that is there is not made again."""
    users = known.table.users.values()
    user = min(users, key=lambda one: (not one.is_super, not one.is_enabled), default=None)
    name, is_there = shlex.quote(_FIRST_USER if user is None else user.name), user is not None
    if Lack.PASSWORD in lacks:
        change = f"set {name} --enable --new-password" if is_there else f"create {name} --super"
        yield f"keelog user {change} --store {folder}"
        is_there = True
    if Lack.SERVER_KEYS in lacks:
        yield f"keelog key init {folder}"
    if Lack.CLIENT_KEY in lacks:
        yield f"keelog key new {_FIRST_USER}"
        change = f"set {name} --enable" if is_there else f"create {name} --super"
        yield f"keelog user {change} --public-key {_FIRST_USER}.key --store {folder}"


class OpenEndsWarning:
    """Says in the log, at the start and each hour, which ends are open to everybody."""

    def __init__(self, opened: Sequence[ServedEnd]) -> None:
        self._opened = opened
        self._due = float("-inf")

    @property
    def text(self) -> str:
        """The open ends, for health; empty without one."""
        if not self._opened:
            return ""
        return f"open to everybody, by --open: {', '.join(map(str, self._opened))}"

    def turn(self, now: float) -> None:
        """`now`: of the monotonic clock, in s."""
        if now < self._due:
            return
        self._due = now + WARN_EVERY_S
        for one in self._opened:
            details = fields(end=one.end, address=f"{one.place.bound_host}:{one.place.port}")
            log.warning("everybody who reaches this end may do everything there", extra=details)
