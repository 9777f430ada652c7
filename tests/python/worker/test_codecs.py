"""Values become JSON by their type, and values again by annotation."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest

from pulse import codecs, errors
from pulse.options import to_json


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    at: date


@dataclass
class Line:
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    id: uuid.UUID
    lines: list[Line]
    parent: Order | None = None


class Customer(pydantic.BaseModel):
    name: str
    since: datetime


class Address(pydantic.BaseModel):
    """Other names than its fields have, and what may not come back."""

    model_config = pydantic.ConfigDict(extra="forbid")
    zip_code: str = pydantic.Field(alias="zipCode")
    town: str = pydantic.Field(validation_alias="city", serialization_alias="Town")
    before: list[Address] = []

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.zip_code} {self.town}"


class Event(msgspec.Struct):
    at: datetime
    n: int = 0


class Seen(TypedDict, total=False):
    at: datetime
    by: str


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    held: T


class Level(enum.IntEnum):
    HIGH = 2


CustomerId = NewType("CustomerId", uuid.UUID)
OrderNumber = NewType("OrderNumber", int)

NOW = datetime(2030, 1, 2, 3, 4, 5, 678, timezone.utc)
ID = uuid.UUID(int=7)
HOME = Address.model_validate(
    {"zipCode": "1", "city": "Ulm", "before": [{"zipCode": "2", "city": "Bonn"}]}
)
ORDER = Order(ID, [Line(Decimal("1.50"), {"a"})], Order(ID, []))

VALUES: list[tuple[Any, Any]] = [
    (NOW, datetime),
    (NOW.date(), date),
    (time(1, 2), time),
    (timedelta(seconds=1.5), timedelta),
    (ID, uuid.UUID),
    (Decimal("0.10"), Decimal),
    (Colour.RED, Colour),
    (Point(1, NOW.date()), Point),
    (ORDER, Order),
    (Customer(name="Ada", since=NOW), Customer),
    (HOME, Address),
    (Event(NOW, 3), Event),
    (Seen(at=NOW), Seen),
    (Box(1), Box[int]),
    (CustomerId(ID), CustomerId),
    ({1: NOW}, dict[int, datetime]),
    ({1: 2, 3: 4}, dict[int, int]),
    ({0.5: 1}, dict[float, int]),
    ({Level.HIGH: 1}, dict[Level, int]),
    ({OrderNumber(1): 2}, dict[OrderNumber, int]),
    ([NOW, NOW], list[datetime]),
    ({"a": ORDER}, dict[str, Order]),
    ((NOW, 1), tuple[datetime, int]),
    ((NOW, NOW), tuple[datetime, ...]),
    ({ID}, set[uuid.UUID]),
    (None, Optional[datetime]),  # noqa: UP045
    (NOW, datetime | None),
    ("soon", datetime | str),
    (3, int | datetime),
    (NOW, Annotated[datetime, "when"]),
    ({"a": [1, None]}, Any),
    ("x", Literal["x"]),
]


@pytest.mark.parametrize(
    ("value", "annotation"), VALUES, ids=[str(a)[:40] for _, a in VALUES]
)
def test_a_value_comes_back_as_it_went(value: Any, annotation: Any) -> None:
    stored = json.loads(to_json(value))
    decode = codecs.decoder_of(annotation)
    assert (stored if decode is None else decode(stored)) == value


def test_what_json_has_already_costs_nothing() -> None:
    for annotation in (int, str, dict[str, Any], list[int], str | None, Any):
        assert codecs.decoder_of(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "stored", "problem"),
    [
        (Order, {"id": "x", "lines": []}, "id: badly formed"),
        (
            Order,
            {"id": str(ID), "lines": [{"price": "1"}, {"price": 2}]},
            r"lines\[1\].price: it is text",
        ),
        (dict[str, datetime], {"a": "b"}, "a: Invalid isoformat"),
        (Customer, {"name": "Ada", "since": "x"}, "since: Input should be"),
        (list[Event], [{"at": 1}], r"\[0\]: Expected `datetime`"),
        (Colour, "blue", "'blue' is not a valid Colour"),
        (Order, [], "it is an object in JSON"),
    ],
)
def test_an_error_names_the_field(annotation: Any, stored: Any, problem: str) -> None:
    decode = codecs.decoder_of(annotation)
    assert decode is not None
    with pytest.raises(codecs.FieldError, match=f"^{problem}"):
        codecs.within("", decode, stored)


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        to_json({"order": {"lines": [1, Line(object())]}})  # type: ignore[arg-type]
    assert refused.value.detail == (
        "order.lines[1].price: a object cannot be written as JSON."
    )
    with pytest.raises(errors.InvalidArgument) as refused:
        to_json({"a": [1.0, float("nan")]})
    assert (refused.value.detail or "").startswith("a[1]: ")


def test_a_type_of_ones_own_is_taught() -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    codecs.register(Money, lambda money: money.cents, Money)
    assert to_json({"price": Money(7)}) == '{"price": 7}'
    decode = codecs.decoder_of(list[Money])
    assert decode is not None
    assert [money.cents for money in decode([1, 2])] == [1, 2]
