"""Statements on the path of a job keep their plan whatever the statistics say.

Every verb runs in a session that planned before the tables changed and in one that
plans after, with tables analysed empty, grown since, full, emptied since, full of one
kind, and full of dead rows that an old snapshot keeps. auto_explain reports the plan of
every statement inside the functions. A statement must read each table by the same index
and the same columns every time, and never all of it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import psycopg

from tests.conftest import Database

Connection = psycopg.Connection[Any]
Access = frozenset[tuple[str, str, str]]

SOME = (
    "(SELECT array_agg(x.lease) FROM (SELECT lease FROM pulse_internal.lease "
    "LIMIT 3) AS x)"
)
UPSTREAMS = SOME.replace("lease", "job", 2)
VERBS = [
    "SELECT pulse.enqueue('k1', '{\"n\": 1}', lane => 'busy')",
    "SELECT pulse.enqueue('k1', lane => 'keyed', unique_key => 'same')",
    "SELECT pulse.enqueue('k1', lane => 'keyed', unique_key => 'same',"
    " on_conflict => 'replace')",
    "SELECT pulse.enqueue('k1', '[1]', lane => 'keyed', unique_key => 'same',"
    " on_conflict => 'cancel')",
    "SELECT pulse.claim_batch('w', 'keyed', 1)",
    "SELECT pulse.enqueue('k1', '[3]', lane => 'keyed', unique_key => 'same',"
    " on_conflict => 'follow')",
    "SELECT pulse.enqueue('k1', '[4]', lane => 'keyed', unique_key => 'same',"
    " on_conflict => 'follow')",
    "SELECT pulse.complete_batch(array(SELECT lease FROM pulse_internal.lease"
    " WHERE lane = 'keyed' LIMIT 3))",
    "SELECT pulse.enqueue('k1', lane => 'busy', priority => 9,"
    " unique_key => gen_random_uuid()::text)",
    "SELECT pulse.enqueue('k1', lane => 'busy', delay => '1 hour')",
    "SELECT pulse.enqueue_many('k1', array_fill('{}'::jsonb, ARRAY[100]),"
    " lane => 'busy')",
    "SELECT pulse.enqueue_many('k2', array_fill('{}'::jsonb, ARRAY[100]),"
    " lane => 'busy')",
    "SELECT pulse.enqueue_many('k2', array_fill('{}'::jsonb, ARRAY[5]),"
    " lane => 'busy', priority => 5)",
    "SELECT pulse.enqueue('k1', lane => 'busy', flow => 'f', name => 'n',"
    f" after => {UPSTREAMS})",
    "SELECT pulse.enqueue_many('k1', array_fill('{}'::jsonb, ARRAY[20]),"
    f" lane => 'busy', after => ({UPSTREAMS})[1:1])",
    "SELECT pulse.claim_batch('w', 'busy', 50)",
    "SELECT pulse.claim_batch('w', 'busy', 10, kinds => ARRAY['k2'])",
    "SELECT pulse.claim_batch('w', 'busy', 10, kinds => ARRAY['absent', 'k1'])",
    "SELECT pulse.claim_batch('w', 'limited', 5)",
    "SELECT pulse.enqueue('k1', lane => 'grouped', group_key => 'g1')",
    "SELECT pulse.enqueue('k2', lane => 'grouped', group_key => 'g2', priority => 3)",
    "SELECT pulse.enqueue('k2', lane => 'grouped')",
    "SELECT pulse.enqueue_many('k1', array_fill('{}'::jsonb, ARRAY[20]),"
    " lane => 'grouped', group_key => 'g3')",
    "SELECT pulse.claim_batch('w', 'grouped', 5)",
    "SELECT pulse.claim_batch('w', 'grouped', 5, kinds => ARRAY['k2'])",
    "SELECT pulse.cancel((SELECT max(job) FROM pulse_internal.ready"
    " WHERE group_key IS NOT NULL))",
    "SELECT pulse.tick()",
    f"SELECT pulse.heartbeat({SOME})",
    f"SELECT pulse.complete(({SOME})[1])",
    f"SELECT pulse.complete_batch({SOME} || 1::bigint)",
    f"SELECT pulse.fail_batch({SOME} || 1::bigint)",
    f"SELECT pulse.fail(({SOME})[1], 'no')",
    f"SELECT pulse.fail(({SOME})[1], 'no', retry_in => '0')",
    f"SELECT pulse.snooze(({SOME})[1], '0')",
    f"SELECT pulse.release({SOME})",
    f"SELECT pulse.progress(({SOME})[1], 0.5)",
    f"SELECT pulse.checkpoint(({SOME})[1], '1')",
    "SELECT pulse.cancel((SELECT max(job) FROM pulse_internal.ready))",
    "SELECT pulse.exchange('w', '{\"busy\": 5}', kinds => ARRAY['k1'])",
]
# What tick does beside jobs (samples, retention, the hourly look below the marks) may
# read as it likes; the rest of it is on the path, since claims do it too.
UPKEEP = re.compile(
    r"sample|stat\b|_series|audit|schedule|approval|access|pg_class|prune|< v_now"
    r"|newest_mark AS|newer IS NOT NULL|next_lane"
    r"|pulse_internal\.signature|UPDATE pulse_internal\.role|l\.grouped IS NOT NULL"
    r"|tick_signals|SELECT DISTINCT b\.waits_for|unnest\(v_upstreams\)"
)
# Sequences have one row; of horizon and note_mark the newest is read, of signal_wait an
# index of those to wake, of kind any one row. Of worker all rows are read: tick() asks
# which kinds workers handle when it meets a kind that has no counters.
READ_WHOLE = {
    *("ready_seq", "lease_seq", "tally_seq", "job_id", "version", "horizon", "kind"),
    *("note_seq", "note_mark", "signal_wait", "worker"),
}


class Watch:
    """The accesses of every nested statement that a session runs, by statement."""

    def __init__(
        self,
        db: Database,
        seen: dict[str, dict[Access, set[str]]],
        verbs: list[str] = VERBS,
    ) -> None:
        self.regime = "as installed"
        self.connection = db.connect()
        self._seen = seen
        self._verbs = verbs
        self.connection.add_notice_handler(self._note)
        self.connection.execute("LOAD 'auto_explain'")
        for name, value in {
            "log_min_duration": "0",
            "log_nested_statements": "on",
            "log_format": "json",
            "log_level": "notice",
        }.items():
            self.connection.execute(f"SET auto_explain.{name} = '{value}'".encode())

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        message = diagnostic.message_primary or ""
        if "plan:" not in message:
            return
        explained = json.loads(message.split("plan:", 1)[1])
        query = " ".join(explained["Query Text"].split())
        # A plan that knows beforehand that there is nothing to read reads nothing.
        # Roles are few; how they are looked up is left to the planner.
        found = frozenset(a for a in accesses(explained["Plan"]) if a[0] != "role")
        if found and query not in self._verbs and "pulse" in query:
            self._seen[query].setdefault(found, set()).add(self.regime)

    def run(self, regime: str) -> None:
        self.regime = regime
        for verb in self._verbs:
            self.connection.execute(verb.encode())


def accesses(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(table, index, condition) of each scan; a bitmap reads like its index."""
    kind = plan["Node Type"]
    children = plan.get("Plans", [])
    found = [one for child in children for one in accesses(child)]
    if kind == "Bitmap Heap Scan":
        return [(plan["Relation Name"], index, bounds) for _, index, bounds in found]
    if kind == "Bitmap Index Scan":
        found.append(("", plan["Index Name"], columns(plan)))
    elif kind in ("Index Scan", "Index Only Scan"):
        found.append((plan["Relation Name"], plan["Index Name"], columns(plan)))
    elif kind == "Seq Scan":
        found.append((plan["Relation Name"], "", ""))
    return found


def columns(plan: dict[str, Any]) -> str:
    """The columns that bound the scan, in their order: its condition without values."""
    condition = re.sub(r"'(?:[^']|'')*'", "", plan.get("Index Cond", ""))
    bounds = re.findall(
        r"(?<![.$\w])(?:ROW\()?([a-z_]+(?:, [a-z_]+)*)\)? [<>=]+", condition
    )
    return " ".join(bounds)


def story(query: str, found: dict[Access, set[str]]) -> str:
    """A statement that reads in several ways, and when it did which."""
    ways = [f"  {sorted(way)}: {sorted(when)}" for way, when in found.items()]
    return "\n".join([query, *ways])


def fill(connection: Connection, jobs: int, kinds: int) -> None:
    for n in range(jobs // 1000):
        connection.execute(
            "SELECT pulse.enqueue_many(%s, array_fill('{}'::jsonb, ARRAY[1000]),"
            " lane => 'busy', delay => %s)",
            (f"k{n % kinds}", "1 hour" if n % 10 == 9 else None),
        )
    for n in range(jobs // 3000):
        connection.execute(
            "SELECT count(pulse.enqueue(%s, lane => 'grouped',"
            " group_key => 'g' || n %% %s)) FROM generate_series(1, 1000) AS n",
            (f"k{n % kinds}", 10**n),
        )


def drain(connection: Connection, jobs: int) -> None:
    connection.execute(
        f"""
        DO $do$
        BEGIN
            FOR i IN 1..{jobs // 100} LOOP
                PERFORM pulse.complete_batch(array(
                    SELECT lease FROM pulse.claim_batch('w', 'busy', 100)
                ));
                COMMIT;
                PERFORM pulse.complete_batch(array(
                    SELECT lease FROM pulse.claim_batch('w', 'grouped', 100)
                ));
                COMMIT;
            END LOOP;
        END
        $do$
    """.encode()
    )


def test_no_statistics_change_how_a_statement_on_a_jobs_path_reads(
    db: Database,
) -> None:
    seen: dict[str, dict[Access, set[str]]] = defaultdict(dict)
    admin = db.connect()
    admin.execute("SELECT pulse.set_lane('limited', max_slots => 3)")
    admin.execute(
        "SELECT pulse.set_lane('grouped', group_slots => 4, max_slots => 999)"
    )
    admin.execute("SELECT pulse.set_kind('k1', max_attempts => 9)")
    admin.execute(
        "SELECT pulse.enqueue_many('k1', array_fill('{}'::jsonb, ARRAY[9]),"
        " lane => 'limited')"
    )
    old = Watch(db, seen)

    def both(regime: str) -> None:
        admin.execute("DELETE FROM pulse_internal.upkeep_run")
        Watch(db, seen).run(f"{regime}, planned after")
        admin.execute("DELETE FROM pulse_internal.upkeep_run")
        old.run(f"{regime}, planned before")

    for _ in range(6):
        old.run("as installed")
    emptied = (
        "TRUNCATE pulse_internal.ready, pulse_internal.lease, "
        "pulse_internal.waiting, pulse_internal.body, pulse_internal.finished,"
        " pulse_internal.job_key, pulse_internal.failure, pulse_internal.mark, "
        "pulse_internal.due_mark, pulse_internal.horizon,"
        " pulse_internal.group_notice, "
        "pulse_internal.group_state"
    )
    admin.execute(emptied)
    admin.execute("VACUUM ANALYZE")
    both("analysed empty")
    fill(admin, 30_000, kinds=5)
    both("grown since")
    admin.execute("VACUUM ANALYZE")
    both("full")
    admin.execute(emptied)
    both("emptied since")
    fill(admin, 30_000, kinds=1)
    admin.execute("VACUUM ANALYZE")
    both("one kind")
    pin = db.connect(autocommit=False)
    pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pin.execute("SELECT count(*) FROM pulse.jobs")
    drain(admin, 35_000)
    admin.execute("VACUUM ANALYZE")
    both("dead rows")
    pin.rollback()

    assert len(seen) > 60
    judge(seen)


def judge(seen: dict[str, dict[Access, set[str]]]) -> None:
    flipped, whole = [], []
    for query, found in seen.items():
        if UPKEEP.search(query):
            continue
        if len(found) > 1:
            flipped.append((query, found))
        whole += [
            (query, access, regimes)
            for accesses_, regimes in found.items()
            for access in accesses_
            if access[2] == "" and access[0] not in READ_WHOLE
        ]
    print("\n".join(story(query, found) for query, found in flipped))
    assert [query for query, _ in flipped] == []
    assert {(access, query) for query, access, _ in whole} == set()
