// What an operator can do to jobs: what a verb asks first, and what it says afterwards.
// pulse.verbs() tells which levels may call a verb and which states it fits.

import { patch, path, post, query, remove } from "./api.js";
import { ask, button, notify } from "./dialog.js";
import { h } from "./dom.js";
import { now, number, plural } from "./format.js";
import { actsOn, mayCall } from "./state.js";

const REASON = { name: "reason", label: "Reason", placeholder: "optional, kept in the audit" };

/** verb → label, and the work; sql where the database has another name for it. */
const VERBS = {
  approve: {
    label: "Approve", kind: "primary",
    done: "approved", run: (job) => post(path`jobs/${job.job_id}/approve`),
  },
  reject: {
    label: "Reject…", done: "rejected",
    ask: { title: "Reject this job?", text: "It is cancelled, with the reason as its error.", confirm: "Reject", danger: true, fields: [REASON] },
    run: (job, said) => post(path`jobs/${job.job_id}/reject`, reason(said)),
  },
  retry: {
    label: "Retry", kind: "primary",
    done: "put back in line", run: (job) => post(path`jobs/${job.job_id}/retry`),
  },
  run_now: {
    label: "Run now", kind: "primary",
    done: "put in line", run: (job) => post(path`jobs/${job.job_id}/run-now`),
  },
  reschedule: {
    label: "Reschedule…", done: "rescheduled",
    ask: (job) => ({
      title: "Run it at another time", confirm: "Reschedule",
      fields: [{ name: "run_at", label: "At", type: "datetime-local", required: true, value: local(job.run_at) }, REASON],
    }),
    run: (job, said) => post(path`jobs/${job.job_id}/reschedule`, { run_at: new Date(said.run_at).toISOString(), ...reason(said) }),
  },
  rerun: {
    label: "Run again", done: "enqueued once more",
    run: (job) => post(path`jobs/${job.job_id}/rerun`),
    outcome: (after) => `runs again as job ${after.job_id}`,
  },
  cancel: {
    label: "Cancel…", done: "cancelled",
    ask: {
      title: "Cancel this job?", confirm: "Cancel the job", danger: true,
      text: "A waiting job is cancelled at once. A running one is asked to stop and ended after the lane's grace.",
      fields: [REASON, {
        name: "force", type: "checkbox", label: "Take it from its worker at once",
        hint: "Its worker may still be at work; its result is dropped.",
      }],
    },
    run: (job, said) => post(path`jobs/${job.job_id}/cancel`, { ...reason(said), force: said.force }),
    outcome: (after) => (after?.state === "running" ? "asked to stop" : "cancelled"),
  },
  reprioritize: {
    label: "Priority…", done: "has its new priority",
    ask: (job) => ({
      title: "Change the priority", confirm: "Change", text: "Higher runs first.",
      fields: [{ name: "priority", label: "Priority", type: "number", required: true, value: job.priority }, REASON],
    }),
    run: (job, said) => patch(path`jobs/${job.job_id}/priority`, { priority: said.priority, ...reason(said) }),
  },
  move: {
    label: "Move…", done: "moved",
    ask: (job) => ({
      title: "Move to another lane", confirm: "Move", text: "It joins the end of its priority there.",
      fields: [{ name: "lane", label: "Lane", required: true, value: job.lane }, REASON],
    }),
    run: (job, said) => post(path`jobs/${job.job_id}/move`, { lane: said.lane, ...reason(said) }),
  },
  discard: {
    label: "Delete…", sql: "delete_job", done: "deleted",
    ask: {
      title: "Delete this job?", confirm: "Delete", danger: true,
      text: "Its errors, progress and result are deleted too. This cannot be undone.", fields: [REASON],
    },
    run: (job, said) => remove(path`jobs/${job.job_id}` + query(reason(said))),
  },
};

/** As a field for a local time takes it. */
function local(iso) {
  const at = new Date(iso ?? now());
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

function reason(said) {
  return said?.reason ? { reason: said.reason } : {};
}

/** Buttons for what this person may do to this job now. */
export function jobButtons(job, after, verbs = Object.keys(VERBS), small = false) {
  return verbs
    .filter((verb) => mayCall(VERBS[verb].sql ?? verb) && actsOn(VERBS[verb].sql ?? verb).includes(job.state))
    .map((verb) => button(VERBS[verb].label, () => act(verb, job, after), {
      kind: small ? "small" : VERBS[verb].kind,
      name: small ? `${VERBS[verb].label} job ${job.job_id}` : undefined,
    }));
}

async function act(verb, job, after) {
  const { ask: question, run, done, outcome } = VERBS[verb];
  /** @type {Record<string, any> | null} */
  let said = {};
  if (question) {
    said = await ask(typeof question === "function" ? question(job) : question);
    if (!said) return;
  }
  const answer = await run(job, said);
  notify(`Job ${job.job_id} ${outcome ? outcome(answer) : done}.`);
  await after?.(answer, verb);
}

/** The same verbs by a filter. */
const BULK = {
  retry: { short: "Retry…", word: "retry", done: "Retried" },
  cancel: { short: "Cancel…", word: "cancel", done: "Cancelled", danger: true },
  run_now: { short: "Run now…", word: "run", done: "Put in line" },
  reschedule: {
    short: "Reschedule…", word: "reschedule", done: "Rescheduled",
    field: { name: "run_at", label: "Run at", type: "datetime-local", required: true, value: "" },
    order: ({ run_at }) => ({ run_at: new Date(run_at).toISOString() }),
  },
  rerun: { short: "Run again…", word: "run again", done: "Enqueued again" },
  discard: { short: "Discard…", word: "discard", done: "Discarded", danger: true },
  approve: { short: "Approve…", word: "approve", done: "Approved" },
  reject: { short: "Reject…", word: "reject", done: "Rejected", danger: true },
  reprioritize: {
    short: "Priority…", word: "change the priority of", done: "Changed the priority of",
    field: { name: "priority", label: "New priority", type: "number", required: true, value: 0 },
  },
  move: {
    short: "Move…", word: "move", done: "Moved",
    field: { name: "lane", label: "To lane", required: true },
  },
};

/**
 * Buttons for what could be done to jobs in the states that a filter asks for. of: what
 * they are, where several such rows stand on one page.
 * @param {string[]} verbs
 * @param {Record<string, any>} filter
 * @param {() => any} after
 * @param {{ of?: string }} [where]
 */
export function bulkButtons(verbs, filter, after, { of } = {}) {
  const wanted = filter.state && [filter.state].flat();
  const fits = (verb) => !wanted || wanted.some((state) => actsOn(`${verb}_where`).includes(state));
  return verbs
    .filter((verb) => verb in BULK && mayCall(`${verb}_where`) && fits(verb))
    .map((verb) => button(of ? BULK[verb].short : `${BULK[verb].short.replace("…", "")} all matching…`, () => bulk(verb, filter, after),
      of ? { kind: "small", name: `${BULK[verb].short} ${of}` } : {}));
}

/** The same for jobs that were chosen one by one. */
export function selectionButtons(jobs, after) {
  const ids = jobs.map((job) => job.job_id);
  const states = new Set(jobs.map((job) => job.state));
  return Object.keys(BULK)
    .filter((verb) => mayCall(`${verb}_where`) && actsOn(`${verb}_where`).some((state) => states.has(state)))
    .map((verb) => button(BULK[verb].short, () => bulk(verb, { job_ids: ids }, after), { name: `${BULK[verb].short} the selected jobs` }));
}

/** First what it would do, in numbers; only then, when confirmed, do it. */
async function bulk(verb, filter, after) {
  const { word, done, field, order: toOrder, danger } = BULK[verb];
  const order = { verb, filter };
  if (field) {
    const said = await ask({ title: `First: ${field.label.toLowerCase()}?`, fields: [field], confirm: "Count the jobs" });
    if (!said) return;
    Object.assign(order, toOrder ? toOrder(said) : said);
  }
  const would = await post("jobs/bulk", { ...order, dry_run: true });
  if (would.done === 0) {
    notify(`Nothing to do: no job matches that one could ${word}.`);
    return;
  }
  const said = await ask({
    title: `Would ${word} ${plural(would.done, "job")}`,
    text: would.remaining > 0
      ? `One call takes ${number(would.done)}; ${number(would.remaining)} more would be left for the next.`
      : "Nothing has been changed yet. Jobs that move meanwhile are left alone.",
    details: [filterList(filter)],
    fields: [REASON],
    confirm: `${word[0].toUpperCase()}${word.slice(1)} ${plural(would.done, "job")}`,
    danger,
  });
  if (!said) return;
  const did = await post("jobs/bulk", { ...order, dry_run: false, max_jobs: would.done, ...reason(said) });
  notify(`${done} ${plural(did.done, "job")}${did.remaining > 0 ? `, ${number(did.remaining)} left` : ""}.`);
  await after?.();
}

function filterList(filter) {
  return h("dl", { class: "filter" }, Object.entries(filter).map(([key, value]) =>
    h("div", {}, h("dt", {}, key.replaceAll("_", " ")), h("dd", {}, said(value)))));
}

function said(value) {
  if (!Array.isArray(value)) return typeof value === "object" ? JSON.stringify(value) : value;
  return value.length > 10 ? `${value.slice(0, 10).join(", ")} and ${number(value.length - 10)} more` : value.join(", ");
}
