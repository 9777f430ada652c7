"""Backstops against a client that stalls inside a transaction.

The server ends such a session, and its locks are then free for others.
"""

from typing import Final

IDLE_LIMIT: Final = "5s"
"""How long a transaction may stay open without a statement."""

LIMIT_IDLE: Final = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LIMIT}'"

UNREAD_LIMIT: Final = "10s"
"""How long a client may leave an answer unread that its socket cannot hold.

It counts over TCP alone, as tcp_user_timeout. The server commits a statement after it
has sent the last row, so an unread answer keeps the locks of a claim.
"""
