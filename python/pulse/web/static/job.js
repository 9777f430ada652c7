// One job: what it is, why it is where it is, what can be done, and its history.

import { jobButtons } from "./actions.js";
import { follow, get, path } from "./api.js";
import { h, redraw, show, write } from "./dom.js";
import { duration, number, pretty } from "./format.js";
import { errorText, flowLink, heading, jobLink, kindLink, progress, searchLink, setPill, trouble, when } from "./parts.js";
import { lacking, may, me } from "./state.js";
import { timeline } from "./timeline.js";

const ENDED = ["completed", "dead", "cancelled"];

export async function job(root, stay, { id }) {
  const state = h("span", { class: "pill" });
  const acts = h("div", { class: "actions" });
  const line = progress();
  const now = h("div", { class: "panel now", hidden: true }, line.element);
  const title = h("h1", { tabindex: -1 }, `Job ${id}`);
  const kind = h("span", { class: "of" });
  const why = h("ol", { class: "why" });
  const history = h("ol", { class: "history" });
  const facts = h("dl", { class: "facts" });
  const data = h("div", { class: "data" });
  const shown = {};
  let seen = "";
  let unfollow = null;

  function page() {
    show(root,
      h("div", { class: "heading" }, h("div", { class: "job-title" }, title, state, kind), acts),
      !may("operator") && h("p", { class: "quiet note-line" }, lacking("operator")),
      now,
      h("div", { class: "columns" },
        h("div", {},
          h("section", { class: "panel padded" }, h("h2", {}, "Status"), why),
          h("section", { class: "panel padded" }, h("h2", {}, "History"), history)),
        h("div", {},
          h("section", { class: "panel padded" }, h("h2", {}, "Facts"), facts), data)));
  }

  /** Draw a part when it says something new: what one reads or has opened stays. */
  function part(element, value, make) {
    const text = JSON.stringify(value);
    if (shown[element.className] === text) return;
    shown[element.className] = text;
    redraw(element, make());
  }

  function moved({ state: word, progress: fraction, progress_note: note }) {
    setPill(state, word);
    now.hidden = word !== "running";
    line.set(fraction, note);
  }

  function draw(found) {
    moved(found);
    write(kind, `${found.kind} in ${found.lane}`);
    const { why: reasons, audit, attempts_log: log, payload, result, ...rest } = found;
    part(acts, [rest.state, rest.priority, rest.lane], () =>
      jobButtons(found, (_, verb) => {
        if (verb !== "discard") return load();
        location.hash = "#/jobs";
      }));
    part(why, reasons, () => reasons.map(({ reason }) => h("li", {}, reasonLine(reason))));
    part(history, [audit, log, rest.state, rest.attempts, rest.finished_at, rest.run_at, rest.cancel_by], () => timeline(found));
    part(facts, rest, () => factRows(found));
    part(data, [payload, result], () => [dataBlock("Payload", payload), dataBlock("Result", result)]);
    if (me.streams && !ENDED.includes(found.state)) unfollow ??= listen();
  }

  async function load() {
    const found = await get(path`jobs/${id}`);
    if (!stay.left) draw(found);
  }

  /** Progress is shown as it comes; when the job took a step, all is read again. */
  function listen() {
    return follow(path`jobs/${id}/stream`, {
      job(now) {
        moved(now);
        const step = JSON.stringify([now.state, now.attempt, now.cancel_by, now.priority, now.lane]);
        if (seen && step !== seen) load().catch(() => {});
        seen = step;
      },
      end(now, stop) {
        stop();
        unfollow = null;
        // An approver gets no more than this, and sees it no longer.
        if (now.state) moved(now);
        load().catch(() => {});
      },
    });
  }

  stay.until(() => unfollow?.());
  try {
    const found = await get(path`jobs/${id}`);
    if (stay.left) return;
    page();
    draw(found);
  } catch (problem) {
    show(root, heading(`Job ${id}`), trouble(problem));
    return;
  }
  // What stands in its way changes without the job taking a step.
  stay.every(5, load);
}

/** A reason may quote a traceback: its last line says it, the rest is there to open. */
function reasonLine(reason) {
  const at = reason.indexOf("Traceback (most recent call last)");
  return at < 0 ? reason : [reason.slice(0, at), errorText(reason.slice(at))];
}

function factRows(job) {
  const rows = [
    ["Kind", kindLink(job.kind)],
    ["Lane", searchLink(job.lane, { lane: job.lane })],
    ["Priority", number(job.priority)],
    ["Attempts", `${number(job.attempts)} begun, ${number(job.failures)} of ${number(job.max_attempts)} failures`],
    ["Enqueued", [when(job.enqueued_at), ` by ${job.enqueued_by}`]],
    job.run_at && ["Due", when(job.run_at)],
    job.approval_until && job.state === "awaiting_approval" && ["Approve until", when(job.approval_until)],
    job.worker && ["Worker", searchLink(job.worker, { worker: job.worker })],
    job.lease_until && ["Lease until", when(job.lease_until)],
    job.deadline && ["Deadline", when(job.deadline)],
    job.max_runtime && ["Longest run", typeof job.max_runtime === "number" ? duration(job.max_runtime) : job.max_runtime],
    job.unique_key && ["Unique key", h("code", {}, job.unique_key)],
    job.flow && ["Flow", [flowLink(job.flow), job.name && ` as ${job.name}`]],
    job.waits_for && ["Waits for", [jobLink(job.waits_for), " and perhaps others"]],
    job.group_key && ["Group", searchLink(job.group_key, { group_key: job.group_key })],
    job.tags?.length && ["Tags", job.tags.map((tag) => [searchLink(tag, { tag }), " "])],
    job.finished_at && ["Finished", when(job.finished_at)],
    job.ended_by && ["Ended by", job.ended_by],
  ];
  return rows.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

function dataBlock(title, value) {
  if (value === null || value === undefined) return null;
  return h("section", { class: "panel padded" }, h("h2", {}, title), h("pre", { tabindex: 0 }, pretty(value)));
}
