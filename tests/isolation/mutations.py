"""Which spec fails when which rule of flows or limits is taken out.

    python -m tests.isolation.mutations         each rule with its specs, as a table
    python -m tests.isolation.mutations doubt   only rules with this word in their name
    python -m tests.isolation.mutations --all   each rule with every spec

A rule is taken out of the function as it is built: a pattern, and what stands there
instead. The status is 1 when a spec passes without its rule. The tables are kept in
docs/decisions/flows.md and docs/decisions/limits.md.
"""

from __future__ import annotations

import argparse
import re
import sys

import psycopg

from tests import isolation
from tests.isolation.rules import LIMITS, Rule
from tools import servers
from tools.servers import Server

RULES: dict[str, Rule] = LIMITS | {
    "an enqueue doubts what it watches": Rule(
        "pulse_internal.put_after",
        r"IF v_strange <> '\{\}' THEN\n +INSERT",
        "IF false THEN INSERT",
        ("after-enqueue-against-complete", "after-repeatable-read-enqueue"),
    ),
    "of one's own jobs there is no doubt": Rule(
        "pulse_internal.put_after",
        r"b\.xmin = pg_current_xact_id\(\)::xid",
        "false",
        ("claim-and-complete-in-one",),
    ),
    "a watch that moves is doubted": Rule(
        "pulse_internal.look",
        r"FROM unnest\(v_next\) AS s \(next\)",
        "FROM unnest(v_next) AS s (next) WHERE false",
        ("after-last-two-at-once",),
    ),
    "a doubt stays while an end is open (xmax)": Rule(
        "pulse_internal.settle",
        r"xmax = 0",
        "xmax IS NOT NULL",
        ("doubt-while-end-is-open",),
    ),
    "a doubt is let go when all who were open have ended": Rule(
        "pulse_internal.tick_flows",
        r"v_decided := v_old\.unsure;",
        "NULL;",
        ("doubt-after-rollback",),
    ),
    "nobody settles doubts of his own (by)": Rule(
        "pulse_internal.settle",
        r"o\.by IS DISTINCT FROM pg_current_xact_id_if_assigned\(\)",
        "true",
        ("doubt-of-own-exchange",),
    ),
    "marks wait for open transactions": Rule(
        "pulse_internal.tick_flows",
        r"v_horizon\.note_q \+ 1,",
        "9223372036854775807,",
        ("marks-doubt-out-of-order", "after-prepared-transaction"),
    ),
    "an end looks for watchers": Rule(
        "pulse.complete_batch",
        r"PERFORM pulse_internal\.wake\(v_jobs, true\);",
        "NULL;",
        ("watchers-in-later-statement",),
    ),
    "portions are taken without waiting": Rule(
        "pulse_internal.take_portions",
        r"FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        ("fan-out-by-two-claims", "open-claim-holds-one-portion"),
    ),
    "watchers are locked without waiting": Rule(
        "pulse_internal.look",
        r"FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        ("cancel-against-release",),
    ),
    "what another session holds is noted": Rule(
        "pulse_internal.look",
        r"v_locked < \(",
        "0 > (",
        ("cancel-against-release", "release-skips-one"),
    ),
    "what the index has shown is compared with what was locked": Rule(
        "pulse_internal.look",
        r"OR v_locked <> v_shown\s[^\n]*",
        "",
        ("release-skips-one",),
    ),
    "a bad end goes by the edges": Rule(
        "pulse_internal.ended_badly",
        r"b\.after_failed = 'cancel'",
        "b.after_failed = ''",
        ("cascade-against-release",),
    ),
    "a retry revives what its own end had cancelled": Rule(
        "pulse_internal.revive",
        r"AND f\.ended_by = 'upstream'",
        "",
        ("retry-upstream-against-cancel-of-child",),
    ),
    "a look goes above the watch, too": Rule(
        "pulse_internal.look",
        r"AND NOT o\.met",
        "AND NOT o.met AND o.after <= h.at",
        ("spawn-against-last-upstream",),
    ),
    "spawners share who waits for them": Rule(
        "pulse.spawn",
        r"FOR KEY SHARE",
        "FOR UPDATE",
        ("two-spawns-one-child",),
    ),
    "who waits for the spawner waits for the spawned": Rule(
        "pulse.spawn",
        r"FROM unnest\(v_waiting\)",
        "FROM unnest('{}'::bigint[])",
        ("spawn-against-last-upstream", "two-spawns-one-child"),
    ),
    "a step spawns once": Rule(
        "pulse.spawn", r"IF NOT FOUND THEN", "IF false THEN", ("spawn-repeated",)
    ),
    "retention leaves the upstreams of an open enqueue": Rule(
        "pulse_internal.put_after",
        r"FOR KEY SHARE SKIP LOCKED",
        "",
        ("prune-against-after",),
    ),
    "who would wait for the retry of a deleted job is cancelled": Rule(
        "pulse_internal.ended_badly",
        r"OR b\.after_failed = 'hold'",
        "OR false",
        ("delete-against-hold",),
    ),
    "who is retried before the cascade comes is held": Rule(
        "pulse_internal.ended_badly",
        r"OR o\.after_failed = 'hold'\s+AND",
        "OR o.after_failed = 'hold' OR",
        ("cascade-against-retry",),
    ),
    "approval is asked for at the release": Rule(
        "pulse_internal.release", r"AND NOT b\.needs_approval", "", ("approve-gate",)
    ),
    "a replace holds the blocked row": Rule(
        "pulse_internal.replace",
        r"(FROM pulse_internal\.blocked AS b\s+WHERE b\.job = "
        r"replace\.job)\s+FOR UPDATE",
        r"\1 AND false",
        ("replace-blocked",),
    ),
    "signals and waits meet under the name lock": Rule(
        "pulse.wait_for",
        r"v_locked := pg_try[^;]*;",
        "v_locked := true;",
        ("signal-against-wait",),
    ),
    "who begins to wait does not wait for a sender": Rule(
        "pulse.wait_for",
        r"pg_try_advisory_xact_lock\(\s*('pulse_internal\.signal'[^(]*\([^)]*\))\s*\)",
        r"(pg_advisory_xact_lock(\1) IS NOT NULL)",
        ("signal-open-sender",),
    ),
    "a sent signal wins over the timeout": Rule(
        "pulse.wait_for",
        r"WHERE s\.signal = wait_for\.signal",
        "WHERE s.signal = wait_for.signal AND v_step.until > clock_timestamp()",
        ("signal-against-timeout",),
    ),
    "a signal wakes only the wait that its lease began": Rule(
        "pulse_internal.deliver_signal",
        r"AND coalesce\(n\.last_lease, 0\) = w\.lease\s+AND n\.last_verb = 'wait_for'",
        "",
        ("signal-spares-backoff",),
    ),
    "what a sender could not deliver is delivered by tick": Rule(
        "pulse_internal.deliver_signal",
        r"v_left_over := EXISTS",
        "v_left_over := false AND EXISTS",
        ("signal-two-senders",),
    ),
    "the pause of a flow waits for open claims": Rule(
        "pulse_internal.hold_flow",
        r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
        "",
        ("pause-flow-against-claim",),
    ),
    "so does its resume": Rule(
        "pulse_internal.unhold_flow",
        r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
        "",
        ("pause-flow-against-claim",),
    ),
    "a claim parks jobs of a paused flow": Rule(
        "pulse.claim_batch",
        r"v_tids := \(pulse_internal\.park\(v_tids\)\) \[1:v_need\];",
        "",
        ("pause-flow-against-claim",),
    ),
}
SPECS = sorted({spec for rule in RULES.values() for spec in rule.specs})


def mutated(connection: psycopg.Connection[tuple[str]], rule: Rule) -> str:
    """The function without the rule, as a statement that puts it in place."""
    row = connection.execute(
        "SELECT pg_get_functiondef(%s::regproc)", (rule.function,)
    ).fetchone()
    assert row is not None
    body, found = re.subn(rule.pattern, rule.instead, row[0])
    assert found, f"{rule.function} has changed: {rule.pattern}"
    return body


def fails(server: Server, rule: Rule, spec: str) -> bool:
    path = isolation.HERE / "specs" / f"{spec}.spec"

    def take_out(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(mutated(connection, rule).encode())

    wanted = isolation.expected(path).read_text()
    # Without its rule a step may wait for ever.
    return isolation.run(server, path, take_out, patience=10) != wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--all", action="store_true", help="every spec")
    asked = parser.parse_args()
    missed = 0
    with servers.temporary() as server:
        print("| without the rule that | these fail |\n|---|---|")
        for name, rule in RULES.items():
            if asked.word not in name:
                continue
            tried = SPECS if asked.all else rule.specs
            failed = [spec for spec in tried if fails(server, rule, spec)]
            missed += len(set(rule.specs) - set(failed))
            words = ", ".join(f"`{spec}`" for spec in failed) or "**none**"
            print(f"| {name} | {words} |", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
