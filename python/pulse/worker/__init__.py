"""The worker. What a job passes through, in six modules:

    coordinator   a cycle: reports what ended, claims for the free slots (slots.py)
    exchange      one call of pulse.exchange (statement.py) and its answer (answer.py)
    claims        the rows of the answer become runs
    run           one claimed job in this process, in its slot
    executors     call the handler: on the event loop, in a thread or a process
    outcomes      what it returned or raised, as the next cycle reports it

Beside them: heartbeat keeps the leases, listener wakes the coordinator, connection and
connector reach the server, shutdown ends it all. With several databases there is a
fleet of coordinators, and their slots are shares of one budget.
"""

from pulse.worker.worker import Worker

__all__ = ["Worker"]
