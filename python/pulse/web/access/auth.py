"""Authentication: from a request to the identity of its user.

guard.py calls it before every request. The database decides what the user may do.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from starlette.requests import HTTPConnection

from pulse.web.access.files import BadConfiguration, check_role, words

COOKIE = "pulse_web"
SHORTEST_TOKEN = 16
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HANDED_ON = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


@dataclass(frozen=True)
class Identity:
    """A user, and the role their requests run as (None: the role of the DSN)."""

    user: str
    role: str | None = None
    # Sent in a header that no other site can make a browser send: safe from CSRF.
    bearer: bool = False
    # By the cookie of the login page, which signing out takes away.
    signed_in: bool = False
    # Named in a header of a proxy, which a page of another site could send too if it
    # points its own name here: believed only under the names of the proxy.
    by_header: bool = False
    # Tells apart the tokens of one role; each has its share of the streams.
    token: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        check_role(self.role)

    @property
    def follower(self) -> str:
        """The name under which open streams are counted: the token's or the user's."""
        return self.token or self.user


class Authenticator(Protocol):
    """Any callable: `async def staff(connection) -> Identity | None`."""

    async def __call__(self, connection: HTTPConnection, /) -> Identity | None: ...


class Loopback:
    """No authentication, but only this machine is answered.

    What a proxy hands on came from elsewhere, wherever the proxy runs.
    """

    async def __call__(self, connection: HTTPConnection, /) -> Identity | None:
        client = connection.client
        if client is None or not is_loopback(client.host):
            return None
        if any(name in connection.headers for name in HANDED_ON):
            return None
        return Identity("local")


class Tokens:
    """Secrets, each with the role it stands for; in a header or a cookie."""

    def __init__(self, roles: Mapping[str, str | None]) -> None:
        for token in roles:
            if len(token) < SHORTEST_TOKEN:
                raise BadConfiguration(
                    f"a token has fewer than {SHORTEST_TOKEN} characters\n"
                    "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
        self._identities = {
            digest(token): Identity(role or "token", role, token=digest(token).hex())
            for token, role in roles.items()
        }
        self._cookies = {digest(cookie_for(token)): digest(token) for token in roles}

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """Lines `token` or `token role`."""
        roles = dict(words(path))
        if not roles:
            raise BadConfiguration(
                f"{path} has no token\n"
                f"python3 -c 'import secrets; print(secrets.token_hex())' > {path}"
            )
        return cls(roles)

    def cookie(self, token: str) -> str | None:
        """Return the cookie that stands for the token; None for a wrong token."""
        return cookie_for(token) if digest(token) in self._identities else None

    async def __call__(self, connection: HTTPConnection, /) -> Identity | None:
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = self._identities.get(digest(token.strip()))
            return replace(found, bearer=True) if found else None
        kept = self._cookies.get(digest(connection.cookies.get(COOKIE, "")))
        return replace(self._identities[kept], signed_in=True) if kept else None


class ProxyUser:
    """A reverse proxy has authenticated the user and names them in a header."""

    def __init__(
        self,
        header: str,
        *,
        trusted: Sequence[str] = ("127.0.0.1", "::1"),
        roles: Mapping[str, str | None] | None = None,
    ) -> None:
        self._header = header
        self._roles = roles
        for role in (roles or {}).values():
            check_role(role)
        try:
            self._trusted = [ipaddress.ip_network(each) for each in trusted]
        except ValueError as error:
            raise BadConfiguration(
                f"{error}\nname the proxy by its address or network: 10.0.0.0/8"
            ) from error

    async def __call__(self, connection: HTTPConnection, /) -> Identity | None:
        # Sent twice, one of them may be the client's own.
        named = connection.headers.getlist(self._header)
        user = named[0].strip() if len(named) == 1 else ""
        if not user or not self._is_trusted(connection):
            return None
        if self._roles is None:
            return Identity(user, by_header=True)
        if user not in self._roles:
            return None
        return Identity(user, self._roles[user], by_header=True)

    def _is_trusted(self, connection: HTTPConnection) -> bool:
        host = address_of(connection.client.host if connection.client else "")
        return host is not None and any(host in network for network in self._trusted)


class FirstOf:
    """Several ways to authenticate; the first that knows the user counts."""

    def __init__(self, *ways: Authenticator) -> None:
        self._ways = ways

    async def __call__(self, connection: HTTPConnection, /) -> Identity | None:
        for way in self._ways:
            found = await way(connection)
            if found is not None:
                return found
        return None


def digest(text: str) -> bytes:
    """Looked up instead of the secret itself, so that timing reveals nothing."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def cookie_for(token: str) -> str:
    """Not the token: a cookie that leaks cannot be sent as one."""
    return hmac.new(token.encode(), b"pulse web cookie", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    address = address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for what is no address. A socket for both families maps IPv4 into IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address
