"""The operator's page and its HTTP API: `pulse web`, or mounted into your own site.

pip install "pgpulse[web]"
"""

from pulse.web.app import close, create_app
from pulse.web.auth import Authenticator, Identity, ProxyUser, Tokens

__all__ = ["Authenticator", "Identity", "ProxyUser", "Tokens", "close", "create_app"]
