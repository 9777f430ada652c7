"""What must go on while a fault makes it hard: ticks, claims, clean answers."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.history import Record
from tests.chaos.invariants import Invariant

# What pulse says to a caller; a cast, a name, or a limit of PostgreSQL's parsers.
CLEAN = ("PU0", "PU1", "22", "42", "54001")


class UpkeepGoesOn(Invariant):
    """Ticks and claims go on under time limits, open transactions and clock steps."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__()
        for record in records:
            if record["what"] != "fault" or "waited" not in record:
                continue
            self.counted["waits for ticks and claims"] += 1
            for what in record["missed"]:
                self.violated(
                    f"no {what} was committed during {record['waited']:.1f} s of"
                    f" {record['name']} ({record['detail']})"
                )


class HostileValuesAreAnswered(Invariant):
    """A hostile value is refused with a clean code, or is small enough to be kept."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__()
        for record in records:
            if record["what"] != "hostile":
                continue
            code, sort = record["code"], record["sort"]
            self.counted[f"hostile values {'refused' if code else 'kept'}"] += 1
            if code and not code.startswith(CLEAN):
                self.violated(f"{sort} was refused as {code}: {record['error']}")
            if not code and record["refuse"]:
                self.violated(f"{sort} was taken")
