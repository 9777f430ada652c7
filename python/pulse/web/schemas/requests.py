"""The bodies of requests, as the OpenAPI document describes them.

FastAPI checks each request against them. The routes pass the values to a statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    StringConstraints,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from pulse import verbs


# Limits are those of pulse.verbs(). Where the database counts bytes, the characters of
# a text are a first look; the database has the last word.
def span(verb: str, argument: str) -> FieldInfo:
    """A number between the limits of an argument."""
    least, most = verbs.limits(verb, argument)
    return cast(FieldInfo, Field(ge=least, le=most))


def whole(value: object) -> object:
    """1.0 as 1: JSON has no other number for it, and its schema calls both integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)

# PostgreSQL compares intervals by months of 30 days.
SECONDS = {"ms": 0.001, "millisecond": 0.001, "second": 1, "hour": 3600, "day": 86400}
SECONDS["year"] = 12 * 30 * SECONDS["day"]


def seconds(limit: str) -> float:
    """A limit of pulse.verbs(), such as "10 years" or "0"."""
    number, _, unit = limit.partition(" ")
    return (
        float(number) * SECONDS[unit if unit == "ms" else unit.removesuffix("s")]
        if unit
        else 0.0
    )


@dataclass(frozen=True)
class DurationOf:
    """Seconds between the limits of an argument, or words as PostgreSQL reads them."""

    verb: str
    argument: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        least, most = map(seconds, verbs.limits(self.verb, self.argument))
        return core_schema.union_schema(
            [
                core_schema.float_schema(ge=least, le=most, allow_inf_nan=False),
                core_schema.str_schema(min_length=1, max_length=100),
            ]
        )


def length(verb: str, argument: str) -> StringConstraints:
    """A text as long as an argument may be."""
    least, most = verbs.limits(verb, argument)
    return StringConstraints(min_length=least, max_length=most)


@dataclass(frozen=True)
class OneOf:
    """A text that is one of a few words."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.words))


Name = Annotated[str, length("set_lane", "name")]
Reason = Annotated[str, length("cancel", "reason")]
Priority = Annotated[int, span("reprioritize", "priority"), WHOLE]
# Starts in a period; 0 is no limit.
Rate = Annotated[int, span("set_lane", "rate"), WHOLE]
# ISO 8601, with its zone.
Moment = Annotated[AwareDatetime, Strict(False)]


DURATIONS = {
    *("poll_interval", "lease_for", "max_runtime", "cancel_grace", "unique_for"),
    *("retain_completed", "retain_cancelled", "retain_dead", "every"),
    *("backoff_base", "backoff_cap", "approval_expiry", "catch_up_window"),
    *("expires_in", "max_delay", "rate_per", "group_rate_per"),
}


def interval(value: float | str | None) -> str | None:
    """As PostgreSQL reads it."""
    return value if value is None or isinstance(value, str) else f"{value:f} seconds"


def values(body: BaseModel) -> dict[str, Any]:
    """Return the values for a statement, durations as PostgreSQL reads them."""
    return {
        name: interval(value) if name in DURATIONS else value
        for name, value in body.model_dump().items()
    }


class RequestBody(BaseModel):
    # A member that is misspelt or of another type is refused, not guessed at.
    model_config = ConfigDict(extra="forbid", strict=True)


class WithReason(RequestBody):
    reason: Reason | None = None


NO_REASON = WithReason()


class LaneSettings(WithReason):
    max_slots: Annotated[int, span("set_lane", "max_slots"), WHOLE] | None = None
    max_batch: Annotated[int, span("set_lane", "max_batch"), WHOLE] | None = None
    poll_interval: (
        Annotated[float | str, DurationOf("set_lane", "poll_interval")] | None
    ) = None
    lease_for: Annotated[float | str, DurationOf("set_lane", "lease_for")] | None = None
    max_runtime: (
        Annotated[float | str, DurationOf("set_lane", "max_runtime")] | None
    ) = None
    retain_completed: (
        Annotated[float | str, DurationOf("set_lane", "retain_completed")] | None
    ) = None
    retain_cancelled: (
        Annotated[float | str, DurationOf("set_lane", "retain_cancelled")] | None
    ) = None
    retain_dead: (
        Annotated[float | str, DurationOf("set_lane", "retain_dead")] | None
    ) = None
    cancel_grace: (
        Annotated[float | str, DurationOf("set_lane", "cancel_grace")] | None
    ) = None
    enabled: bool | None = None
    fair: bool | None = None
    group_slots: Annotated[int, span("set_lane", "group_slots"), WHOLE] | None = None
    in_order: bool | None = None
    rate: Rate | None = None
    rate_per: Annotated[float | str, DurationOf("set_lane", "rate_per")] | None = None
    group_rate: Rate | None = None
    group_rate_per: (
        Annotated[float | str, DurationOf("set_lane", "group_rate_per")] | None
    ) = None


class GroupSettings(WithReason):
    lane: Name
    group_key: Annotated[str, length("set_group", "group_key")]
    max_slots: Annotated[int, span("set_group", "max_slots"), WHOLE] | None = None
    rate: Rate | None = None
    rate_per: Annotated[float | str, DurationOf("set_group", "rate_per")] | None = None
    enabled: bool | None = None


class KindSettings(WithReason):
    lane: Name | None = None
    priority: Priority | None = None
    max_attempts: Annotated[int, span("set_kind", "max_attempts"), WHOLE] | None = None
    backoff: Annotated[str, OneOf(verbs.choices("set_kind", "backoff"))] | None = None
    backoff_base: (
        Annotated[float | str, DurationOf("set_kind", "backoff_base")] | None
    ) = None
    backoff_cap: (
        Annotated[float | str, DurationOf("set_kind", "backoff_cap")] | None
    ) = None
    backoff_jitter: Annotated[float, span("set_kind", "backoff_jitter")] | None = None
    lease_for: Annotated[float | str, DurationOf("set_kind", "lease_for")] | None = None
    max_runtime: (
        Annotated[float | str, DurationOf("set_kind", "max_runtime")] | None
    ) = None
    requires_approval: bool | None = None
    approval_expiry: (
        Annotated[float | str, DurationOf("set_kind", "approval_expiry")] | None
    ) = None
    max_delay: Annotated[float | str, DurationOf("set_kind", "max_delay")] | None = None
    rate: Rate | None = None
    rate_per: Annotated[float | str, DurationOf("set_kind", "rate_per")] | None = None


class NewSchedule(RequestBody):
    """As pulse.schedule takes it: exactly one of cron, every and at."""

    kind: Name
    payload: dict[str, Any] | list[Any] = {}
    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    every: Annotated[float | str, DurationOf("schedule", "every")] | None = None
    at: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "UTC"
    lane: Name | None = None
    priority: Priority | None = None
    catch_up: Annotated[str, OneOf(verbs.choices("schedule", "catch_up"))] = "skip"
    catch_up_window: Annotated[
        float | str, DurationOf("schedule", "catch_up_window")
    ] = "1 day"
    max_attempts: Annotated[int, span("schedule", "max_attempts"), WHOLE] | None = None
    unique_key: Annotated[str, length("schedule", "unique_key")] | None = None
    unique_for: Annotated[float | str, DurationOf("schedule", "unique_for")] | None = (
        None
    )
    group_key: Annotated[str, length("schedule", "group_key")] | None = None
    requires_approval: bool | None = None
    tags: list[str] | None = None
    max_runtime: (
        Annotated[float | str, DurationOf("schedule", "max_runtime")] | None
    ) = None
    headers: dict[str, Any] | None = None
    expires_in: Annotated[float | str, DurationOf("schedule", "expires_in")] | None = (
        None
    )


class Drain(WithReason):
    # Also a lane that nothing has named yet.
    new: bool = False


NO_DRAIN = Drain()


class Resume(WithReason):
    holder: Name
    lane: Name | None = None


class Pause(Drain, Resume):
    pass


class Cancel(WithReason):
    force: bool = False


NO_FORCE = Cancel()


class Move(WithReason):
    lane: Name


class Reschedule(WithReason):
    run_at: Moment


class NewPriority(WithReason):
    priority: Priority


# The bulk verbs without _where.
BULK = tuple(n.removesuffix("_where") for n in verbs.known() if n.endswith("_where"))


class Bulk(WithReason):
    verb: Annotated[str, OneOf(BULK)]
    filter: dict[str, Any]
    dry_run: bool = True
    max_jobs: Annotated[int, span("cancel_where", "max_jobs"), WHOLE] = 10_000
    priority: Priority | None = None
    lane: Name | None = None
    run_at: Moment | None = None
    force: bool = False

    @model_validator(mode="after")
    def has_what_its_verb_needs(self) -> Bulk:
        for name in verbs.required(f"{self.verb}_where"):
            if getattr(self, name) is None:
                raise ValueError(f"{self.verb} needs {name}")
        return self
