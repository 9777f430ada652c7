"""The command `pulse`."""

from pulse.cli.main import main

__all__ = ["main"]
