"""Groups: what turns and slots cost, beside an ungrouped lane of the same jobs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from bench.costs import Session, ratio
from bench.harness import Bench, Database, middle, old_snapshot
from bench.sections.report import Section, alternated


@dataclass(frozen=True)
class Lane:
    """A lane and whose jobs it has: big is 90 % of one group, own a group a job."""

    name: str
    settings: str
    group_key: str


BIG = "CASE WHEN n % 10 > 0 THEN 'big' ELSE 'g' || n END"
LANES = [
    Lane("ungrouped", "", "NULL"),
    Lane("fair, one busy group", "fair => true", BIG),
    Lane("fair, 10,000 groups", "fair => true", "'g' || n % 10000"),
    Lane("fair, a group a job", "fair => true", "'g' || n"),
    Lane("group_slots, one busy group", "group_slots => 200", BIG),
    Lane("group_slots, 10,000 groups", "group_slots => 5", "'g' || n % 10000"),
]


def h_groups(bench: Bench) -> Section:
    section = Section(
        "h",
        "groups: a claim and a complete of 100 jobs",
        ["lane", "snapshot", "CPU µs a job", "of ungrouped", "buffers of a claim"],
    )
    # Rounds, and claims of each lane in a round.
    rounds, works = (1, 1) if bench.scale.quick else (7, 5)
    shares: dict[tuple[str, bool], float] = {}
    for pinned in (False, True):
        with bench.database(f"h: {'an old' if pinned else 'no old'}") as database:
            measure(section, database, rounds, works, pinned, shares)
    for lane in LANES[1:]:
        wanted = 0.6 if "fair" in lane.name else 0.5
        section.goal(
            f"CPU of a job, ungrouped / {lane.name}",
            shares[lane.name, False],
            wanted,
            must=False,
        )
    with bench.database("h: groups") as database:
        flatness(section, bench, database)
    return section


def measure(
    section: Section,
    database: Database,
    rounds: int,
    works: int,
    pinned: bool,
    shares: dict[tuple[str, bool], float],
) -> None:
    session = Session(database)
    for lane in LANES:
        if lane.settings:
            database.do(f"SELECT pulse.set_lane('{lane.name}', {lane.settings})")
        fill(database, lane.name, lane.group_key, 100 * works * (rounds + 1) + 100)
    cpu: dict[str, list[float]] = {lane.name: [] for lane in LANES}
    buffers: dict[str, list[float]] = {lane.name: [] for lane in LANES}
    with old_snapshot(database) if pinned else nullcontext():
        for lane in LANES:
            work(session, lane.name)
        for name in alternated([lane.name for lane in LANES], rounds):
            for _ in range(works):
                spent, touched = work(session, name)
                cpu[name].append(spent)
                buffers[name].append(touched)
    plain = middle(cpu["ungrouped"])
    for name, values in cpu.items():
        shares[name, pinned] = ratio(plain, middle(values))
        section.rows.append(
            [
                *(name, "old" if pinned else "none", f"{middle(values) / 100:.1f}"),
                *(f"{shares[name, pinned]:.2f}", f"{middle(buffers[name]):,.0f}"),
            ]
        )
    database.worked = database.finished()


def work(session: Session, lane: str, jobs: int = 100) -> tuple[float, float]:
    """CPU of a claim and its report, buffers of the claim."""
    claim = session.weigh(f"SELECT * FROM pulse.claim_batch('bench', '{lane}', {jobs})")
    report = session.weigh(
        "SELECT * FROM pulse.complete_batch(array(SELECT lease FROM "
        "pulse_internal.lease))"
    )
    return claim.cpu + report.cpu, claim.buffers


def fill(database: Database, lane: str, group_key: str, jobs: int) -> None:
    """All are in the lines of their groups, and their notices are read."""
    database.do(
        f"SELECT count(pulse.enqueue('k', lane => '{lane}', group_key => {group_key}))"
        f" FROM generate_series(1, {jobs}) AS n"
    )
    waits = (
        f"pulse_internal.is_grouped('{lane}') AND "
        f"pulse_internal.group_lane_waits('{lane}')"
    )
    while database.value(f"SELECT {waits}"):
        database.do("SELECT pulse_internal.tick_groups()")


def flatness(section: Section, bench: Bench, database: Database) -> None:
    """Buffers of a claim with few groups, many, and many at their limit."""
    many = [1000] if bench.scale.quick else [100_000, 1_000_000]
    session = Session(database)
    touched: dict[tuple[int, int], float] = {}
    for groups in [10, 100, *many]:
        lane = f"{groups:,} groups"
        database.do(f"SELECT pulse.set_lane('{lane}', group_slots => 1)")
        fill(database, lane, f"'g' || n % {groups}", max(groups, 1000))
        for jobs in [10, 100] if groups >= 100 else [10]:
            claims = [work(session, lane, jobs)[1] for _ in range(6)]
            touched[jobs, groups] = middle(claims[1:])
            section.rows.append(
                [
                    *(f"{lane}, a claim of {jobs}", "none", "", ""),
                    f"{touched[jobs, groups]:,.0f}",
                ]
            )
    for jobs in (10, 100):
        for groups in many:
            section.limit(
                f"buffers of a claim of {jobs}, {groups:,} groups / {jobs}",
                ratio(touched[jobs, groups], touched[jobs, jobs]),
                1.3,
                must=False,
            )
    held(section, many[0], database, session)
    database.worked = database.finished()


def held(section: Section, groups: int, database: Database, session: Session) -> None:
    """Claims that find nothing, all groups at their limit."""
    database.do("SELECT pulse.set_lane('held', group_slots => 1, max_batch => 10000)")
    fill(database, "held", f"'g' || n % {groups}", 2 * groups)
    while database.value("SELECT count(*) FROM pulse.claim_batch('x', 'held', 10000)"):
        pass
    # The first ones step over what died, and move the marks.
    poll = "SELECT * FROM pulse.claim_batch('bench', 'held', 100)"
    first, *idle = [session.weigh(poll) for _ in range(20)]
    buffers = middle([cost.buffers for cost in idle])
    section.rows.append(
        [
            *(f"idle, {groups:,} groups held", "none"),
            *(f"{middle([cost.cpu for cost in idle]):,.0f} a claim", ""),
            f"{first.buffers:,.0f}, then {buffers:,.0f}",
        ]
    )
    database.do(
        "SELECT count(*)"
        " FROM pulse.complete_batch(array(SELECT lease FROM pulse_internal.lease))"
    )
