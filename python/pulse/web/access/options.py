"""The authentication of `pulse web`, from its options, files and environment.

pulse.cli.web calls it before it starts the server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pulse.web.access.auth import Authenticator, FirstOf, ProxyUser, Tokens
from pulse.web.access.files import BadConfiguration, words


def configured(
    *,
    token_file: Path | None = None,
    user_header: str | None = None,
    trusted_proxies: Sequence[str] = (),
    user_roles: Path | None = None,
    allow_hosts: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> tuple[Authenticator | None, Tokens | None]:
    """From options and PULSE_WEB_TOKEN: how to authenticate, and whether by token."""
    tokens: Tokens | None = None
    if token_file is not None:
        tokens = Tokens.from_file(token_file)
    elif environment.get("PULSE_WEB_TOKEN"):
        tokens = Tokens({environment["PULSE_WEB_TOKEN"]: None})
    ways: list[Authenticator] = [tokens] if tokens else []
    if user_header:
        if not allow_hosts:
            raise BadConfiguration(
                "a header is believed only under a host name that is known\n"
                "--allow-host NAME: the name under which people open the proxy"
            )
        roles = dict(words(user_roles, both=True)) if user_roles else None
        trusted = tuple(trusted_proxies) or ("127.0.0.1", "::1")
        ways.append(ProxyUser(user_header, trusted=trusted, roles=roles))
    elif user_roles or trusted_proxies:
        raise BadConfiguration(
            "roles of users and trusted proxies mean nothing without a header\n"
            "--user-header X-Forwarded-User, or the name your proxy uses"
        )
    return (FirstOf(*ways) if ways else None), tokens
