"""Rules of limits by group, rates and keys, and the specs that need them.

mutations.py takes each of them out of its function.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    function: str
    pattern: str
    instead: str
    specs: tuple[str, ...]


# A job that its group waits for counts by the lease it had.
_WAITS = r"OR (\(read_notices\.lane\)|v_lane)\.in_order\s+AND \("

LIMITS: dict[str, Rule] = {
    "one claim of a grouped lane decides at a time": Rule(
        "pulse_internal.claim_grouped",
        r"NOT pulse_internal\.take_turn\(claim_grouped\.lane\)",
        "false",
        ("groups-one-slot", "groups-open-claim", "groups-rates"),
    ),
    "what runs is looked up in lease": Rule(
        "pulse_internal.read_notices",
        r"SELECT true\s+FROM pulse_internal\.lease AS e\s+WHERE e\.lease = u\.lease",
        "SELECT NULL::boolean",
        ("groups-set-lane",),
    ),
    "the end of a run leaves a notice": Rule(
        "pulse_internal.notice_ends",
        r"INSERT INTO pulse_internal\.group_notice [^;]*;",
        "",
        ("groups-one-slot", "groups-reap-against-claim"),
    ),
    "the mark of notices waits for open transactions": Rule(
        "pulse_internal.advance_groups",
        r"least\(coalesce\(v_first, 9223372036854775807\), v_horizon\.ready_q \+ 1\)",
        "coalesce(v_first, 9223372036854775807)",
        ("groups-notice-out-of-order",),
    ),
    "a job that arrives wakes its group": Rule(
        "pulse_internal.read_notices",
        r"WHEN o\.rank IS NULL THEN n\.rank IS NOT NULL",
        "WHEN o.version IS NOT NULL AND o.rank IS NULL THEN false"
        " WHEN o.rank IS NULL THEN n.rank IS NOT NULL",
        ("groups-lost-wake-up", "groups-sweep-against-arrival"),
    ),
    "a job of a higher priority changes the level of its group": Rule(
        "pulse_internal.read_notices",
        r"ELSE NOT EXISTS \(",
        "ELSE false AND NOT EXISTS (",
        ("groups-lost-wake-up",),
    ),
    "a row that another session holds is not passed": Rule(
        "pulse_internal.claim_grouped",
        r"FROM seen AS s\s+LEFT JOIN described AS d ON d\.job = s\.job",
        "FROM seen AS s LEFT JOIN described AS d ON d.job = s.job"
        " WHERE s.nth > s.share OR s.tid IN (SELECT l.tid FROM locked AS l)",
        ("groups-cancel-of-the-first",),
    ),
    "nor is it where one job of each group is taken": Rule(
        "pulse_internal.claim_grouped",
        r"CASE WHEN d\.lease IS NULL THEN f\.seq ELSE f\.next_seq END AS place",
        "f.next_seq AS place",
        ("groups-one-of-each",),
    ),
    "a lease that was taken away is no run": Rule(
        "pulse_internal.read_notices",
        r"WHEN n\.ended AND o\.turn IS NULL THEN true",
        "",
        ("groups-reap-against-claim", "groups-one-slot"),
    ),
    "set_lane waits for open claims": Rule(
        "pulse_internal.do_set_lane",
        r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
        "",
        ("groups-set-lane",),
    ),
    "a raised limit gives groups a turn": Rule(
        "pulse_internal.regroup",
        r"PERFORM pulse_internal\.recount_groups\([^;]*;",
        "NULL;",
        ("groups-set-lane",),
    ),
    "set_group waits for open claims": Rule(
        "pulse_internal.do_set_group",
        r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
        "",
        ("groups-set-group",),
    ),
    "set_group counts its group anew": Rule(
        "pulse_internal.do_set_group",
        r"PERFORM pulse_internal\.recount_groups\([^;]*;",
        "",
        ("groups-set-group",),
    ),
    "a limit that appears counts what runs": Rule(
        "pulse_internal.do_set_group",
        r"PERFORM pulse_internal\.name_groups_of_leases\([^;]*;",
        "NULL;",
        ("groups-set-group",),
    ),
    "a stopped group that is heard of has no turn": Rule(
        "pulse_internal.claim_grouped",
        r"AND q\.enabled IS NOT FALSE",
        "",
        ("groups-set-group",),
    ),
    "jobs of producers that saw the lane ungrouped are sorted in": Rule(
        "pulse_internal.sort_into_groups",
        r"v_tids := pulse_internal\.pick\([^;]*;",
        "v_tids := '{}';",
        ("groups-switched-on-and-off",),
    ),
    "switched off, claims move jobs out of their groups": Rule(
        "pulse.claim_batch",
        r"PERFORM pulse_internal\.leave_groups\([^;]*;",
        "",
        ("groups-switched-on-and-off",),
    ),
    "what was idle is asked again under the lock": Rule(
        "pulse_internal.sweep_groups",
        r"OR NOT pg_try_advisory_xact_lock\([^)]*\)\s*\)",
        "",
        ("groups-sweep-against-arrival",),
    ),
    "in order, a job that waits to run again is a run": Rule(
        "pulse_internal.read_notices", _WAITS, "OR false AND (", ("groups-in-order",)
    ),
    "in order, nothing behind a held row is taken": Rule(
        "pulse_internal.claim_grouped",
        r"EXIT WHEN v_behind > 0 OR v_lane\.in_order;",
        "EXIT WHEN v_behind > 0;",
        ("groups-in-order",),
    ),
    "who takes a job out of waiting leaves a notice": Rule(
        "pulse_internal.notice_wait_over",
        r"PERFORM pulse_internal\.notice_ends\([^;]*;",
        "NULL;",
        ("groups-in-order",),
    ),
    "a job comes back at its place": Rule(
        "pulse_internal.promote_to_groups",
        r"n\.lane, n\.group_key, n\.rank, n\.place, n\.kind, n\.job",
        "n.lane, n.group_key, n.rank, nextval('pulse_internal.ready_seq'), "
        "n.kind, n.job",
        ("groups-in-order",),
    ),
    "the starts of a lane are written with the claim": Rule(
        "pulse.claim_batch",
        r"IF v_known\.rate IS NOT NULL AND v_claimed > 0 THEN",
        "IF false THEN",
        ("groups-rates",),
    ),
    "the starts of a group are written with the claim": Rule(
        "pulse_internal.claim_grouped",
        r"coalesce\(o\.started, 0\)::integer",
        "0",
        ("groups-rates",),
    ),
    "a group without a start has a time to wake": Rule(
        "pulse_internal.claim_grouped",
        r"CASE WHEN f\.rank IS NOT NULL THEN w\.free_at END",
        "NULL",
        ("groups-rates",),
    ),
    "the starts of a kind are counted under its lock": Rule(
        "pulse_internal.open_kinds",
        r"IF pg_try_advisory_xact_lock\([^;]*? THEN",
        "IF true THEN",
        ("kind-rates",),
    ),
    "that lock is not waited for": Rule(
        "pulse_internal.open_kinds",
        r"pg_try_advisory_xact_lock\((.*)\) THEN",
        r"pg_advisory_xact_lock(\1) IS NOT NULL THEN",
        ("kind-rates",),
    ),
    "the starts of a kind are written with the claim": Rule(
        "pulse_internal.spend_kinds", r"u\.n::integer", "0", ("kind-rates",)
    ),
    "of a group no further than its kind has starts": Rule(
        "pulse_internal.claim_grouped",
        r"n\.kind <> ALL \(v_rated\)",
        "true",
        ("kind-rates",),
    ),
    "groups of a kind share its starts": Rule(
        "pulse_internal.claim_grouped", r"END,\s+g\.of_kind", "END", ("kind-rates",)
    ),
    "a change of the rate of a kind waits for who counts": Rule(
        "pulse_internal.change_rate",
        r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
        "",
        ("kind-rates",),
    ),
    "one follower of a key": Rule(
        "pulse_internal.follow",
        r"ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING",
        "",
        ("follow-two-at-once",),
    ),
    "a follower doubts the job it follows": Rule(
        "pulse_internal.follow",
        r"INSERT INTO pulse_internal\.doubt [^;]*;",
        "NULL;",
        ("follow-against-complete",),
    ),
    "a follower that is released takes its key": Rule(
        "pulse_internal.release",
        r"v_free := pulse_internal\.inherit_keys\(release\.tids\);",
        "v_free := release.tids;",
        ("follow-against-complete", "follow-end-against-follower"),
    ),
    "an end waits for nobody who holds the follower": Rule(
        "pulse_internal.look",
        r"FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        ("follow-end-against-follower",),
    ),
}
