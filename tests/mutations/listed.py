"""Every mutation: the rule that it takes out, and what notices that.

A key is the rule. The specs print something else without it, `chaos` and `chaos_flows`
are what the checker of a history says, and a load named by `stress` finds it.
"""

from __future__ import annotations

from tests.mutations.harness import Change, Mutation, without

# Jobs that wait for others, steps and signals; docs/decisions/flows.md has the table.
FLOWS: dict[str, Mutation] = {
    "an enqueue doubts what it watches": without(
        Change(
            "pulse_internal.put_after",
            r"IF v_foreign <> '\{\}' THEN\n +INSERT",
            "IF false THEN INSERT",
        ),
        specs=(
            "after-enqueue-against-complete",
            "after-repeatable-read-enqueue",
        ),
        chaos_flows="Everything drains",
    ),
    "of one's own jobs there is no doubt": without(
        Change(
            "pulse_internal.put_after",
            r"b\.xmin = pg_current_xact_id\(\)::xid",
            "false",
        ),
        specs=("claim-and-complete-in-one",),
    ),
    "a watch that moves is doubted": without(
        Change(
            "pulse_internal.unblock_dependents",
            r"FROM unnest\(v_next\) AS s \(next\)",
            "FROM unnest(v_next) AS s (next) WHERE false",
        ),
        specs=("after-last-two-at-once",),
    ),
    "a doubt stays while an end is open (xmax)": without(
        Change("pulse_internal.settle_doubts", "xmax = 0", "xmax IS NOT NULL", times=5),
        specs=("doubt-while-end-is-open",),
        stress="flows",
    ),
    "a doubt is let go when all who were open have ended": without(
        Change("pulse_internal.tick_flows", r"v_decided := v_old\.unsure;", "NULL;"),
        specs=("doubt-after-rollback",),
    ),
    "nobody settles doubts of his own (by)": without(
        Change(
            "pulse_internal.settle_doubts",
            r"o\.by IS DISTINCT FROM pg_current_xact_id_if_assigned\(\)",
            "true",
        ),
        specs=("doubt-of-own-exchange",),
        stress="flows",
    ),
    "marks wait for open transactions": without(
        Change(
            "pulse_internal.tick_flows",
            r"v_horizon\.note_q \+ 1,",
            "9223372036854775807,",
            times=2,
        ),
        specs=(
            "marks-doubt-out-of-order",
            "after-prepared-transaction",
        ),
    ),
    "an end looks for watchers": without(
        Change(
            "pulse.complete_batch",
            r"PERFORM pulse_internal\.unblock_after\(v_jobs, true\);",
            "NULL;",
        ),
        specs=("watchers-in-later-statement",),
    ),
    "portions are taken without waiting": without(
        Change("pulse_internal.take_portions", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        specs=(
            "fan-out-by-two-claims",
            "open-claim-holds-one-portion",
        ),
    ),
    "what another session holds is noted": without(
        Change("pulse_internal.unblock_dependents", r"v_locked < \(", "0 > ("),
        specs=(
            "cancel-against-release",
            "release-skips-one",
        ),
    ),
    "what the index has shown is compared with what was locked": without(
        Change(
            "pulse_internal.unblock_dependents",
            r"OR v_locked <> pg_stat_get[^\n]*\s+- v_rows_before",
            "",
        ),
        specs=("release-skips-one",),
    ),
    "a bad end goes by the edges": without(
        Change(
            "pulse_internal.ended_badly",
            r"b\.after_failed = 'cancel'",
            "b.after_failed = ''",
        ),
        specs=("cascade-against-release",),
    ),
    "a retry revives what its own end had cancelled": without(
        Change("pulse_internal.revive", r"AND f\.ended_by = 'upstream'", ""),
        specs=("retry-upstream-against-cancel-of-child",),
    ),
    "a look goes above the watch, too": without(
        Change(
            "pulse_internal.unblock_dependents",
            r"AND NOT o\.met",
            "AND NOT o.met AND o.after <= h.ended",
            times=2,
        ),
        specs=("spawn-against-last-upstream",),
    ),
    "spawners share who waits for them": without(
        Change("pulse.spawn", "FOR KEY SHARE", "FOR UPDATE"),
        specs=("two-spawns-one-child",),
    ),
    "who waits for the spawner waits for the spawned": without(
        Change(
            "pulse.spawn", r"FROM unnest\(v_waiting\)", "FROM unnest('{}'::bigint[])"
        ),
        specs=(
            "spawn-against-last-upstream",
            "two-spawns-one-child",
        ),
        chaos_flows="A step spawns its jobs once, and who waits for the spawner waits for them",
    ),
    "a step spawns once": without(
        Change("pulse.spawn", "IF NOT FOUND THEN", "IF false THEN"),
        specs=("spawn-repeated",),
    ),
    "retention leaves the upstreams of an open enqueue": without(
        Change("pulse_internal.put_after", "FOR KEY SHARE SKIP LOCKED", ""),
        specs=("prune-against-after",),
    ),
    "who would wait for the retry of a deleted job is cancelled": without(
        Change(
            "pulse_internal.ended_badly", r"OR b\.after_failed = 'hold'", "OR false"
        ),
        specs=("delete-against-hold",),
    ),
    "who is retried before the cascade comes is held": without(
        Change(
            "pulse_internal.ended_badly",
            r"OR o\.after_failed = 'hold'\s+AND",
            "OR o.after_failed = 'hold' OR",
        ),
        specs=("cascade-against-retry",),
    ),
    "approval is asked for at the release": without(
        Change("pulse_internal.unblock_rows", r"AND NOT b\.needs_approval", ""),
        specs=("approve-gate",),
    ),
    "a replace holds the blocked row": without(
        Change(
            "pulse_internal.replace",
            r"(FROM pulse_internal\.blocked AS b\s+WHERE b\.job = replace\.job)\s+FOR UPDATE",
            r"\1 AND false",
        ),
        specs=("replace-blocked",),
    ),
    "signals and waits meet under the name lock": without(
        Change("pulse.wait_for", "v_locked := pg_try[^;]*;", "v_locked := true;"),
        specs=("signal-against-wait",),
    ),
    "who begins to wait does not wait for a sender": without(
        Change(
            "pulse.wait_for",
            r"pg_try_advisory_xact_lock\(\s*('pulse_internal\.signal'[^(]*\([^)]*\))\s*\)",
            r"(pg_advisory_xact_lock(\1) IS NOT NULL)",
            times=2,
        ),
        specs=("signal-open-sender",),
    ),
    "a sent signal wins over the timeout": without(
        Change(
            "pulse.wait_for",
            r"WHERE s\.signal = wait_for\.signal",
            "WHERE s.signal = wait_for.signal AND v_step.until > clock_timestamp()",
        ),
        specs=("signal-against-timeout",),
    ),
    "a signal wakes only the wait that its lease began": without(
        Change(
            "pulse_internal.deliver_signal",
            r"AND coalesce\(n\.last_lease, 0\) = w\.lease\s+AND n\.last_verb = 'wait_for'",
            "",
            times=2,
        ),
        specs=("signal-spares-backoff",),
    ),
    "what a sender could not deliver is delivered by tick": without(
        Change(
            "pulse_internal.deliver_signal",
            "v_left_over := EXISTS",
            "v_left_over := false AND EXISTS",
        ),
        specs=("signal-two-senders",),
    ),
}

# Limits by group, rates and keys; docs/decisions/limits.md has the table.
LIMITS: dict[str, Mutation] = {
    "watchers are locked without waiting": without(
        Change(
            "pulse_internal.unblock_dependents", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"
        ),
        specs=("follow-end-against-follower",),
    ),
    "one claim of a grouped lane decides at a time": without(
        Change(
            "pulse.claim_batch",
            r"NOT pulse_internal\.take_turn\(claim_batch\.lane\)",
            "false",
        ),
        specs=(
            "groups-one-slot",
            "groups-open-claim",
            "groups-rates",
        ),
        stress="groups",
    ),
    "what runs is looked up in lease": without(
        Change(
            "pulse_internal.write_groups",
            r"SELECT true\s+FROM pulse_internal\.lease AS e",
            "SELECT NULL::boolean FROM pulse_internal.lease AS e",
        ),
        specs=("groups-set-lane",),
    ),
    "the end of a run leaves a notice": without(
        Change(
            "pulse_internal.notice_ends",
            r"INSERT INTO pulse_internal\.group_notice [^;]*;",
            "",
            times=2,
        ),
        specs=(
            "groups-one-slot",
            "groups-reap-against-claim",
        ),
    ),
    "the mark of notices waits for open transactions": without(
        Change(
            "pulse_internal.advance_groups",
            r"least\(coalesce\(v_first, 9223372036854775807\), v_horizon\.ready_q \+ 1\)",
            "coalesce(v_first, 9223372036854775807)",
        ),
        specs=("groups-notice-out-of-order",),
    ),
    "a job that arrives wakes its group": without(
        Change(
            "pulse_internal.read_notices",
            r"WHEN o\.rank IS NULL THEN n\.rank IS NOT NULL",
            "WHEN o.version IS NOT NULL AND o.rank IS NULL THEN false WHEN o.rank IS NULL THEN n.rank IS NOT NULL",
        ),
        specs=(
            "groups-lost-wake-up",
            "groups-sweep-against-arrival",
        ),
    ),
    "a job of a higher priority changes the level of its group": without(
        Change(
            "pulse_internal.read_notices",
            r"WHEN n\.rank < o\.rank THEN true",
            "",
        ),
        specs=("groups-lost-wake-up",),
    ),
    "a row that another session holds is not passed": without(
        Change(
            "pulse_internal.take_turns",
            r"AND r\.job <> ALL \(coalesce\(s\.jobs, '\{\}'::bigint\[\]\)\)|AND r\.job <> ALL \(coalesce\(s\.jobs, '\{\}'\)\)",
            "AND (r.rank, r.seq) > (o.rank, o.place)",
        ),
        specs=("groups-cancel-of-the-first", "groups-one-of-each"),
    ),
    "a lease that was taken away is no run": without(
        Change(
            "pulse_internal.read_notices",
            r"WHEN n\.has_ended AND o\.turn IS NULL THEN true",
            "",
        ),
        specs=(
            "groups-reap-against-claim",
            "groups-one-slot",
        ),
    ),
    "set_lane waits for open claims": without(
        Change(
            "pulse.set_lane",
            r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
            "",
        ),
        specs=("groups-set-lane",),
    ),
    "a raised limit gives groups a turn": without(
        Change(
            "pulse_internal.regroup",
            r"PERFORM pulse_internal\.recount_groups\([^;]*;",
            "NULL;",
        ),
        specs=("groups-set-lane",),
    ),
    "set_group waits for open claims": without(
        Change(
            "pulse.set_group",
            r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
            "",
        ),
        specs=("groups-set-group",),
    ),
    "set_group counts its group anew": without(
        Change(
            "pulse.set_group",
            r"PERFORM pulse_internal\.recount_groups\([^;]*;",
            "",
        ),
        specs=("groups-set-group",),
    ),
    "a limit that appears counts what runs": without(
        Change(
            "pulse.set_group",
            r"PERFORM pulse_internal\.name_groups_of_leases\([^;]*;",
            "NULL;",
        ),
        specs=("groups-set-group",),
    ),
    "a stopped group that is heard of has no turn": without(
        Change("pulse_internal.write_groups", r"AND q\.enabled IS NOT FALSE", ""),
        specs=("groups-set-group",),
    ),
    "jobs of producers that saw the lane ungrouped are sorted in": without(
        Change(
            "pulse_internal.sort_into_groups",
            r"v_tids := pulse_internal\.pick\([^;]*;",
            "v_tids := '{}';",
        ),
        specs=("groups-switched-on-and-off",),
    ),
    "switched off, claims move jobs out of their groups": without(
        Change(
            "pulse.claim_batch", r"PERFORM pulse_internal\.leave_groups\([^;]*;", ""
        ),
        specs=("groups-switched-on-and-off",),
    ),
    "what was idle is asked again under the lock": without(
        Change(
            "pulse_internal.sweep_groups",
            r"OR NOT pg_try_advisory_xact_lock\([^)]*\)\s*\)",
            "",
        ),
        specs=("groups-sweep-against-arrival",),
    ),
    "in order, a group waits for a job that keeps an earlier place": without(
        Change("pulse_internal.write_groups", r"AND w\.is_waited_for IS NULL", ""),
        Change(
            "pulse_internal.lock_in_groups",
            r"\(lock_in_groups\.lane\)\.in_order IS NOT TRUE",
            "true",
        ),
        specs=("groups-in-order",),
    ),
    "in order, nothing behind a held row is taken": without(
        Change(
            "pulse_internal.pick_groups",
            r"EXIT WHEN v_behind > 0 OR \(pick_groups\.lane\)\.in_order;",
            "EXIT WHEN v_behind > 0;",
        ),
        specs=("groups-in-order",),
    ),
    "who takes a job out of waiting leaves a notice": without(
        Change(
            "pulse_internal.notice_wait_over",
            r"PERFORM pulse_internal\.notice_ends\([^;]*;",
            "NULL;",
        ),
        specs=("groups-in-order",),
    ),
    "a job comes back at its place": without(
        Change(
            "pulse_internal.promote_to_groups",
            r"n\.lane, n\.line, n\.rank, n\.place_kept, n\.kind, n\.job",
            "n.lane, n.line, n.rank, nextval('pulse_internal.ready_seq'), n.kind, n.job",
        ),
        specs=("groups-in-order",),
    ),
    "the starts of a lane are written with the claim": without(
        Change(
            "pulse.claim_batch",
            r"IF v_lane\.rate IS NOT NULL THEN\s+PERFORM",
            "IF false THEN PERFORM",
        ),
        specs=("groups-rates",),
    ),
    "the starts of a group are written with the claim": without(
        Change(
            "pulse_internal.write_groups",
            r"g\.starts, coalesce\(cardinality\(s\.jobs\), 0\)",
            "g.starts, 0",
        ),
        specs=("groups-rates",),
        chaos="Never more starts in any window than the rate of a lane, kind or group",
    ),
    "a group without a start has a time to wake": without(
        Change(
            "pulse_internal.write_groups",
            r"CASE WHEN g\.rank IS NOT NULL THEN f\.free_at END",
            "NULL",
        ),
        specs=("groups-rates",),
    ),
    "the starts of a kind are counted under its lock": without(
        Change(
            "pulse_internal.open_kinds",
            r"IF pg_try_advisory_xact_lock\([^;]*? THEN",
            "IF true THEN",
        ),
        specs=("kind-rates",),
    ),
    "that lock is not waited for": without(
        Change(
            "pulse_internal.open_kinds",
            r"pg_try_advisory_xact_lock\((.*)\) THEN",
            r"pg_advisory_xact_lock(\1) IS NOT NULL THEN",
        ),
        specs=("kind-rates",),
    ),
    "the starts of a kind are written with the claim": without(
        Change("pulse_internal.spend_kinds", r"u\.n::integer", "0"),
        specs=("kind-rates",),
        chaos="Never more starts in any window than the rate of a lane, kind or group",
    ),
    "of a group no further than its kind has starts": without(
        Change(
            "pulse_internal.keep_within_rates", r"IF v_left = 0 THEN", "IF false THEN"
        ),
        specs=("kind-rates",),
    ),
    "a change of the rate of a kind waits for who counts": without(
        Change(
            "pulse_internal.change_rate",
            r"PERFORM pulse_internal\.lock_out_claims\([^;]*;",
            "",
            times=2,
        ),
        specs=("kind-rates",),
    ),
    "one follower of a key": without(
        Change(
            "pulse_internal.follow",
            "ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING",
            "",
        ),
        specs=("follow-two-at-once",),
    ),
    "a follower doubts the job it follows": without(
        Change(
            "pulse_internal.follow",
            r"INSERT INTO pulse_internal\.doubt [^;]*;",
            "NULL;",
        ),
        specs=("follow-against-complete",),
    ),
    "a follower that is released takes its key": without(
        Change(
            "pulse_internal.unblock_rows",
            r"v_with_own_key := pulse_internal\.inherit_keys\(unblock_rows\.tids\);",
            "v_with_own_key := unblock_rows.tids;",
        ),
        specs=(
            "follow-against-complete",
            "follow-end-against-follower",
        ),
    ),
}

# What no spec can order: a load or the checker of a history notices.
OTHERS: dict[str, Mutation] = {
    "a stale lease completes nothing": without(
        Change(
            "pulse.complete_batch",
            r"WHERE l.lease = v_leases\[1\]\n",
            "WHERE l.lease = ANY (v_leases) OR l.job IN (\n    SELECT f.job FROM pulse_internal.failure AS f WHERE f.lease = ANY (v_leases)\n)\n",
        ),
        chaos="A report that was accepted ended its run, and a stale lease is refused",
    ),
    "a claim counts the slots in use": without(
        Change(
            "pulse_internal.take_slots",
            r"RETURN v_roster;",
            "v_roster.leases := '{}'; RETURN v_roster;",
        ),
        chaos="No claim commits that fills a lane beyond max_slots",
        stress="slots",
    ),
    "claims of a lane with slots take its lock": without(
        Change(
            "pulse_internal.take_slots",
            r"NOT pulse_internal\.take_turn\(take_slots\.lane\)",
            "false",
        ),
        chaos="No claim commits that fills a lane beyond max_slots",
        stress="slots",
    ),
    "a claim counts the slots of a group": without(
        Change(
            "pulse_internal.choose_groups",
            r"greatest\(l\.slots - count\(\*\), 0\)",
            "choose_groups.need",
        ),
        chaos="No claim commits that fills a group of a lane beyond group_slots",
    ),
    "in order, a group waits for its retried job": without(
        Change("pulse_internal.write_groups", r"AND w\.is_waited_for IS NULL", ""),
        Change(
            "pulse_internal.lock_in_groups",
            r"\(lock_in_groups\.lane\)\.in_order IS NOT TRUE",
            "true",
        ),
        chaos="With in_order a group starts nothing while a job of it may come back",
    ),
    "a claim writes the starts of a lane": without(
        Change(
            "pulse.claim_batch",
            r"IF v_lane\.rate IS NOT NULL THEN\s+PERFORM",
            "IF false THEN PERFORM",
        ),
        chaos="Never more starts in any window than the rate of a lane, kind or group",
    ),
    "a claim looks for holds": without(
        Change("pulse.claim_batch", r"h\.lane IN \('', claim_batch\.lane\)", "false"),
        chaos="No claim commits while its lane is held or disabled",
    ),
    "a claim shares the lock of holds": without(
        Change(
            "pulse.claim_batch",
            r"pg_try_advisory_xact_lock_shared\('pulse_internal\.hold'[^)]*\)",
            "true",
        ),
        chaos="No claim commits while its lane is held or disabled",
    ),
    "marks of a line wait for open transactions": without(
        Change(
            "pulse_internal.advance_line",
            r"least\(v_found\.seq, advance_line\.q \+ 1\)",
            "v_found.seq",
        ),
        Change(
            "pulse_internal.advance_line",
            r"least\(coalesce\(v_found\.seq, v_last\), advance_line\.q \+ 1\)",
            "coalesce(v_found.seq, 0)",
        ),
        chaos="Everything drains",
    ),
    "the first in line is picked first": without(
        Change(
            "pulse_internal.pick",
            r"ORDER BY r\.rank, r\.seq\n",
            "ORDER BY r.rank, r.seq DESC\n",
        ),
        chaos="Claims of a lane with slots, or a group in order, take the first jobs in line",
    ),
    "max_attempts bounds the failures": without(
        Change(
            "pulse_internal.fail_runs",
            r"e\.failures \+ 1 >= b\.max_attempts",
            "e.failures >= b.max_attempts",
        ),
        chaos="A job fails at most max_attempts times, unless retried by hand",
    ),
    "a counted start is marked": without(
        Change("pulse_internal.watch_new_leases", r",\s+ready_at = NULL", ""),
        chaos="The counters of each lane and kind equal what was committed",
    ),
    "a schedule fires every occurrence": without(
        Change(
            "pulse_internal.fire_schedule",
            r"v_at := pulse_internal\.occurrence_after\(v_recurrence, v_at\);",
            "v_at := pulse_internal.occurrence_after(v_recurrence, v_at + '1 second');",
        ),
        chaos="Every occurrence of a schedule fires once or is skipped with a reason",
    ),
    "a release looks for another upstream": without(
        Change(
            "pulse_internal.unblock_dependents",
            r"AND NOT o\.met\n",
            "AND false\n",
            times=2,
        ),
        chaos_flows="No job runs before all that it depends on has ended well enough",
    ),
    "a repeated spawn adds nothing": without(
        Change("pulse.spawn", "IF NOT FOUND THEN", "IF false THEN"),
        Change(
            "pulse.spawn",
            "ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING",
            "ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO UPDATE SET saved_at = excluded.saved_at",
        ),
        chaos_flows="A step spawns its jobs once, and who waits for the spawner waits for them",
    ),
    "a saved step is remembered": without(
        Change("pulse.steps", r"AND s\.saved_at IS NOT NULL", "AND false"),
        chaos_flows="A step that has succeeded is not run by an attempt that began later",
    ),
    "a signal wakes the job that waits": without(
        Change(
            "pulse.signal",
            r"RETURN pulse_internal\.deliver_signal\([^;]*;",
            "RETURN 0;",
        ),
        chaos_flows="Everything drains",
    ),
    "a signal is stored": without(
        Change("pulse.signal", r"INSERT INTO pulse_internal\.signal [^;]*;", ""),
        chaos_flows="A signal that was acknowledged is there, and nobody waits for it in vain",
    ),
    "a move clears alone": without(
        Change("pulse_internal.unblock_dependents", "alone = false", "alone = b.alone"),
        stress="flows",
    ),
    "a look goes above what it watches": without(
        Change(
            "pulse_internal.unblock_dependents",
            r"WHERE o\.job = h\.job",
            "WHERE o.job = h.job AND o.after <= h.ended",
        ),
        stress="flows",
    ),
    "an upstream that is not found may still run": without(
        Change("pulse_internal.unblock_dependents", r"\) IS NOT TRUE", ") IS FALSE"),
        stress="flows",
    ),
    "the mark of notices stays below what may be written": without(
        Change(
            "pulse_internal.advance_groups",
            r"least\(coalesce\(v_first, 9223372036854775807\), v_horizon\.ready_q \+ 1\)",
            "coalesce(v_first, (SELECT s.last_value + 1 FROM pulse_internal.ready_seq AS s))",
        ),
        stress="groups",
    ),
    "a claim looks up the jobs of its groups": without(
        Change("pulse_internal.choose_groups", r"WHERE e\.job = u\.job", "WHERE false"),
        Change("pulse_internal.write_groups", r"WHERE e\.job = u\.job", "WHERE false"),
        stress="groups",
    ),
    "the horizon waits for open transactions": without(
        Change(
            "pulse_internal.decided_in_lane",
            r"min\(w\.floor_q\)",
            "NULL",
        ),
        specs=("marks-other-lane", "marks-out-of-order-commit"),
        stress="marks",
    ),
    "an open transaction keeps its floor": without(
        Change(
            "pulse_internal.see_horizon",
            r"ELSE k\.floor_q END",
            "ELSE NULL END",
        ),
        specs=("marks-open-across-ticks",),
    ),
    "a prepared transaction keeps its floor by another name": without(
        Change(
            "pulse_internal.see_horizon",
            r"WHEN o\.is_prepared THEN p\.floor_q",
            "WHEN false THEN p.floor_q",
        ),
        specs=("marks-prepared-transaction",),
    ),
    "an enqueue announces its lane": without(
        Change(
            "pulse_internal.take_request",
            r"'pulse_internal\.ready_seq'::regclass::oid::integer",
            "0",
        ),
        specs=("marks-other-lane",),
    ),
    "an enqueue with options announces its lane": without(
        Change(
            "pulse_internal.enqueue_slow_path",
            r"'pulse_internal\.ready_seq'::regclass::oid::integer",
            "0",
        ),
        specs=("marks-other-lane",),
    ),
    "enqueue_many announces its lane": without(
        Change(
            "pulse_internal.enqueue_payloads",
            r"'pulse_internal\.ready_seq'::regclass::oid::integer",
            "0",
        ),
        specs=("marks-other-lane",),
    ),
    "a job that is put in line announces its lane": without(
        Change(
            "pulse_internal.put_in_line",
            r"'pulse_internal\.ready_seq'::regclass::oid::integer",
            "0",
        ),
        specs=("marks-other-lane",),
    ),
    "a release of blocked jobs announces their lanes": without(
        Change(
            "pulse_internal.unblock_rows",
            r"'pulse_internal\.ready_seq'::regclass::oid::integer",
            "0",
        ),
        specs=("marks-other-lane",),
    ),
    "a promotion announces its lane": without(
        Change(
            "pulse_internal.promote",
            r"PERFORM pulse_internal\.enter_lane\(promote\.lane\);",
            "NULL;",
        ),
        specs=("marks-other-lane",),
    ),
    "a job that leaves its group announces its lane": without(
        Change(
            "pulse_internal.leave_groups",
            r"PERFORM pulse_internal\.enter_lane\(leave_groups\.lane\);",
            "NULL;",
        ),
        specs=("marks-leave-groups",),
    ),
    "a job that leaves its group draws a place": without(
        Change(
            "pulse_internal.leave_groups",
            r"lane, rank, kind, job, attempts, failures, keyed, ready_at",
            "lane, rank, seq, kind, job, attempts, failures, keyed, ready_at",
        ),
        Change(
            "pulse_internal.leave_groups",
            r"t\.lane, t\.rank, t\.kind",
            "t.lane, t.rank, t.seq, t.kind",
        ),
        specs=("marks-leave-groups",),
    ),
    "a payload has a largest size": without(
        Change(
            "pulse_internal.require_size",
            r"IF bytes > \(range\)\.highest",
            "IF false",
        )
    ),
    "every doubt is kept": without(
        """
        CREATE FUNCTION public.drop_it() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER dropped BEFORE INSERT ON pulse_internal.doubt
        FOR EACH ROW EXECUTE FUNCTION public.drop_it()
        """,
        stress="flows",
    ),
}

ALL: dict[str, Mutation] = FLOWS | LIMITS | OTHERS
