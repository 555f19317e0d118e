"""The headers of every reply to a browser, and the hosts for which the console replies.

No page runs a script that did not come from here, is shown inside another one, or is kept. A name
that somebody else controls must not lead a browser to this machine (DNS rebinding): only addresses,
localhost and names that the operator has given count.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types keelog"
)
DOWNLOAD_POLICY = "sandbox; default-src 'none'"
SAFE_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
Headers = Iterable[tuple[bytes, bytes]]
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?)(:[0-9]{1,5})?")
_SAME = frozenset({"same-origin"})
_PORTS = {"http": "80", "https": "443"}


def header(headers: Headers, name: str) -> str | None:
    """The value of a header that is there once; None for none or several."""
    found = [value for key, value in headers if key == name.encode()]
    return found[0].decode("latin-1") if len(found) == 1 else None


def is_own_host(host: str | None, names: Collection[str]) -> bool:
    """Whether a request that names this host may be meant for the console."""
    match = _HOST.fullmatch((host or "").lower())
    if match is None:
        return False
    name = match[1]
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return name.startswith("[") == (":" in name)


def is_own_request(headers: Headers, scheme: str) -> bool:
    """Whether a request that changes something comes from a page of the console.

    Browsers say so themselves over https and from localhost (Sec-Fetch-Site). Where they do not,
    the origin has to be our own. Behind a proxy with TLS the scheme of the origin is https.
    """
    found = list(headers)
    sites = [value for key, value in found if key == b"sec-fetch-site"]
    if sites:
        return [one.decode("latin-1") for one in sites] == [*_SAME]
    origin, host = header(found, "origin"), header(found, "host")
    if origin is None or host is None:
        return False
    own, colon, place = origin.partition("://")
    if not colon or own not in {scheme, "https"}:
        return False
    return _with_port(place, own) == _with_port(host, own)


def _with_port(place: str, scheme: str) -> str:
    has_port = re.search(r":[0-9]+$", place) is not None
    return place.lower() if has_port else f"{place.lower()}:{_PORTS[scheme]}"
