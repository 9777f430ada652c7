"""What a section fills: a table, goals and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.harness import middle

T = TypeVar("T")


@dataclass
class Goal:
    """A ratio of this run (or a count) that must not be missed."""

    section: str
    name: str
    got: float
    wanted: float
    must: bool = True
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return (
            f"{self.got:7.2f}   goal {sign} {self.wanted:.2f}"
            f"   {'ok' if self.met else 'short'}"
            + ("" if self.must else "   (for information)")
        )


@dataclass
class Section:
    letter: str
    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def goal(self, name: str, ratio: float, wanted: float, must: bool = True) -> None:
        self.goals.append(Goal(self.letter, name, ratio, wanted, must))

    def limit(self, name: str, ratio: float, most: float, must: bool = True) -> None:
        self.goals.append(Goal(self.letter, name, ratio, most, must, at_most=True))


def alternated(names: list[T], rounds: int) -> list[T]:
    """A B C, C B A, A B C: what drifts on the machine hits all of them alike."""
    return [n for r in range(rounds) for n in (names if r % 2 == 0 else names[::-1])]


def spread(values: list[float]) -> list[str]:
    return [f"{middle(values):,.0f}", f"{min(values):,.0f} - {max(values):,.0f}"]
