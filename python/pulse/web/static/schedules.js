// Schedules: what the clock enqueues; made, changed, run, paused and removed here.

import { get, path, post, put, remove } from "./api.js";
import { ask, button, notify } from "./dialog.js";
import { h, show } from "./dom.js";
import { duration, interval as words, pretty } from "./format.js";
import { whole } from "./lists.js";
import { cells, errorText, jobLink, kindLink, pill, trouble, when } from "./parts.js";
import { may, refreshSummary } from "./state.js";

const COLUMNS = [["Schedule", "name"], ["Recurrence", ""], ["Kind", "kind"], ["Next", "num"], ["Last", "num"], ["State", "state"], ["Past runs", "wide"], ["", "acts"]];

export const schedules = whole({
  title: "Schedules", columns: COLUMNS, address: "schedules", key: "schedules", id: (schedule) => schedule.name,
  nothing: "There are no schedules.",
  fits: ({ name }, query) => !query.get("name") || query.get("name") === name,
  actions: (again) => may("operator") && button("New schedule…", () => edit(null, again), { kind: "primary" }),
  row: (schedule, again, kept) => cells(COLUMNS,
    schedule.name, recurrence(schedule), kindLink(schedule.kind),
    when(schedule.next_at), when(schedule.last_occurrence), state(schedule), (kept.runs ??= pastRuns(schedule)),
    h("span", { class: "row-acts" }, buttons(schedule, again))),
});

function recurrence({ cron, every, at, timezone }) {
  if (cron) return [h("code", {}, cron), h("small", { class: "quiet" }, ` ${timezone ?? ""}`)];
  if (every) return `every ${duration(every)}`;
  return at ? ["once, ", when(at)] : "–";
}

function state({ paused_at, paused_by, pause_reason, last_error, late }) {
  if (paused_at) {
    return [pill("paused", "paused"), h("small", { class: "quiet why-held" }, `by ${paused_by}${pause_reason ? `: ${pause_reason}` : ""}`)];
  }
  if (last_error) return [pill("dead", "failing"), errorText(last_error)];
  return late ? pill("retrying", "late") : pill("completed", "on");
}

function buttons(schedule, again) {
  if (!may("operator")) return null;
  const { name, paused_at: paused } = schedule;
  const verb = paused ? "resume" : "pause";
  const done = async (text) => {
    notify(`Schedule ${name} ${text}.`);
    await Promise.all([again(), refreshSummary()]);
  };
  return [
    button(paused ? "Resume" : "Pause", async () => {
      await post(path`schedules/${name}/${verb}`);
      await done(`is ${verb}d`);
    }, { kind: "small", name: `${verb} schedule ${name}` }),
    button("Run now", async () => {
      const { job_id: job } = await post(path`schedules/${name}/run`);
      await done(`enqueued job ${job}`);
    }, { kind: "small", name: `Run schedule ${name} now` }),
    button("Edit…", () => edit(schedule, again), { kind: "small", name: `Edit schedule ${name}` }),
    button("Remove…", async () => {
      const said = await ask({
        title: `Remove schedule ${name}?`, text: "Its past runs stay listed for 90 days, and its jobs go on.", confirm: "Remove", danger: true,
      });
      if (!said) return;
      await remove(path`schedules/${name}`);
      await done("is removed");
    }, { kind: "small ghost", name: `Remove schedule ${name}` }),
  ];
}

const CATCH_UP = "What happens to runs that were missed while no maintenance ran.";

/** One form for a new schedule and an old one; the database says what is wrong with it. */
async function edit(old, again) {
  const options = old?.options ?? {};
  const field = (name, label, more = {}) => ({ name, label, value: old?.[name] ?? options[name] ?? "", ...more });
  const said = await ask({
    title: old ? `Edit schedule ${old.name}` : "New schedule",
    text: "Exactly one of cron, every and at.",
    wide: true,
    fields: [
      ...(old ? [] : [field("name", "Name", { required: true })]),
      field("kind", "Kind", { required: true, hint: "What code runs it." }),
      field("cron", "Cron", { placeholder: "30 3 * * mon-fri" }),
      field("every", "Every", { placeholder: "15 minutes", value: words(old?.every) }),
      field("at", "At", { placeholder: "2030-01-01 12:00+00" }),
      field("timezone", "Time zone", { value: old?.timezone ?? "UTC" }),
      field("payload", "Payload", { type: "lines", value: pretty(old?.payload ?? {}), hint: "JSON" }),
      field("lane", "Lane", { placeholder: "that of the kind" }),
      field("priority", "Priority", { type: "number" }),
      field("max_attempts", "Attempts", { type: "number", min: 1 }),
      field("max_runtime", "Longest run", { placeholder: "no limit" }),
      field("unique_key", "Unique key", { hint: "Keeps runs from overlapping." }),
      field("tags", "Tags", { value: (options.tags ?? []).join(", "), placeholder: "a, b" }),
      field("catch_up", "Catch up", { options: ["skip", "last", "all"], value: old?.catch_up ?? "skip", hint: CATCH_UP }),
      field("requires_approval", "Needs approval", { type: "checkbox", value: options.requires_approval ?? false }),
    ],
    confirm: old ? "Save" : "Create",
    work: (form) => put(path`schedules/${old?.name ?? form.name}`, body(/** @type {any} */ (form), old)),
  });
  if (!said) return;
  notify(`Schedule ${old?.name ?? said.name} is ${old ? "changed" : "created"}.`);
  await Promise.all([again(), refreshSummary()]);
}

/** What is left empty is not sent; what the form does not show stays as it was. */
function body({ name: _, payload, tags, requires_approval: approval, ...rest }, old) {
  let json;
  try {
    json = JSON.parse(payload || "{}");
  } catch (error) {
    throw Object.assign(new Error("The payload is not JSON"), { detail: /** @type {Error} */ (error).message });
  }
  const { unique_for, group_key, headers, expires_in } = old?.options ?? {};
  const kept = { unique_for, group_key, headers, expires_in, catch_up_window: old?.catch_up_window };
  const given = Object.entries({ ...kept, ...rest }).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const list = tags.split(",").map((tag) => tag.trim()).filter(Boolean);
  return {
    ...Object.fromEntries(given), payload: json,
    ...(list.length ? { tags: list } : {}), ...(approval ? { requires_approval: true } : {}),
  };
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
