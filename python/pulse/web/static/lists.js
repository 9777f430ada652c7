// Schedules, workers, health and the audit.

import { get, path, post } from "./api.js";
import { button, notify } from "./dialog.js";
import { h, keyed, redraw, show } from "./dom.js";
import { duration, number, pretty } from "./format.js";
import { pagedTable } from "./pages.js";
import { cells, empty, errorText, heading, jobLink, pill, searchLink, table, trouble, when } from "./parts.js";
import { may } from "./state.js";

/** A page that is one list, read again every few seconds. */
function whole({ title, note, columns, address, key, id, row, nothing }) {
  return async (root, stay) => {
    const { element, body } = table(title, columns);
    const none = empty(nothing);
    const rest = h("div");
    show(root, heading(title, note), element, rest);
    async function load() {
      const items = (await get(address))[key];
      if (stay.left) return;
      keyed(body, items, id, () => redrawn((now, kept) => row(now, load, kept)));
      element.hidden = items.length === 0;
      show(rest, items.length === 0 && none);
    }
    await load().catch((problem) => {
      element.hidden = true;
      show(rest, trouble(problem));
    });
    stay.every(5, load);
  };
}

/** A row that is drawn anew when what it shows has changed; kept is its memory. */
function redrawn(draw) {
  const element = h("tr");
  const kept = {};
  let before = "";
  return {
    element,
    update(now) {
      const text = JSON.stringify(now);
      if (text === before) return;
      before = text;
      redraw(element, draw(now, kept));
    },
  };
}

const WORKERS = [["Worker", "name"], ["Running", "num"], ["Lanes", ""], ["Kinds", "wide"], ["Role", ""], ["Last seen", "num"], ["State", "state"]];

export const workers = whole({
  title: "Workers", columns: WORKERS, address: "workers", key: "workers", id: (worker) => worker.worker,
  nothing: "No worker was seen. Start one: pulse work app:worker",
  row: (worker) => cells(WORKERS,
    searchLink(worker.worker, { worker: worker.worker, state: "running" }), number(worker.running),
    (worker.lanes ?? []).join(", "), worker.kinds ? worker.kinds.join(", ") : "every kind",
    worker.seen_by ?? "–", when(worker.seen_at),
    worker.live ? pill("completed", "live") : pill("dead", "lost")),
});

const HEALTH = [["Check", "name"], ["Status", "state"], ["Figure", "wide"], ["What to do", "wide"]];
const TONES = { ok: "completed", warn: "retrying", fail: "dead" };

export const health = whole({
  title: "Health", columns: HEALTH, address: "health", key: "checks", id: (check) => check.check_name,
  nothing: "There are no checks.",
  row: (check) => cells(HEALTH,
    check.check_name.replaceAll("_", " "), pill(TONES[check.status] ?? check.status, check.status), check.figure ?? "",
    check.advice ?? ""),
});

const SCHEDULES = [["Schedule", "name"], ["Interval", ""], ["Kind", "kind"], ["Next", "num"], ["Last", "num"], ["State", "state"], ["Past runs", "wide"], ["", "acts"]];

export const schedules = whole({
  title: "Schedules", columns: SCHEDULES, address: "schedules", key: "schedules", id: (schedule) => schedule.name,
  nothing: "Nothing is enqueued by the clock. SELECT pulse.schedule(…) makes a schedule.",
  row: (schedule, again, kept) => cells(SCHEDULES,
    schedule.name, interval(schedule), searchLink(schedule.kind, { kind: schedule.kind }),
    when(schedule.next_at), when(schedule.last_occurrence), scheduleState(schedule), (kept.runs ??= pastRuns(schedule)),
    h("span", { class: "row-acts" }, scheduleButton(schedule, again))),
});

function interval({ cron, every, at, timezone }) {
  if (cron) return [h("code", {}, cron), h("small", { class: "quiet" }, ` ${timezone ?? ""}`)];
  if (every) return `every ${typeof every === "number" ? duration(every) : every}`;
  return at ? ["once, ", when(at)] : "–";
}

function scheduleState({ paused_at, paused_by, pause_reason, last_error }) {
  if (paused_at) {
    return [pill("paused", "paused"), h("small", { class: "quiet why-held" }, `by ${paused_by}${pause_reason ? `: ${pause_reason}` : ""}`)];
  }
  return last_error ? [pill("dead", "failing"), errorText(last_error)] : pill("completed", "on");
}

function scheduleButton({ name, paused_at }, again) {
  if (!may("operator")) return null;
  const verb = paused_at ? "resume" : "pause";
  return button(paused_at ? "Resume" : "Pause", async () => {
    await post(path`schedules/${name}/${verb}`);
    notify(`Schedule ${name} is ${verb}d.`);
    await again();
  }, { kind: "small", name: `${verb} schedule ${name}` });
}

/** Read when one opens it: most look at one of many. */
function pastRuns({ name }) {
  const list = h("ol", { class: "runs" }, h("li", { class: "quiet" }, "Loading…"));
  const details = h("details", {}, h("summary", {}, "Show"), list);
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      const { runs } = await get(path`schedules/${name}/runs`);
      show(list, runs.length === 0 && h("li", { class: "quiet" }, "None yet."), runs.map((run) =>
        h("li", {}, when(run.occurrence), " → ",
          run.job_id ? jobLink(run.job_id) : h("span", { class: "quiet" }, `skipped: ${run.skipped}`))));
    } catch (problem) {
      show(list, h("li", {}, trouble(problem)));
    }
  });
  return details;
}

const AUDIT = [["When", ""], ["Who", ""], ["What", ""], ["To", ""], ["Why", "wide"], ["Change", "wide"]];

export function audit(root, stay) {
  const entries = pagedTable({
    caption: "Audit", columns: AUDIT, address: "audit", key: "audit", filter: {}, id: (entry) => entry.entry,
    nothing: "No operator has done anything in the last 90 days.",
    row: (entry) => ({
      element: h("tr", {}, cells(AUDIT,
        when(entry.at), entry.who, entry.verb.replaceAll("_", " "),
        target(entry), entry.reason ?? "", changeOf(entry))),
    }),
  }, stay);
  show(root, heading("Audit", "What operators did, newest first."), entries.element);
}

function target({ job_id, lane, before, after }) {
  return job_id ? jobLink(job_id) : after?.name ?? before?.name ?? lane ?? "–";
}

function changeOf({ before, after }) {
  if (!before && !after) return "";
  return h("details", {}, h("summary", {}, "Before and after"),
    h("pre", { tabindex: 0 }, pretty({ before, after })));
}
