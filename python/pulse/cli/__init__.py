"""The command `pulse`."""

from pulse.cli.command import main

__all__ = ["main"]
