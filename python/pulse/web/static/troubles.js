// What is wrong, each with a link to the jobs and the verb that helps. The database says
// what (pulse.health, pulse.dead_groups); here it becomes a sentence and a place to go.

import { bulkButtons } from "./actions.js";
import { button, notify } from "./dialog.js";
import { h, redraw, show } from "./dom.js";
import { path, post } from "./api.js";
import { toQuery } from "./filters.js";
import { capped, number, plural } from "./format.js";
import { errorText, kindLink, pill, when } from "./parts.js";
import { may, refreshSummary, watchSummary } from "./state.js";

const TONE_ORDER = ["fail", "warn"];
const TONES = { ok: "completed", warn: "retrying", fail: "dead" };

export function statusPill(status) {
  return pill(TONES[status] ?? status, status);
}

export function jobsLink(text, filter) {
  return h("a", { href: `#/jobs?${toQuery(filter)}` }, text);
}

/** A group of dead letters, as the list of them is filtered. */
export function groupFilter({ kind, error_like: pattern }) {
  return { kind, ...(pattern ? { error_like: pattern } : {}) };
}

/** The checks that speak of jobs: a line for each filter that they name. */
const ABOUT = {
  unhandled_kinds: ({ kind, lane }) => ["No live worker takes ", kindLink(kind), ` in lane ${lane}`],
  held_lanes: ({ lane }) => [`Jobs have waited for over an hour in lane ${lane}, which is drained, paused or disabled`],
  stuck_lanes: ({ lane }) => [`Lane ${lane} has ready jobs, and nothing was claimed from it for 5 minutes`],
  oldest_ready_job: ({ lane }, { figure }) => [`A job has been ready for ${figure.replace(` in lane ${lane}`, "")} in lane ${lane}`],
};

/** What to do about a check, in a page's words; without one the database's advice stands. */
const HELP = {
  last_tick: ["Delayed jobs, schedules and lost workers wait for maintenance: no worker and no watchdog runs it.", ["Workers", "#/workers"]],
  watchdog: ["Only workers do the maintenance, so nothing happens while none runs.", ["Workers", "#/workers"]],
  lapsed_leases: ["Their leases have expired and their jobs are not retried yet.", ["Running jobs", "#/jobs?state=running"]],
  schedules: ["A schedule could not enqueue its job, or nothing fired it.", ["Schedules", "#/schedules"]],
  unhandled_kinds: ["Start a worker that takes them, or move or cancel the jobs.", ["Kinds", "#/kinds"]],
  held_lanes: ["Resume them if the reason is over.", ["Lanes", "#/"]],
  stuck_lanes: ["Start a worker that takes these lanes.", ["Workers", "#/workers"]],
  oldest_ready_job: ["Start more workers or give the lane more slots.", ["Lanes", "#/"]],
  failing_kinds: ["Their errors say why.", ["Kinds", "#/kinds"]],
  dead_jobs: ["Check their errors, then retry or discard them.", ["Dead letters", "#/dead"]],
};

export function remedy(check) {
  if (check.status === "ok") return "";
  const [text, [label, place]] = HELP[check.check_name] ?? [check.advice, ["", ""]];
  const filters = check.check_name === "dead_jobs" ? [] : check.jobs ?? [];
  return [text, " ",
    place && h("a", { href: place }, label),
    filters.map((filter) => [" · ", jobsLink([filter.kind, filter.lane].filter(Boolean).join(" in "), filter)])];
}

/** The panel that the overview begins with; it is not there when all is well. */
export function troubles(stay) {
  const list = h("ul", { class: "troubles" });
  const element = h("section", { class: "wrong", "aria-label": "What is wrong" }, list);
  const warnings = h("span");
  const calm = h("p", { class: "calm" }, pill("completed", "all is well"), " No dead letters, nothing late, nothing unhandled. ", warnings);
  const all = h("div", {}, element, calm);
  let before = "";
  stay.until(watchSummary((summary) => {
    const items = [...failingItems(summary), ...deadItems(summary), ...checkItems(summary), ...scheduleItems(summary)]
      .sort((a, b) => TONE_ORDER.indexOf(a.dataset.tone) - TONE_ORDER.indexOf(b.dataset.tone));
    const text = JSON.stringify({ ...summary, at: null });
    if (text === before) return;
    before = text;
    element.hidden = items.length === 0;
    calm.hidden = items.length > 0;
    const { length } = summary.problems;
    show(warnings, length > 0 && h("a", { href: "#/health" }, `${plural(length, "setup warning")}`));
    redraw(list, items);
  }));
  element.hidden = calm.hidden = true;
  return all;
}

function item(tone, words, acts, more) {
  return h("li", { "data-tone": tone },
    h("div", { class: "what" }, words, more && h("div", { class: "more" }, more)),
    h("span", { class: "row-acts" }, acts));
}

function failingItems({ failing }) {
  return failing.map(({ kind, failed, started, dead }) => item("fail",
    [h("b", {}, kindLink(kind)), ` fails: ${plural(failed, "attempt")} of ${number(Math.max(started, failed))} in 15 minutes`, dead > 0 && `, ${plural(dead, "job")} died`],
    [h("a", { href: `#/jobs?${toQuery({ kind, state: ["retrying", "dead"] })}`, class: "button small" }, "Its jobs")]));
}

function deadItems({ dead, counts }) {
  const shown = dead.reduce((sum, group) => sum + group.jobs, 0);
  const rest = counts.dead.jobs - shown;
  return [
    ...dead.map((group) => {
      const filter = groupFilter(group);
      return item("fail",
        [h("a", { href: `#/dead?${toQuery(filter)}` }, h("b", {}, plural(group.jobs, "dead letter"))), " of ", kindLink(group.kind),
          ", the last ", when(group.last_at)],
        bulkButtons(["retry", "discard"], { ...filter, state: ["dead"] }, refreshSummary, { of: `${group.kind}: ${group.error}` }),
        errorText(group.error));
    }),
    rest > 0 && item("fail", [h("a", { href: "#/dead" }, `${capped({ ...counts.dead, jobs: rest })} more dead letters`)], []),
  ].filter(Boolean);
}

const SHOWN = 3;

// Said above or below by their jobs and names; or how pulse was set up, which Health says.
const ELSEWHERE = ["failing_kinds", "dead_jobs", "schedules", "watchdog", "owner", "node"];

function checkItems({ problems }) {
  return problems.filter(({ check_name: name }) => !ELSEWHERE.includes(name)).flatMap((check) => {
    const about = ABOUT[check.check_name];
    if (!about || !check.jobs?.length) {
      return [item(check.status, [h("b", {}, check.check_name.replaceAll("_", " ")), `: ${check.figure}. `, remedy(check)],
        [h("a", { href: "#/health", class: "button small" }, "Health")])];
    }
    // One check must not push the others off the screen.
    // Ten are named, the figure says how many more there are.
    const unnamed = check.jobs.length === 10 ? Number(/ and (\d+) more$/.exec(check.figure)?.[1] ?? 0) : 0;
    const more = check.jobs.length - SHOWN + unnamed;
    const rest = more > 0 ? [item(check.status, [`and ${number(more)} more like it. `, remedy({ ...check, jobs: [] })], [])] : [];
    return [...check.jobs.slice(0, SHOWN).map((filter) => item(check.status, [about(filter, check), ". ", jobsLink("Its jobs", filter)],
      check.check_name === "unhandled_kinds" ? bulkButtons(["move", "cancel"], filter, refreshSummary, { of: `${filter.kind} in ${filter.lane}` }) : [])), ...rest];
  });
}

function scheduleItems({ schedules }) {
  return schedules.map(({ name, late, last_error: error, next_at: due }) =>
    item(error ? "fail" : "warn",
      [h("a", { href: `#/schedules?${new URLSearchParams({ name })}` }, h("b", {}, `Schedule ${name}`)),
        late ? [" is late: due ", when(due)] : " could not enqueue its job"],
      may("operator") ? [button("Run now", async () => {
        const { job_id: job } = await post(path`schedules/${name}/run`);
        notify(`Schedule ${name} enqueued job ${job}.`);
      }, { kind: "small", name: `Run schedule ${name} now` }), button("Pause", async () => {
        await post(path`schedules/${name}/pause`);
        notify(`Schedule ${name} is paused.`);
        await refreshSummary();
      }, { kind: "small", name: `Pause schedule ${name}` })] : [],
      error && errorText(error)));
}

/** Numbers on the tabs: how many wait there for a person. */
export function badges() {
  const places = { dead: "#/dead", approvals: "#/approvals", schedules: "#/schedules", health: "#/health" };
  const signs = Object.fromEntries(Object.entries(places).map(([name, place]) => {
    const sign = h("span", { class: "badge", hidden: true });
    document.querySelector(`#nav a[href="${place}"]`)?.append(" ", sign);
    return [name, sign];
  }));
  watchSummary(({ counts, problems, schedules }) => {
    const failed = problems.some((check) => check.status === "fail");
    set(signs.dead, counts.dead, "bad");
    set(signs.approvals, counts.awaiting_approval, "plum");
    set(signs.schedules, { jobs: schedules.length, more: schedules.length === 10 }, "bad");
    set(signs.health, { jobs: problems.length }, failed ? "bad" : "warn");
  });
}

function set(sign, count, tone) {
  sign.hidden = count.jobs === 0;
  sign.dataset.tone = tone;
  sign.textContent = capped(count);
  sign.title = number(count.jobs);
}
