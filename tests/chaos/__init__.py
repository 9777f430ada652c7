"""Faults on purpose: real workers, a real cluster, and a checker of the history."""
