"""Tasks: payloads by signature, handles with results."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy

import pulse
from pulse import Job, Worker, errors
from tests.conftest import Connect, Database
from tests.python.worker.conftest import Queue, Start

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = datetime(2030, 1, 2, tzinfo=timezone.utc)


@dataclass
class Order:
    id: uuid.UUID
    total: Decimal


@dataclass
class Receipt:
    order: Order
    at: datetime


@pulse.task("bill", lane="money")
def bill(order: Order, at: datetime, *notes: str, factor: int = 1) -> Receipt:
    return Receipt(Order(order.id, order.total * factor), at)


@pulse.task("bill-later")
async def bill_later(job: Job, order: Order) -> Receipt:
    return Receipt(order, NOW)


def job_of(payload: Any, kind: str = "bill") -> Job:
    return Job(lease=1, id=1, lane="default", kind=kind, payload=payload)


ORDER = Order(uuid.UUID(int=7), Decimal("1.10"))


def test_a_handler_need_not_take_the_job() -> None:
    payload = bill.payload(ORDER, NOW, "a", "b", factor=2)
    assert list(payload) == ["order", "at", "notes", "factor"]
    assert bill(ORDER, NOW) == Receipt(ORDER, NOW)
    stored = {
        "order": {"id": str(ORDER.id), "total": "1.10"},
        "at": NOW.isoformat(),
        "notes": ["a"],
        "factor": 2,
    }
    assert bill.run(job_of(stored)) == Receipt(Order(ORDER.id, Decimal("2.20")), NOW)


def test_what_is_the_job() -> None:
    payload = {"name": "Ada"}

    @pulse.task("k")
    def named(job, name):  # type: ignore[no-untyped-def]
        return [job.id, name]

    @pulse.task("k")
    def annotated(run: Job, name: str) -> list[Any]:
        return [run.id, name]

    @pulse.task("k")
    def of_another_type(job: str = "clerk", name: str = "") -> list[Any]:
        return [job, name]

    @pulse.task("k")
    def whole(job: Job) -> Any:
        return job.payload

    assert named.run(job_of(payload)) == [1, "Ada"]
    assert annotated.run(job_of(payload)) == [1, "Ada"]
    assert of_another_type.run(job_of(payload)) == ["clerk", "Ada"]
    assert whole.run(job_of([1])) == [1]
    assert pulse.task("k")(lambda: 7).run(job_of({})) == 7


def test_positional_arguments_are_members_too() -> None:
    @pulse.task("k")
    def only(a: int, /, b: int, *rest: datetime, **more: int) -> list[Any]:
        return [a, b, rest, more]

    assert only.payload(1, 2) == {"a": 1, "b": 2}
    payload = only.payload(1, 2, NOW, z=3)
    assert payload == {"a": 1, "b": 2, "rest": (NOW,), "z": 3}
    stored = {"a": 1, "b": 2, "rest": [NOW.isoformat()], "z": 3}
    with pytest.raises(TypeError):
        only.run(job_of({"b": 2}))
    assert only.run(job_of({"a": 1, "b": 2})) == [1, 2, (), {}]
    assert only.run(job_of(stored)) == [1, 2, (NOW,), {"z": 3}]


def test_a_payload_that_does_not_fit_names_the_field() -> None:
    stored = {"order": {"id": str(ORDER.id), "total": 3}, "at": NOW.isoformat()}
    with pytest.raises(TypeError, match=r"does not fit: order\.total: it is text"):
        bill.run(job_of(stored))


def test_arguments_that_do_not_fit_say_what_enqueue_takes(connect: Connect) -> None:
    says = r"missing a required argument: 'at'.*enqueue\(connection, order, at, \*notes"
    enqueue: Any = bill.enqueue
    for wrong in (("a@b.c", ORDER), (connect(), ORDER)):
        with pytest.raises(TypeError, match=says):
            enqueue(*wrong)


def test_a_decorator_without_its_kind_is_refused_at_once() -> None:
    for decorate in (pulse.task, Worker().handle):
        with pytest.raises(
            TypeError, match=r'the kind comes first: @.*\("send-email"\)'
        ):
            decorate(lambda job: None)  # type: ignore[call-overload]


def test_a_name_that_only_type_checkers_import_is_no_problem() -> None:
    @pulse.task("k")
    def of(values: Sequence[int], at: datetime) -> list[Any]:
        return [values, at]

    stored = {"values": [1], "at": NOW.isoformat()}
    assert of.run(job_of(stored)) == [[1], NOW]


def test_a_handle_waits_for_a_typed_result(queue: Queue, start: Start) -> None:
    start(
        Worker(queue.db.dsn, lanes={"money": 1, "default": 1}, tasks=[bill, bill_later])
    )
    receipt = Receipt(ORDER, NOW)
    with pulse.Client(queue.db.dsn) as client:
        assert bill.enqueue(client, ORDER, NOW).result(20) == receipt
        assert bill_later.enqueue(client, ORDER).result(20) == receipt
    with queue.db.connect(autocommit=False) as connection:
        handle = bill.enqueue(connection, ORDER, NOW)
        connection.commit()
        assert handle.result(20) == receipt

    async def main() -> Receipt:
        async with pulse.AsyncClient(queue.db.dsn) as client:
            assert await (await bill.enqueue(client, ORDER, NOW)).result(20) == receipt
        connection = await psycopg.AsyncConnection.connect(
            queue.db.dsn, autocommit=True
        )
        async with connection:
            handle = await bill_later.enqueue(connection, ORDER)
            return await handle.result(20)

    assert asyncio.run(main()) == receipt


def test_a_result_of_another_shape_says_so(connect: Connect) -> None:
    connection = connect()
    handle = bill.enqueue(connection, ORDER, NOW)
    connection.execute("SELECT pulse.complete(lease, '{\"order\": 1}') "
                       "FROM pulse.claim_batch('w', 'money')")  # fmt: skip
    with pytest.raises(errors.InvalidArgument, match="is not what its task says") as no:
        handle.result(1)
    assert (no.value.detail or "").startswith("order: it is an object")


def test_a_handle_says_whether_the_job_is_new(db: Database, connect: Connect) -> None:
    connection = connect()
    once = bill.using(unique_key="u", expires_in="1 h", tags=["a"], headers={"n": 1})
    first = once.enqueue(connection, ORDER, NOW)
    again = once.enqueue(connection, ORDER, NOW)
    assert (first.new, again.new, first.id) == (True, False, again.id)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=db.connect)
    with engine.connect() as other:
        assert once.enqueue(other, ORDER, NOW).new is False
        new = bill.using(headers={"n": 2}, delay=60).enqueue(other, ORDER, NOW)
        assert new.new is True
        other.commit()
    engine.dispose()
    row = connection.execute(
        "SELECT headers, state, payload -> 'order' ->> 'total' FROM pulse.jobs"
        " WHERE job_id = %s",
        [new.id],
    ).fetchone()
    assert row == ({"n": 2}, "scheduled", "1.10")
    newest = once.using(on_conflict="cancel").enqueue(connection, ORDER, NOW)
    assert newest.new is True
