"""Many lanes that were used once: what upkeep and idle claims pay for them."""

from __future__ import annotations

from functools import partial

from bench.costs import COLUMNS, Cost, Session, age_marks, pass_time, ratio
from bench.harness import Bench, Database
from bench.sections.loads import backlogs, load
from bench.sections.report import Section

USE = """
DO $do$
BEGIN
    FOR i IN {first}..{last} LOOP
        PERFORM pulse.complete_batch(array(
            SELECT c.lease FROM pulse.claim_batch('bench', 'lane ' || i) AS c
        ));
        IF i % 100 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END
$do$
"""


def use_once(database: Database, first: int, last: int) -> None:
    """A job goes through each lane, and a tick has seen it wait in line."""
    database.do(
        "SELECT pulse.enqueue('bench', lane => 'lane ' || n)"
        f" FROM generate_series({first}, {last}) AS n"
    )
    ticks(database, last)
    database.do(USE.format(first=first, last=last))


def ticks(database: Database, lanes: int) -> None:
    """As many as it takes to look at each lane once: 500 lines a tick."""
    for _ in range(lanes // 500 + 2):
        pass_time(database, "10 seconds")
        database.do("SELECT count(*) FROM pulse.tick()")


def settle(database: Database, lanes: int) -> None:
    """Marks are found dry, then dry for long, then forgotten: all of them."""
    left = "SELECT EXISTS (SELECT FROM pulse_internal.mark WHERE lane LIKE 'lane %')"
    # Marks are kept while the table has many dead rows: not for autovacuum to decide.
    database.do("VACUUM pulse_internal.ready")
    ticks(database, lanes)
    for _ in range(5):
        age_marks(database, "10 minutes")
        ticks(database, lanes)
        if not database.value(left):
            break


def p_lanes(bench: Bench) -> Section:
    lanes = 30 if bench.scale.quick else 10_000
    times = 2 if bench.scale.quick else 15
    section = Section(
        "p",
        f"{lanes:,} lanes used once, the queue of these lanes empty",
        ["jobs in another lane", "lanes", "", *COLUMNS],
    )
    costs: dict[tuple[int, int, str], Cost] = {}
    for backlog in backlogs(bench):
        with bench.database(f"p: backlog of {backlog:,}") as database:
            load(database, backlog)
            used = 0
            for number in (1, lanes):
                use_once(database, used + 1, number)
                used = number
                settle(database, number)
                for what, cost in weighed(database, number, times).items():
                    costs[backlog, number, what] = cost
                    section.rows.append(
                        [f"{backlog:,}", f"{number:,}", what, *cost.cells()]
                    )
            database.worked = database.finished()
    small, large = backlogs(bench)
    for what in ("a tick each 10 s", "a tick each min", "an idle claim"):
        many, one = costs[large, lanes, what], costs[large, 1, what]
        # Once a minute every lane is counted.
        must = what != "a tick each min"
        section.limit(
            f"CPU of {what}, {lanes:,} lanes / 1", ratio(many.cpu, one.cpu), 1.5, must
        )
        section.limit(
            f"CPU of {what}, backlog of {large:,} / {small:,}",
            ratio(many.cpu, costs[small, lanes, what].cpu),
            1.5,
            must,
        )
    section.limit(
        f"WAL of a tick each 10 s, {lanes:,} lanes / 1",
        ratio(
            costs[large, lanes, "a tick each 10 s"].wal,
            costs[large, 1, "a tick each 10 s"].wal,
        ),
        1.5,
    )
    section.limit(
        "WAL bytes of an idle claim beside a busy lane",
        costs[large, lanes, "an idle claim"].wal,
        0,
    )
    return section


def weighed(database: Database, lanes: int, times: int) -> dict[str, Cost]:
    session = Session(database)

    def busy() -> None:
        database.do(
            "SELECT pulse.enqueue_many("
            "'bench', array_fill('{}'::jsonb, ARRAY[300]), lane => 'busy')",
            "SELECT count(*) FROM pulse.complete_batch(array("
            "SELECT lease FROM pulse.claim_batch('bench', 'busy', 100)))",
            "UPDATE pulse_internal.mark SET marked_at = marked_at - interval '1 second'"
            f" WHERE lane IN ('busy', 'lane {lanes}')",
        )

    return {
        f"a tick each {interval}": session.usual(
            "SELECT * FROM pulse.tick()",
            times,
            before=partial(pass_time, database, seconds),
        )
        for interval, seconds in (
            ("10 s", "10 seconds"),
            ("min", "60 seconds"),
        )
    } | {
        "an idle claim": session.usual(
            f"SELECT * FROM pulse.claim_batch('bench', 'lane {lanes}')",
            times,
            before=busy,
        )
    }
