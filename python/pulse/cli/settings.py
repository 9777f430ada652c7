"""Settings of lanes and kinds, access, retention by hand, and the audit.

Each command calls one verb of pulse. An option that is not given changes nothing.
"""

import json
from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from pulse import verbs
from pulse.cli import queries, show
from pulse.cli.session import Session, with_session
from pulse.sql import operator

LEVELS = verbs.choices("grant_access", "access")
INTERVAL = "INTERVAL"

# Option -> metavar, or the type of click's, and help.
LANE: dict[str, tuple[Any, str]] = {
    "max_slots": (int, "Running jobs at most; 0 is no limit."),
    "max_batch": (int, "Jobs in one claim at most."),
    "poll_interval": (INTERVAL, "How often workers look."),
    "lease_for": (INTERVAL, "How long a lease lasts without a heartbeat."),
    "max_runtime": (INTERVAL, "How long a run may take; 0 is no limit."),
    "retain_completed": (INTERVAL, "How long completed jobs are kept."),
    "retain_cancelled": (INTERVAL, "How long cancelled jobs are kept."),
    "retain_dead": (INTERVAL, "How long dead jobs are kept."),
    "cancel_grace": (INTERVAL, "How long a run has to stop after a cancel."),
    "enabled": (bool, "Whether it may be claimed from."),
    "fair": (bool, "Whether its groups take turns."),
    "group_slots": (int, "Running jobs of one group at most; 0 is no limit."),
    "in_order": (bool, "Whether a group waits for a job that is retried."),
    "rate": (int, "Starts in any window of --rate-per; 0 is no limit."),
    "rate_per": (INTERVAL, "100 ms to 1 day."),
    "group_rate": (int, "The same for each of its groups."),
    "group_rate_per": (INTERVAL, "100 ms to 1 day."),
}
KIND: dict[str, tuple[Any, str]] = {
    "lane": (str, "Where its jobs go."),
    "priority": (int, "Higher runs first."),
    "max_attempts": (int, "How often a job may be tried."),
    "backoff": (
        click.Choice(verbs.choices("set_kind", "backoff")),
        "How long a failed job waits.",
    ),
    "backoff_base": (INTERVAL, "After the first failure."),
    "backoff_cap": (INTERVAL, "At most."),
    "backoff_jitter": (float, "0 to 1."),
    "lease_for": (INTERVAL, "How long a lease lasts without a heartbeat."),
    "max_runtime": (INTERVAL, "How long a run may take; 0 is no limit."),
    "requires_approval": (bool, "Whether its jobs wait for an approver."),
    "approval_expiry": (INTERVAL, "How long they wait."),
    "max_delay": (INTERVAL, "How far replace and follow put one off; 0 is no limit."),
    "rate": (int, "Starts in any window of --rate-per, in all lanes; 0 is no limit."),
    "rate_per": (INTERVAL, "100 ms to 1 day."),
}

GROUP: dict[str, tuple[Any, str]] = {
    "max_slots": (int, "Running jobs of this group; 0 is that of the lane."),
    "rate": (int, "Starts in any window of --rate-per; 0 is that of the lane."),
    "rate_per": (INTERVAL, "100 ms to 1 day."),
    "enabled": (bool, "Whether it may be claimed from."),
}


def settings(known: dict[str, tuple[Any, str]]) -> Callable[..., Any]:
    """Make an option for each setting; a setting that is not given stays as it is."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, text) in reversed(known.items()):
            named: Any = {"metavar": kind} if kind is INTERVAL else {"type": kind}
            function = click.option(
                f"--{name.replace('_', '-')}", name, help=text, **named
            )(function)
        return function

    return add


def change(
    session: Session,
    query: Any,
    name: str,
    given: dict[str, Any],
    named: dict[str, str] | None = None,
) -> None:
    changed = {k: v for k, v in given.items() if v is not None and k != "reason"}
    if not changed:
        raise click.UsageError("Give at least one setting; --help lists them.")
    session.one(query, {**(named or {"name": name}), **given})
    if session.as_json:
        return session.print_json({"name": name, "changed": changed})
    words = ", ".join(f"{k} {v}" for k, v in changed.items())
    return session.say(f"{name}  {words}")


@click.command("set-lane")
@click.argument("name", metavar="LANE")
@settings(LANE)
@click.option("--reason", help="Written into the audit.")
@with_session
def set_lane(session: Session, name: str, **given: Any) -> None:
    """Change settings of a lane, from the next claim on."""
    change(session, queries.SET_LANE, name, given)


@click.command("set-kind")
@click.argument("name", metavar="KIND")
@settings(KIND)
@click.option("--reason", help="Written into the audit.")
@with_session
def set_kind(session: Session, name: str, **given: Any) -> None:
    """Change settings of a kind, for jobs enqueued afterwards."""
    change(session, queries.SET_KIND, name, given)


@click.command("set-group")
@click.argument("lane")
@click.argument("group_key", metavar="GROUP")
@settings(GROUP)
@click.option("--reason", help="Written into the audit.")
@with_session
def set_group(session: Session, lane: str, group_key: str, **given: Any) -> None:
    """Make an exception for one group of a lane, or stop it."""
    named = {"lane": lane, "group_key": group_key}
    change(session, operator.SET_GROUP, f"{lane} {group_key}", given, named)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("-n", "--max-jobs", default=10_000, show_default=True)
@with_session
def prune(session: Session, dry_run: bool, max_jobs: int) -> None:
    """Remove finished jobs past their retention now."""
    row = session.one(queries.PRUNE, {"dry_run": dry_run, "max_jobs": max_jobs})
    if session.as_json:
        return session.print_json({**row, "dry_run": dry_run})
    return session.say(
        f"{show.jobs(row['removed'])} {'would go' if dry_run else 'removed'}"
    )


@click.command()
@click.argument("role")
@click.argument("access", type=click.Choice(LEVELS))
@with_session
def grant(session: Session, role: str, access: str) -> None:
    """Give a role an access level."""
    session.one(queries.GRANT, {"role": role, "access": access})
    if session.as_json:
        return session.print_json({"role": role, "access": access})
    return session.say(f"{role}  {access}")


@click.command()
@click.argument("role")
@click.argument("access", type=click.Choice(LEVELS))
@with_session
def revoke(session: Session, role: str, access: str) -> None:
    """Take back what grant gave a role."""
    session.one(queries.REVOKE, {"role": role, "access": access})
    if session.as_json:
        return session.print_json({"role": role, "access": access, "revoked": True})
    return session.say(f"{role}  no longer {access}")


@click.command()
@click.option("--job", type=int, help="What was done to this job.")
@click.option("--lane", help="What was done to this lane.")
@click.option("--verb", help="Only calls of this function: cancel, set_lane, …")
@click.option("--who", help="Only by this role.")
@click.option("-n", "--limit", default=20, show_default=True)
@click.option("--before", type=int, metavar="ENTRY", help="The next page.")
@with_session
def audit(session: Session, limit: int, **wanted: Any) -> None:
    """What operators did, newest first, with who, when and why."""
    rows = session.rows(queries.AUDIT, {**wanted, "limit": limit})
    if session.as_json:
        return session.print_json(rows)
    if not rows:
        return session.say("Nothing.")
    table = show.Grid(
        *("ENTRY", "AT", "WHO", "VERB", "JOB", "LANE", "WHAT", "REASON"),
        right=("ENTRY", "JOB"),
        cut=("WHO", "LANE", "WHAT", "REASON"),
    )
    for row in rows:
        table.add(
            *(row["entry"], show.moment(row["at"]), row["who"], row["verb"]),
            *(row["job_id"] or "-", row["lane"] or "-"),
            Text(what(row["before"], row["after"])),
            row["reason"] or "",
        )
    session.out.print(table)
    if len(rows) == limit:
        last = rows[-1]["entry"]
        session.say(f"The newest {limit}; older ones with --before {last}.", "dim")
    return None


def what(before: Any, after: Any) -> str:
    """Return the differences between two objects of the audit."""
    old, new = before or {}, after or {}
    words = []
    for name in {**old, **new}:
        was, value = (
            json.dumps(each.get(name), ensure_ascii=False) for each in (old, new)
        )
        if name not in old or name == "filter":
            words.append(f"{name} {was if name in old else value}")
        elif was != value:
            words.append(f"{name} {was} > {value if name in new else '-'}")
    return show.safe(", ".join(words))
