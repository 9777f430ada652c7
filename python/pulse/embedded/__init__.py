"""A PostgreSQL 18 of one's own, with pulse in it: no root, no packages, no service.

with pulse.embedded.EmbeddedServer() as server:
    psycopg.connect(server.dsn)
"""

from pulse.embedded.binaries import EmbeddedError
from pulse.embedded.server import EmbeddedServer, default_directory, start

__all__ = ["EmbeddedError", "EmbeddedServer", "default_directory", "start"]
