"""Several databases: a page of all, and below node/N/ the whole page of each.

Every node has the app of one database, unchanged; a path that names a job goes to the
node in its id. The pages of all nodes ask them at the same time. None is waited for
long: a node that does not answer is shown as such, beside the answers of the others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from pulse import errors
from pulse.ids import node_label, node_of
from pulse.nodes import require_own_number
from pulse.sql import producer
from pulse.web.access.login import NODE, route_path
from pulse.web.database import Session, first
from pulse.web.problems import Problem, from_exception

if TYPE_CHECKING:
    from fastapi import FastAPI

PATIENCE = 3.0
OF_A_JOB = re.compile(r"/admin/workers/jobs/(\d{1,19})(?=/|$)")


@dataclass(eq=False)
class Node:
    """One of the databases, and what is known of it from its last answer."""

    dsn: str
    app: FastAPI
    number: int | None = None
    asking: set[asyncio.Task[Any]] = field(default_factory=set)
    """Questions that it has not answered yet."""
    silent: bool = False
    """A question was not answered in time: later ones are not waited for."""

    @property
    def place(self) -> str:
        return node_label(self.dsn)


@dataclass(frozen=True)
class Answer:
    """The answer of a node, or the reason why there is none."""

    node: Node
    state: str | None = None
    found: Any = None
    problem: str | None = None
    hint: str | None = None


class Fleet:
    def __init__(self, members: Sequence[Node]) -> None:
        self.nodes = members

    def has(self, number: int) -> Node | None:
        return next((node for node in self.nodes if node.number == number), None)

    async def ask(
        self, role: str | None, read: Callable[[Session], Awaitable[Any]]
    ) -> list[Answer]:
        """All of them, in their order; those whose number is another's are left out."""
        asked = {node: self._begin(node, role, read) for node in self.nodes}
        expected = [task for node, task in asked.items() if task and not node.silent]
        if expected:
            await asyncio.wait(expected, timeout=PATIENCE)
        answers = []
        places: dict[int, str] = {}
        for node, task in asked.items():
            answer = self._answer(node, task)
            if answer.problem is None:
                answer = checked(answer, places)
            answers.append(answer)
        return answers

    def _begin(
        self, node: Node, role: str | None, read: Callable[[Session], Awaitable[Any]]
    ) -> asyncio.Task[Any] | None:
        if node.silent and node.asking:
            return None

        async def ask() -> Any:
            try:
                async with node.app.state.database.session(role, read_only=True) as db:
                    own = first(await db.one(producer.NODE))
                    return own, await read(db)
            except Exception as error:
                return error

        def answered(task: asyncio.Task[Any]) -> None:
            node.asking.discard(task)
            node.silent = False

        task = asyncio.create_task(ask(), name=f"pulse web asks {node.place}")
        node.asking.add(task)
        task.add_done_callback(answered)
        return task

    def _answer(self, node: Node, task: asyncio.Task[Any] | None) -> Answer:
        if task is None or not task.done():
            node.silent = True
            return Answer(node, problem=f"no answer within {PATIENCE:.0f} seconds")
        answer = task.result()
        if isinstance(answer, Exception):
            problem = from_exception(answer)
            if problem is None:
                raise answer
            words = ": ".join(filter(None, (problem.title, problem.detail)))
            return Answer(node, problem=words, hint=problem.hint)
        own, found = answer
        node.number = own["node"]
        return Answer(node, own["node_state"], found)


def checked(answer: Answer, places: dict[int, str]) -> Answer:
    """Return the answer, or one with the problem of the node's number."""
    node, number = answer.node, answer.node.number
    assert number is not None
    try:
        require_own_number(node.place, number, str(answer.state), places)
    except errors.NodeRefused as error:
        node.number = None
        return Answer(node, answer.state, problem=error.message, hint=error.hint)
    places[number] = node.place
    return answer


class ToNodes:
    """Sends what belongs to one node to its app."""

    def __init__(self, app: ASGIApp, *, fleet: Fleet) -> None:
        self._app = app
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        if named := NODE.match(path):
            below = scope.get("root_path", "") + named[0]
            node = await self._having(int(named[1]))
            await node.app({**scope, "root_path": below}, receive, send)
        elif named := OF_A_JOB.match(path):
            node = await self._having(node_of(int(named[1])))
            await node.app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _having(self, number: int) -> Node:
        found = self._fleet.has(number)
        if found is None:
            # The node was not queried yet, or it has another number now.
            await self._fleet.ask(None, no_query)
            found = self._fleet.has(number)
        if found is None:
            raise Problem(
                404,
                f"no node {number} answers",
                "None of the databases of this page has that number.",
                hint="pulse web --dsn … once for each database",
            )
        return found


async def no_query(_: Session) -> None:
    """Only its number is asked for."""


class ClosableGroup:
    """Hubs or databases of all nodes, closed as one."""

    def __init__(self, members: Sequence[Any]) -> None:
        self._members = members

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._members))
