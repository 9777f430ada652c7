"""The worker: read worker.py, then coordinator.py; a job passes through the others."""

from pulse.worker.worker import Worker

__all__ = ["Worker"]
