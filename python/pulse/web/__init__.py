"""The operator's page and its HTTP API: `pulse web`, or mounted into your own site.

pip install "pgpulse[web]"
"""

from pulse.web.access.auth import Authenticator, Identity, ProxyUser, Tokens
from pulse.web.app import close, create_app

__all__ = ["Authenticator", "Identity", "ProxyUser", "Tokens", "close", "create_app"]
