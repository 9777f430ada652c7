"""What clients may send, as the OpenAPI document describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    model_validator,
)

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Reason = Annotated[str, StringConstraints(max_length=10_000)]
Priority = Annotated[int, Field(ge=-(2**31) + 1, le=2**31 - 1)]
# Seconds, or words as PostgreSQL reads them: "90 seconds", "1 day".
Duration = (
    Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
    | Annotated[str, StringConstraints(min_length=1, max_length=100)]
)
# Starts in a period; 0 is no limit.
Rate = Annotated[int, Field(ge=0, le=1_000_000)]
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
    max_slots: Annotated[int, Field(ge=0, le=10_000)] | None = None
    max_batch: Annotated[int, Field(ge=1, le=10_000)] | None = None
    poll_interval: Duration | None = None
    lease_for: Duration | None = None
    max_runtime: Duration | None = None
    retain_completed: Duration | None = None
    retain_cancelled: Duration | None = None
    retain_dead: Duration | None = None
    cancel_grace: Duration | None = None
    enabled: bool | None = None
    fair: bool | None = None
    group_slots: Annotated[int, Field(ge=0, le=10_000)] | None = None
    in_order: bool | None = None
    rate: Rate | None = None
    rate_per: Duration | None = None
    group_rate: Rate | None = None
    group_rate_per: Duration | None = None


class GroupSettings(WithReason):
    lane: Name
    group_key: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    max_slots: Annotated[int, Field(ge=0, le=10_000)] | None = None
    rate: Rate | None = None
    rate_per: Duration | None = None
    enabled: bool | None = None


class KindSettings(WithReason):
    lane: Name | None = None
    priority: Priority | None = None
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    backoff: Literal["quadratic", "exponential", "fixed", "none"] | None = None
    backoff_base: Duration | None = None
    backoff_cap: Duration | None = None
    backoff_jitter: Annotated[float, Field(ge=0, le=1)] | None = None
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
    catch_up: Literal["skip", "last", "all"] = "skip"
    catch_up_window: Duration = "1 day"
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    unique_key: Annotated[str, StringConstraints(max_length=1000)] | None = None
    unique_for: Duration | None = None
    group_key: Annotated[str, StringConstraints(max_length=1000)] | None = None
    requires_approval: bool | None = None
    tags: Annotated[list[Name], Field(max_length=100)] | None = None
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


class Bulk(WithReason):
    verb: Literal[
        "cancel",
        "retry",
        "reprioritize",
        "move",
        "run_now",
        "reschedule",
        "rerun",
        "discard",
        "approve",
        "reject",
    ]
    filter: dict[str, Any]
    dry_run: bool = True
    max_jobs: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    priority: Priority | None = None
    lane: Name | None = None
    run_at: Moment | None = None
    force: bool = False

    @model_validator(mode="after")
    def has_what_its_verb_needs(self) -> Bulk:
        if self.verb == "reprioritize" and self.priority is None:
            raise ValueError("reprioritize needs priority")
        if self.verb == "move" and self.lane is None:
            raise ValueError("move needs lane")
        if self.verb == "reschedule" and self.run_at is None:
            raise ValueError("reschedule needs run_at")
        return self
