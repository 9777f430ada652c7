"""drain, pause, resume: stop the claims of lanes, and allow them again.

A pause belongs to its holder. After a resume the command lists the pauses of others.
"""

import time

import click

from pulse.cli import queries, show
from pulse.cli.problems import TOO_LONG, Problem, default_user
from pulse.cli.session import Session, with_session
from pulse.cli.steer import progress_bar
from pulse.sql import operator


def holder_name() -> str:
    user = default_user()
    return "cli" if " " in user else user


def require_known(session: Session, lane: str, or_new: str = "") -> None:
    """A lane works on first mention, so a name with a typo would be one more lane."""
    if not session.one(operator.LANE_IS_KNOWN, {"lane": lane})["known"]:
        raise Problem(
            f"there is no lane {lane}: no job, setting, kind, worker or pause names it",
            remedy=f"pulse lanes{or_new}",
        )


new_option = click.option(
    "--new", is_flag=True, help="Also a lane that nothing has named yet."
)


def scope_of(lane: str | None) -> str:
    return f"lane {lane}" if lane else "everything"


@click.command()
@click.argument("lanes", nargs=-1, required=True, metavar="LANE...")
@click.option("--wait", is_flag=True, help="Wait until none of its jobs runs.")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long to wait.")
@click.option("--reason", help="Shown to everyone who asks why.")
@new_option
@with_session
def drain(
    session: Session,
    lanes: tuple[str, ...],
    wait: bool,
    timeout: float | None,
    reason: str | None,
    new: bool,
) -> None:
    """Claim nothing more from a lane; running jobs finish."""
    if not new:
        for lane in lanes:
            require_known(session, lane, "   (or --new, to drain it before it is used)")
    for lane in lanes:
        values = {"lane": lane, "reason": reason, "new": new}
        changed = session.one(operator.DRAIN, values)["changed"]
        if not session.as_json:
            session.say(f"{lane}  {'drained' if changed else 'was drained already'}")
    left = (
        wait_until_empty(session, lanes, timeout) if wait else running(session, lanes)
    )
    if session.as_json:
        session.print_json([{"lane": k, "running": v} for k, v in left.items()])
    elif wait and not any(left.values()):
        session.say("No job runs. Open again: pulse resume " + " ".join(lanes))
    if wait and any(left.values()):
        raise Problem(
            f"{show.jobs(sum(left.values()))} still running after {timeout:g} s",
            "The lanes stay drained.",
            f"pulse ps --lane {lanes[0]}",
            TOO_LONG,
        )


def running(session: Session, lanes: tuple[str, ...]) -> dict[str, int]:
    rows = {row["lane"]: row["used"] for row in session.rows(queries.LANES)}
    return {lane: rows.get(lane, 0) for lane in lanes}


def wait_until_empty(
    session: Session, lanes: tuple[str, ...], timeout: float | None
) -> dict[str, int]:
    until = None if timeout is None else time.monotonic() + timeout
    left = running(session, lanes)
    total = sum(left.values())
    with progress_bar(session) as bar:
        task = bar.add_task("running jobs end", total=total)
        while any(left.values()):
            if until is not None and time.monotonic() >= until:
                break
            time.sleep(0.2)
            left = running(session, lanes)
            bar.update(task, completed=total - sum(left.values()))
    return left


@click.command()
@click.argument("lane", required=False)
@click.option(
    "--holder", default=holder_name, help="In whose name; default: your user name."
)
@click.option("--reason", help="Shown to everyone who asks why.")
@new_option
@with_session
def pause(
    session: Session,
    lane: str | None,
    holder: str,
    reason: str | None,
    new: bool,
) -> None:
    """Stop all claims, or those of a lane, until resume."""
    if lane is not None and not new:
        require_known(session, lane, "   (or --new, to pause it before it is used)")
    values = {"lane": lane, "holder": holder, "reason": reason, "new": new}
    changed = session.one(operator.PAUSE, values)["changed"]
    if session.as_json:
        done = {"lane": lane, "holder": holder, "changed": changed}
        return session.print_json(done)
    done_now = "paused" if changed else "was paused already"
    return session.say(f"{scope_of(lane)} {done_now} by {holder}")


@click.command()
@click.argument("lane", required=False)
@click.option(
    "--holder", default=holder_name, help="Whose pause to undo; default: your own."
)
@with_session
def resume(session: Session, lane: str | None, holder: str) -> None:
    """Undo drain and pause: of everything, or of a lane."""
    if lane is not None:
        require_known(session, lane)
    values = {"lane": lane, "holder": holder, "reason": None}
    held = {(row["lane"], row["holder"]) for row in session.rows(operator.HOLDS)}
    changed = False
    # resume_lane and resume are only called for a hold that exists.
    if lane is not None and (lane, "drain") in held:
        changed = bool(session.one(operator.RESUME_LANE, values)["changed"])
    if (lane, holder) in held:
        changed |= bool(session.one(operator.RESUME, values)["changed"])
    holds = [row for row in session.rows(operator.HOLDS) if row["lane"] in (None, lane)]
    if session.as_json:
        return session.print_json({"lane": lane, "changed": changed, "holds": holds})
    what = scope_of(lane)
    session.say(f"{what}: {'resumed' if changed else f'no hold of {holder}'}")
    for row in holds:
        scope = f" {row['lane']}" if row["lane"] else ""
        session.say(
            f"  still held by {row['holder']} since {show.moment(row['held_at'])}"
            f"{': ' + row['reason'] if row['reason'] else ''}"
            f"  (pulse resume{scope} --holder {row['holder']})"
        )
    return None
