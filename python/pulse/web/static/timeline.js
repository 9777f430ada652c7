// A job's history, oldest first: what it did, what its workers reported, what operators did.

import { h } from "./dom.js";
import { clock, duration, moment } from "./format.js";
import { errorText, when } from "./parts.js";

const ENDS = { completed: "Completed", dead: "Given up", cancelled: "Cancelled" };

export function timeline(job) {
  const events = [...enqueued(job), ...runs(job), ...steered(job), ...ended(job)];
  events.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return [...events, ...ahead(job)].map(item);
}

/** @param {{ at: string, tone: string, title: string, text?: string, body?: any }} event */
function item({ at, tone, title, text, body }) {
  return h("li", { "data-tone": tone },
    h("div", { class: "what" }, h("b", {}, title), text && ` ${text}`),
    at && h("time", { datetime: at, title: moment(at) }, clock(at)),
    body && h("div", { class: "more" }, body));
}

function* enqueued(job) {
  yield { at: job.enqueued_at, tone: "start", title: "Enqueued", text: `by ${job.enqueued_by}` };
}

/** Every run that ended badly has left its error; the last one may still run. */
function* runs(job) {
  const failed = job.attempts_log ?? job.errors ?? [];
  for (const run of failed) {
    if (run.started_at) yield begun(run.started_at, run.attempt, run.worker);
    const took = run.started_at ? `after ${span(run.started_at, run.failed_at)}` : "";
    yield {
      at: run.failed_at ?? run.started_at, tone: "bad", title: `Attempt ${run.attempt} failed`, text: took,
      body: errorText(run.error),
    };
  }
  const logged = failed.some((run) => run.attempt === job.attempts);
  if (job.started_at && !logged && job.attempts > 0) yield begun(job.started_at, job.attempts, job.worker);
}

function begun(at, attempt, worker) {
  return { at, tone: "run", title: `Attempt ${attempt} began`, text: worker ? `on ${worker}` : "" };
}

function span(from, to) {
  return duration((Date.parse(to) - Date.parse(from)) / 1000);
}

function* steered(job) {
  for (const entry of job.audit ?? []) {
    yield {
      at: entry.at, tone: "hand", title: entry.verb.replaceAll("_", " "), text: `by ${entry.who}`,
      body: entry.reason && h("q", {}, entry.reason),
    };
  }
}

function* ended(job) {
  if (!job.finished_at) return;
  const took = job.started_at ? `${span(job.enqueued_at, job.finished_at)} after it was enqueued` : "";
  yield {
    at: job.finished_at, tone: job.state, title: ENDS[job.state] ?? job.state, text: took,
    body: job.state === "cancelled" && job.last_error ? errorText(job.last_error) : null,
  };
}

/** What comes next, below what was. */
function* ahead(job) {
  if (job.state === "retrying" || job.state === "scheduled") {
    yield { at: job.run_at, tone: "next", title: job.state === "retrying" ? "Next attempt" : "Due", text: "", body: when(job.run_at) };
  }
  if (job.cancel_by) yield { at: job.cancel_by, tone: "next", title: "Ended by force", text: "unless it stops before", body: when(job.cancel_by) };
}
