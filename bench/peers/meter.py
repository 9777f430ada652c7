"""What every subject in Python says about itself: a line of JSON each 20 ms.

Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

import json
import sys
import threading
import time

# Every job of every subject: five keys, 100 bytes; t is when it is enqueued, or 0.
PAYLOAD = {
    "t": 0,
    "to": "ada.lovelace@example.org",
    "subject": "hello",
    "template": "welcome",
    "account": 1234567890,
}


class Meter:
    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = 0.0
        self.latencies: list[float] = []
        threading.Thread(target=self._tell, daemon=True).start()

    def job(self, t: float) -> None:
        """A handler was called; t is when its job was about to be enqueued, or 0."""
        now = time.monotonic()
        if self.count == 0:
            self.first = now
        self.last = now
        self.count += 1
        if t:
            self.latencies.append(now - t)

    def _tell(self) -> None:
        told = -1
        while True:
            time.sleep(0.02)
            if self.count != told:
                told = self.count
                said = [told, self.first, self.last, self.latencies]
                sys.stdout.write(json.dumps(said) + "\n")
                sys.stdout.flush()


def feed(send, jobs: int, every: float) -> None:  # type: ignore[no-untyped-def]
    """Enqueue one job at a time on an idle queue."""
    for _ in range(jobs):
        time.sleep(every)
        send(time.monotonic())
