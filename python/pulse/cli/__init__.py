"""The command `pulse`.

command.py has the entry point. Each verb is a function in the module of its subject; it
gets a Session (session.py), runs statements of pulse.sql and cli/queries.py, and prints
tables (show.py) or JSON.
"""

from pulse.cli.command import main

__all__ = ["main"]
