// Kinds of jobs: all that are known, and a page for each.

import { bulkButtons } from "./actions.js";
import { get, patch, path } from "./api.js";
import { history } from "./charts.js";
import { ask, button, notify } from "./dialog.js";
import { h, show, write } from "./dom.js";
import { count, number } from "./format.js";
import { deadGroups, jobTable } from "./jobs.js";
import { whole } from "./lists.js";
import { cells, heading, kindLink, pill, trouble, when } from "./parts.js";
import { may, refreshSummary } from "./state.js";

const COLUMNS = [["Kind", "name"], ["Ready", "num"], ["Oldest", "num"], ["Running", "num"], ["Workers", "num"], ["Schedules", "num"], ["Ready in", "wide"], ["State", "state"]];
// More lanes than these are counted.
const LANES = 5;

export const kinds = whole({
  title: "Kinds", columns: COLUMNS, look: "kinds", address: "kinds", key: "kinds", id: (kind) => kind.name,
  nothing: "No kind is known yet: none waits, runs, is scheduled, or is named by a worker.",
  // Kinds that no worker takes come first, then those with most ready jobs.
  first: ({ workers, ready }, many) => (workers === 0 && ready > 0 ? -Number.MAX_SAFE_INTEGER : many ? -ready : 0),
  row: (kind) => cells(COLUMNS,
    kindLink(kind.name), count(kind.ready, kind.ready_estimated), when(kind.oldest_ready_at, "since"), number(kind.running),
    number(kind.workers), number(kind.schedules), some(kind.ready_in), kindState(kind)),
});

function some(lanes) {
  const more = lanes.length - LANES;
  return lanes.slice(0, LANES).join(", ") + (more > 0 ? ` and ${number(more)} more` : "");
}

function kindState({ workers, running, ready }) {
  if (workers === 0 && ready > 0) return pill("dead", "no worker");
  if (running > 0) return pill("running", "working");
  return ready > 0 ? pill("ready", "waiting") : pill("idle", "idle");
}

export async function kind(root, stay, { id: name, query }) {
  const state = h("span");
  const figures = ["Ready", "Running", "Workers", "Schedules"].map((label) => ({ label, value: h("dd"), more: h("dd", { class: "quiet" }) }));
  const [ready, running, workers, schedules] = figures;
  const facts = h("dl", { class: "facts" });
  const jobs = jobTable("jobs", { kind: name }, stay, "No job of this kind is kept.", 20);

  async function load() {
    const found = await get(path`kinds/${name}`);
    if (stay.left) return;
    show(state, kindState(found));
    write(ready.value, count(found.ready, found.ready_estimated));
    show(ready.more, found.oldest_ready_at ? ["oldest ", when(found.oldest_ready_at, "since"), ` in ${some(found.ready_in)}`] : "none is ready");
    write(running.value, number(found.running));
    write(running.more, found.running ? "at work" : "none runs");
    write(workers.value, number(found.workers));
    write(workers.more, found.workers ? "live, that take it" : "none takes it");
    write(schedules.value, number(found.schedules));
    write(schedules.more, found.schedules ? "that enqueue it" : "none enqueues it");
    show(facts, SETTINGS.map(({ key, label, fallback }) => h("div", {}, h("dt", {}, label), h("dd", {},
      key in found.settings ? String(found.settings[key]) : h("span", { class: "quiet" }, `${fallback} (default)`)))));
  }

  const after = () => Promise.all([load(), jobs.again(), refreshSummary()]);
  show(root,
    h("div", { class: "heading" },
      h("div", { class: "job-title" }, h("h1", { tabindex: -1 }, name), state),
      h("div", { class: "actions" },
        bulkButtons(["retry", "cancel"], { kind: name }, after, { of: `all ${name}` }),
        may("operator") && button("Settings…", () => edit(name, after)))),
    h("dl", { class: "figures" }, figures.map(({ label, value, more }) => h("div", {}, h("dt", {}, label), value, more))),
    may("viewer") && history(`kinds/${encodeURIComponent(name)}`, query, stay, { kind: name }),
    may("viewer") && deadGroups({ kind: name }, stay, after, "Dead letters by error"),
    h("div", { class: "heading second" }, h("h2", {}, "Newest jobs"), h("a", { href: `#/jobs?${new URLSearchParams({ kind: name })}` }, "Search them")), jobs.element,
    h("div", { class: "heading second" }, h("h2", {}, "Settings")), h("section", { class: "panel padded" }, facts));
  await load().catch((problem) => show(root, heading(name), trouble(problem)));
  stay.every(5, load);
}

const SETTINGS = [
  { key: "lane", label: "Lane", fallback: "default" },
  { key: "priority", label: "Priority", fallback: "0", type: "number" },
  { key: "max_attempts", label: "Attempts", fallback: "3", type: "number" },
  { key: "backoff", label: "Backoff", fallback: "quadratic", options: ["", "quadratic", "exponential", "fixed", "none"] },
  { key: "backoff_base", label: "Backoff base", fallback: "1 s" },
  { key: "backoff_cap", label: "Backoff cap", fallback: "1 hour, 60 s where it is exponential" },
  { key: "backoff_jitter", label: "Backoff jitter", fallback: "0.1", type: "number" },
  { key: "lease_for", label: "Lease", fallback: "that of the lane" },
  { key: "max_runtime", label: "Longest run", fallback: "that of the lane" },
  { key: "max_delay", label: "Longest delay", fallback: "no limit" },
  { key: "rate", label: "Rate", fallback: "no limit", type: "number" },
  { key: "rate_per", label: "Period of the rate", fallback: "none" },
  { key: "requires_approval", label: "Needs approval", fallback: "no", type: "checkbox" },
  { key: "approval_expiry", label: "Approval expires", fallback: "24 hours" },
];

async function edit(name, after) {
  const { settings } = await get(path`kinds/${name}`);
  await ask({
    title: `Settings of ${name}`,
    text: "What is left empty stays as it is. Lane, priority, attempts and approval count for jobs enqueued from now on.",
    wide: true,
    fields: [
      ...SETTINGS.map(({ key, label, fallback, type, options }) =>
        ({ name: key, label, type, options, value: settings[key] ?? "", placeholder: `default: ${fallback}` })),
      { name: "reason", label: "Reason", placeholder: "optional, kept in the audit" },
    ],
    confirm: "Save",
    async work(said) {
      const change = Object.entries(said).filter(([key, value]) =>
        value !== "" && value !== null && String(value) !== String(settings[key] ?? (key === "requires_approval" ? "false" : "")));
      if (change.length === 0) return;
      await patch(path`kinds/${name}`, Object.fromEntries(change));
      notify(`Kind ${name} has its new settings.`);
      await after();
    },
  });
}
