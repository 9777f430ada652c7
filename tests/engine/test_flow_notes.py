"""Notes about ends of jobs that an open transaction keeps hold up no others."""

from __future__ import annotations

from itertools import pairwise

from tests.conftest import Connect

HELD = """
SELECT pulse.enqueue('held', lane => 'held', after => array_agg(u.job))
FROM pulse.enqueue_many('upstream', array_fill('1'::jsonb, ARRAY[1000]), lane => 'held')
    AS u (job)
"""


def test_doubts_that_stay_unsure_do_not_use_up_the_time_of_others(
    connect: Connect,
) -> None:
    alice, bob, holder = connect(), connect(), connect(autocommit=False)
    for _ in range(3):
        alice.execute(HELD)
    # Written in one transaction with their upstreams they have none.
    alice.execute(
        "INSERT INTO pulse_internal.doubt (job) SELECT r.job FROM "
        "pulse_internal.ready AS r"
    )
    holder.execute("SELECT FROM pulse_internal.ready FOR UPDATE")

    # The end is open while a job begins to wait for it: only the doubt knows.
    alice.execute("SELECT pulse.enqueue('first')")
    lease = alice.execute("SELECT lease FROM pulse.claim_batch('w')").fetchone()
    bob.autocommit = False
    bob.execute("SELECT pulse.complete(%s)", lease)
    alice.execute(
        "SELECT pulse.enqueue('second', after => ARRAY[b.job]) FROM "
        "pulse_internal.body AS b "
        "WHERE b.kind = 'first'"
    )
    bob.commit()

    # Ticks that have time for one piece each.
    for _ in range(4):
        alice.execute("SELECT pulse_internal.tick_flows('-infinity')")
    state = "SELECT state FROM pulse.jobs WHERE kind = 'second'"
    assert alice.execute(state).fetchone() == ("ready",)

    holder.rollback()
    for _ in range(3):
        alice.execute("SELECT pulse_internal.tick_flows()")
    assert alice.execute("SELECT count(*) FROM pulse_internal.doubt").fetchone() == (0,)
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_portions_that_stay_held_do_not_stop_the_next(connect: Connect) -> None:
    alice, holder, other = connect(), connect(autocommit=False), connect()
    other.autocommit = False
    for name in ("a", "b"):
        alice.execute(
            "SELECT pulse.enqueue(%s, after => ARRAY[pulse.enqueue('up')])", [name]
        )
    holder.execute("SELECT FROM pulse_internal.blocked WHERE kind = 'a' FOR UPDATE")
    other.execute("SELECT FROM pulse_internal.blocked WHERE kind = 'b' FOR UPDATE")
    alice.execute(
        "SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', max_jobs => 2) AS c"
    )
    assert alice.execute("SELECT count(*) FROM pulse_internal.wake").fetchone() == (2,)
    other.rollback()

    take = "SELECT released, taken FROM pulse_internal.take_portions(1000, 100, 0)"
    assert alice.execute(take).fetchone() == (1, 2)
    holder.rollback()
    assert alice.execute(take).fetchone() == (1, 1)
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_a_large_claim_does_not_note_all_anew_that_is_held(connect: Connect) -> None:
    alice, holder = connect(), connect(autocommit=False)
    alice.execute("SELECT pulse.set_lane('default', max_batch => 500)")
    for _ in range(10):
        alice.execute("SELECT pulse.enqueue('k', after => ARRAY[pulse.enqueue('up')])")
    holder.execute("SELECT FROM pulse_internal.blocked FOR UPDATE")
    alice.execute(REPORT, [500])
    seqs = "SELECT array_agg(w.seq ORDER BY w.seq) FROM pulse_internal.wake AS w"
    before = alice.execute(seqs).fetchone()
    alice.execute("SELECT FROM pulse.claim_batch('w', max_jobs => 500)")
    after = alice.execute(seqs).fetchone()
    assert before is not None
    assert after is not None
    assert len(before[0]) == len(after[0]) == 10
    assert len(set(before[0]) & set(after[0])) == 7

    holder.rollback()
    alice.execute("SELECT pulse_internal.tick_flows()")
    assert alice.execute("SELECT count(*) FROM pulse_internal.ready").fetchone() == (
        10,
    )


def test_a_portion_is_of_200_watchers_however_their_numbers_lie(
    connect: Connect,
) -> None:
    alice = connect()
    alice.execute("SELECT pulse.enqueue('up'), pulse.enqueue('other', lane => 'other')")
    # Numbers drawn at once, every second one, and one far behind.
    alice.execute(
        """
        SELECT pulse.enqueue_many(
            'waits', array_fill('1'::jsonb, ARRAY[1500]), after => ARRAY[b.job]
        ) FROM pulse_internal.body AS b WHERE b.kind = 'up'
        """
    )
    alice.execute(
        """
        SELECT pulse.enqueue('waits', after => ARRAY[b.job])
        FROM generate_series(1, 301) AS g
        CROSS JOIN pulse_internal.body AS b
        WHERE b.kind IN ('up', 'other')
        ORDER BY g, b.kind
        """
    )
    alice.execute("SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w') AS c")

    portions = alice.execute(
        """
        SELECT w.from_seq, w.to_seq, count(*)
        FROM pulse_internal.wake AS w
        JOIN pulse_internal.blocked AS b
            ON b.waits_for = w.job AND b.seq BETWEEN w.from_seq AND w.to_seq
        GROUP BY w.from_seq, w.to_seq
        ORDER BY w.from_seq
        """
    ).fetchall()
    sizes = [jobs for _, _, jobs in portions]
    assert sum(sizes) == 801
    assert sizes[:2] == [200, 200]
    assert max(sizes) == 200
    assert len(sizes) <= 6
    assert all(a[1] < b[0] for a, b in pairwise(portions))
    alice.execute("SELECT pulse_internal.tick_flows()")
    left = alice.execute(
        "SELECT count(*) FROM pulse_internal.blocked WHERE kind = 'waits'"
    )
    assert left.fetchone() == (301,)
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []


SMALL = """
SELECT pulse.enqueue_many(
    'waits', array_fill('1'::jsonb, ARRAY[%s]), after => ARRAY[u.job]
)
FROM pulse.enqueue_many('up', array_fill('1'::jsonb, ARRAY[500])) AS u (job)
"""
REPORT = """
SELECT count(*) FROM pulse.complete_batch(
    array(SELECT c.lease FROM pulse.claim_batch('w', max_jobs => %s) AS c)
)
"""


def test_a_report_of_many_small_flows_releases_all_of_them(connect: Connect) -> None:
    alice = connect()
    alice.execute("SELECT pulse.set_lane('default', max_batch => 500)")
    alice.execute(SMALL, [3])
    alice.execute(REPORT, [500])
    assert alice.execute("SELECT count(*) FROM pulse_internal.ready").fetchone() == (
        1500,
    )
    assert alice.execute("SELECT count(*) FROM pulse_internal.wake").fetchone() == (0,)


def test_claims_stay_full_while_there_are_small_portions(connect: Connect) -> None:
    alice = connect()
    alice.execute("SELECT pulse.set_lane('default', max_batch => 500)")
    alice.execute(SMALL, [10])
    alice.execute(REPORT, [500])
    assert alice.execute("SELECT count(*) FROM pulse_internal.wake").fetchone() == (
        300,
    )
    for _ in range(10):
        assert alice.execute(REPORT, [500]).fetchone() == (500,)
    assert alice.execute(REPORT, [500]).fetchone() == (0,)
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []


def test_a_claim_does_not_take_what_it_put_in_line_for_dead_rows(
    connect: Connect,
) -> None:
    alice = connect()
    alice.execute(
        "SELECT pulse.enqueue_many('waits', array_fill('1'::jsonb, ARRAY[1500]), "
        "after => ARRAY[u.job]) FROM pulse.enqueue('up') AS u (job)"
    )
    alice.execute("SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w') AS c")
    # A mark of the line.
    alice.execute("SELECT pulse_internal.tick_marks()")

    alice.execute("SET track_functions = 'all'")
    with alice.transaction():
        released = "SELECT count(*) FROM pulse_internal.wake"
        before = alice.execute(released).fetchone()
        alice.execute("SELECT FROM pulse.claim_batch('w', max_jobs => 100)")
        assert alice.execute(released).fetchone() != before
        asked = alice.execute(
            "SELECT pg_stat_get_xact_function_calls(p.oid) FROM pg_proc AS p"
            " WHERE p.proname = 'ask_for_marks'"
        )
        assert asked.fetchone() == (None,)


def test_the_backstop_of_flows_takes_turns(connect: Connect) -> None:
    alice = connect()
    alice.execute(
        "SELECT pulse.enqueue_many('waits', array_fill('1'::jsonb, ARRAY[1500]), "
        "after => ARRAY[u.job]) FROM pulse.enqueue('up') AS u (job)"
    )
    # Nobody told the last of them.
    alice.execute("SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w') AS c")
    alice.execute("DELETE FROM pulse_internal.wake")
    alice.execute(
        "SELECT pulse_internal.write_upkeep_run("
        "pulse_internal.newest_upkeep_run('backstop'), "
        "'backstop', jsonb_build_object('found', 0, 'unreleased', 2, 'from', "
        "(SELECT min(job) FROM pulse_internal.blocked)))"
    )
    assert alice.execute("SELECT pulse_internal.tick_backstop()").fetchone() == (1,)
    state = alice.execute(
        "SELECT state FROM pulse_internal.upkeep_run WHERE step = 'backstop'"
    ).fetchone()
    assert state == ({"found": 0, "unreleased": 3},)
    alice.execute("SELECT pulse_internal.tick_flows(), pulse_internal.tick_flows()")
    assert alice.execute("SELECT count(*) FROM pulse_internal.blocked").fetchone() == (
        0,
    )
    assert alice.execute("SELECT * FROM pulse.check()").fetchall() == []
