"""What is measured, a module for each section; each fills a table and names goals."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness import Bench
from bench.sections.a_sustained import a_sustained
from bench.sections.b_pinned import b_pinned
from bench.sections.c_drain import c_drain
from bench.sections.d_backlog import d_backlog
from bench.sections.e_enqueue import e_enqueue
from bench.sections.f_cost import f_cost
from bench.sections.g_growth import g_growth
from bench.sections.h_groups import h_groups
from bench.sections.i_flows import i_flows
from bench.sections.j_steady import j_steady
from bench.sections.p_lanes import p_lanes
from bench.sections.q_schedules import q_schedules
from bench.sections.r_due_wave import r_due_wave
from bench.sections.report import Goal, Section
from bench.sections.s_absent_kinds import s_absent_kinds
from bench.sections.t_retention import t_retention
from bench.sections.u_kind_settings import u_kind_settings
from bench.sections.v_lapsed import v_lapsed
from bench.sections.w_payloads import w_payloads

__all__ = ["SECTIONS", "Goal", "Section"]

# a to j are loads, p to w are shapes that a queue can get into.
SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "a": a_sustained,
    "b": b_pinned,
    "c": c_drain,
    "d": d_backlog,
    "e": e_enqueue,
    "f": f_cost,
    "g": g_growth,
    "h": h_groups,
    "i": i_flows,
    "j": j_steady,
    "p": p_lanes,
    "q": q_schedules,
    "r": r_due_wave,
    "s": s_absent_kinds,
    "t": t_retention,
    "u": u_kind_settings,
    "v": v_lapsed,
    "w": w_payloads,
}
