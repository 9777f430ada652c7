"""What clients may send, as the OpenAPI document describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import (
    AwareDatetime,
    BaseModel,
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
Priority = Annotated[int, span("reprioritize", "priority")]
# Seconds, or words as PostgreSQL reads them: "90 seconds", "1 day".
Duration = (
    Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
    | Annotated[str, StringConstraints(min_length=1, max_length=100)]
)
# Starts in a period; 0 is no limit.
Rate = Annotated[int, span("set_lane", "rate")]
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
    """What a statement is given: durations as PostgreSQL reads them."""
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
    max_slots: Annotated[int, span("set_lane", "max_slots")] | None = None
    max_batch: Annotated[int, span("set_lane", "max_batch")] | None = None
    poll_interval: Duration | None = None
    lease_for: Duration | None = None
    max_runtime: Duration | None = None
    retain_completed: Duration | None = None
    retain_cancelled: Duration | None = None
    retain_dead: Duration | None = None
    cancel_grace: Duration | None = None
    enabled: bool | None = None
    fair: bool | None = None
    group_slots: Annotated[int, span("set_lane", "group_slots")] | None = None
    in_order: bool | None = None
    rate: Rate | None = None
    rate_per: Duration | None = None
    group_rate: Rate | None = None
    group_rate_per: Duration | None = None


class GroupSettings(WithReason):
    lane: Name
    group_key: Annotated[str, length("set_group", "group_key")]
    max_slots: Annotated[int, span("set_group", "max_slots")] | None = None
    rate: Rate | None = None
    rate_per: Duration | None = None
    enabled: bool | None = None


class KindSettings(WithReason):
    lane: Name | None = None
    priority: Priority | None = None
    max_attempts: Annotated[int, span("set_kind", "max_attempts")] | None = None
    backoff: Annotated[str, OneOf(verbs.choices("set_kind", "backoff"))] | None = None
    backoff_base: Duration | None = None
    backoff_cap: Duration | None = None
    backoff_jitter: Annotated[float, span("set_kind", "backoff_jitter")] | None = None
    lease_for: Duration | None = None
    max_runtime: Duration | None = None
    requires_approval: bool | None = None
    approval_expiry: Duration | None = None
    max_delay: Duration | None = None
    rate: Rate | None = None
    rate_per: Duration | None = None


class NewSchedule(RequestBody):
    """As pulse.schedule takes it: exactly one of cron, every and at."""

    kind: Name
    payload: dict[str, Any] | list[Any] = {}
    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    every: Duration | None = None
    at: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "UTC"
    lane: Name | None = None
    priority: Priority | None = None
    catch_up: Annotated[str, OneOf(verbs.choices("schedule", "catch_up"))] = "skip"
    catch_up_window: Duration = "1 day"
    max_attempts: Annotated[int, span("schedule", "max_attempts")] | None = None
    unique_key: Annotated[str, length("schedule", "unique_key")] | None = None
    unique_for: Duration | None = None
    group_key: Annotated[str, length("schedule", "group_key")] | None = None
    requires_approval: bool | None = None
    tags: list[str] | None = None
    max_runtime: Duration | None = None
    headers: dict[str, Any] | None = None
    expires_in: Duration | None = None


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
    max_jobs: Annotated[int, span("cancel_where", "max_jobs")] = 10_000
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
