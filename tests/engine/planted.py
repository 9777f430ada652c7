"""Planted bugs: a change of one function for each promise, which the model must find.

`make model PLANTED=all` plants each and lets the model look for it. test_planted.py
notices when the text of a function has changed.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import psycopg

from tests.mutations.harness import Change, without


class Planted(NamedTuple):
    function: str
    old: str
    new: str
    promise: str
    sorts: tuple[str, ...] = ()
    """The kinds of lane that it breaks, where it does not break all."""
    times: int = 1
    """How often the text is there; every place is changed."""


PLANTED = (
    Planted(
        "pulse.claim_batch",
        "v_lane.max_slots - cardinality(v_roster.leases)",
        "v_lane.max_slots + 1 - cardinality(v_roster.leases)",
        "G9 slots of a lane",
        ("max_slots",),
    ),
    Planted(
        "pulse_internal.write_groups",
        "ELSE coalesce(q.max_slots, (write_groups.lane).group_slots)",
        "ELSE coalesce(q.max_slots, (write_groups.lane).group_slots) + 1",
        "G18 slots of a group",
        ("group_slots",),
    ),
    Planted(
        "pulse_internal.write_groups",
        "THEN coalesce(g.turn, nextval('pulse_internal.version'))",
        "THEN coalesce(g.turn, 1000000 - nextval('pulse_internal.version'))",
        "G19 turns",
        ("fair",),
    ),
    Planted(
        "pulse_internal.release_runs",
        "v_lease.lease, release_runs.verb,\n                v_lease.place",
        "v_lease.lease, release_runs.verb, NULL",
        "G23 a job that is given back keeps its place",
        ("in_order",),
    ),
    Planted(
        "pulse_internal.fail_runs",
        "fail_runs.verb, d.place, CASE WHEN d.place IS NOT NULL THEN d.group_key END",
        "fail_runs.verb, NULL::bigint, NULL::text",
        "G23 a job that is retried keeps its place",
        ("in_order",),
    ),
    Planted(
        "pulse_internal.shift",
        "CASE WHEN v_lane = v_was.lane AND v_rank = v_was.rank THEN v_was.place END",
        "v_was.place",
        "G23 another priority gives the place up",
        ("in_order",),
    ),
    Planted(
        "pulse_internal.spend_quota",
        "(spend_quota.old).starts, spend_quota.n,",
        "(spend_quota.old).starts, spend_quota.n - 1,",
        "G24 rate of a lane",
        ("rate",),
    ),
    Planted(
        "pulse_internal.spend_kinds",
        "k.kind, u.n::integer",
        "k.kind, 0",
        "G24 rate of a kind",
        ("kind_rate",),
    ),
    Planted(
        "pulse_internal.write_groups",
        "g.starts, coalesce(cardinality(s.jobs), 0)",
        "g.starts, 0",
        "G24 rate of a group",
        ("group_rate",),
    ),
    Planted(
        "pulse.claim_batch",
        "WHERE h.lane IN ('', claim_batch.lane)",
        "WHERE h.lane IN (claim_batch.lane)",
        "G10 a pause of all lanes",
    ),
    Planted(
        "pulse.claim_batch",
        "WHERE s.kind = ANY (claim_batch.kinds)",
        "WHERE true",
        "G15 other kinds",
        ("plain",),
    ),
    Planted(
        "pulse_internal.reported_before",
        "AND f.ended_by = reported_before.verb",
        "",
        "G16 the same verb with the same lease",
    ),
    Planted(
        "pulse_internal.release_keys",
        "(k.unique_for IS NULL OR k.follows)",
        "true",
        "G16 unique_for",
    ),
    Planted(
        "pulse_internal.release_keys",
        "(k.unique_for IS NULL OR k.follows)",
        "k.follows",
        "G16 a key is free after its job",
    ),
    Planted(
        "pulse_internal.unblock_dependents",
        "AND b.alone",
        "AND true",
        "G20 not before all upstreams have ended",
    ),
    Planted(
        "pulse_internal.put_after",
        "IF v_foreign <> '{}' THEN",
        "IF false THEN",
        "G20 always after, in every order of commits",
        times=2,
    ),
    Planted(
        "pulse_internal.ended_badly",
        "b.after_failed = 'cancel'",
        "false",
        "T20 cancelled with its upstream",
    ),
    Planted(
        "pulse.save_step",
        "DO NOTHING",
        "DO UPDATE SET result = excluded.result",
        "G21 the first write of a step wins",
    ),
    Planted(
        "pulse.signal",
        "RETURN pulse_internal.deliver_signal(signal.signal, v_owner, 10000)",
        "RETURN 0",
        "G22 a signal wakes what waits for it",
    ),
    Planted(
        "pulse.claim_batch",
        "AND (s.start_by <= v_now AND s.attempts = 0) IS NOT TRUE",
        "",
        "T16 a late job is not handed out",
    ),
    Planted(
        "pulse_internal.expire_page",
        "OR EXISTS (SELECT FROM pulse_internal.blocked AS o WHERE o.job = e.job)",
        "",
        "T16 a blocked job expires",
    ),
    Planted(
        "pulse_internal.expire_approvals",
        "o.expires_at <= v_now",
        "false",
        "T4 an approval expires",
    ),
    Planted(
        "pulse_internal.promote",
        "AND w.rank = v_rank",
        "AND w.rank = v_rank AND w.attempts = 0",
        "T5 a retry joins the line when it is due",
    ),
    Planted(
        "pulse_internal.release_runs",
        "IF v_lease.cancel_by IS NULL THEN",
        "IF true THEN",
        "T12 given back after a cancel request",
    ),
    Planted(
        "pulse_internal.block_again",
        "v_job.failures := 0;",
        "v_job.failures := (block_again.job).failures;",
        "T14 failures start again at 0",
    ),
    Planted(
        "pulse_internal.needed_by",
        "SELECT f.state = 'completed'",
        "SELECT true",
        "T15 the result of an upstream is kept",
    ),
    Planted(
        "pulse_internal.reschedule",
        "was = 'retrying' OR (was = 'ready' AND v_was.failures > 0)",
        "false",
        "T17 a retry stays one at another time",
    ),
    Planted(
        "pulse_internal.fail_runs",
        "WHEN e.cancel_by IS NOT NULL THEN 'cancelled'",
        "WHEN false THEN 'cancelled'",
        "T12 a run that fails after a cancel request",
    ),
    Planted(
        "pulse_internal.inherit_key",
        "VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for)",
        "SELECT v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for WHERE false",
        "R21 a follower gets the key",
    ),
)


def plant(db: psycopg.Connection[Any], bug: Planted) -> None:
    """Change the function in this database."""
    change = Change(bug.function, re.escape(bug.old), bug.new, bug.times)
    without(change).apply(db)
