// One job: what it is, why it is where it is, what can be done, and its life so far.

import { jobButtons } from "./actions.js";
import { follow, get, path } from "./api.js";
import { h, show, write } from "./dom.js";
import { duration, moment, number, plural, pretty } from "./format.js";
import { heading, pill, progress, searchLink, setPill, trouble, when } from "./parts.js";
import { lacking, may } from "./state.js";
import { timeline } from "./timeline.js";

export async function job(root, stay, { id }) {
  const state = h("span", { class: "pill" });
  const acts = h("div", { class: "actions" });
  const line = progress();
  const now = h("div", { class: "panel now", hidden: true }, line.element);
  const title = h("h1", { tabindex: -1 }, `Job ${id}`);
  const kind = h("span", { class: "of" });
  const why = h("ol", { class: "why" });
  const life = h("ol", { class: "life" });
  const facts = h("dl", { class: "facts" });
  const data = h("div", { class: "data" });
  let seen = "";

  function page() {
    show(root,
      h("div", { class: "heading" }, h("div", { class: "job-title" }, title, state, kind), acts),
      !may("operator") && h("p", { class: "quiet note-line" }, lacking("operator")),
      now,
      h("div", { class: "columns" },
        h("div", {},
          h("section", { class: "panel padded" }, h("h2", {}, "Where it stands"), why),
          h("section", { class: "panel padded" }, h("h2", {}, "Its life"), life)),
        h("div", {},
          h("section", { class: "panel padded" }, h("h2", {}, "Facts"), facts), data)));
  }

  function moved({ state: word, progress: part, progress_note: note }) {
    setPill(state, word);
    now.hidden = word !== "running";
    line.set(part, note);
  }

  function draw(found) {
    moved(found);
    write(kind, `${found.kind} in ${found.lane}`);
    const focused = acts.contains(document.activeElement);
    show(acts, jobButtons(found, (_, verb) => (verb === "delete" ? history.back() : load())));
    if (focused) (acts.querySelector("button") ?? title).focus();
    show(why, found.why.map(({ reason }) => h("li", {}, reason)));
    show(life, timeline(found));
    show(facts, factRows(found));
    show(data, dataBlock("Payload", found.payload), dataBlock("Result", found.result));
  }

  async function load() {
    const found = await get(path`jobs/${id}`);
    if (!stay.left) draw(found);
  }

  try {
    const found = await get(path`jobs/${id}`);
    if (stay.left) return;
    page();
    draw(found);
  } catch (problem) {
    show(root, heading(`Job ${id}`), trouble(problem));
    return;
  }

  // Progress is shown as it comes; when the job took a step, all of it is read again.
  stay.until(follow(path`jobs/${id}/stream`, {
    job(told) {
      moved(told);
      const step = JSON.stringify([told.state, told.attempt ?? told.attempts, told.cancel_by, told.priority, told.lane]);
      if (seen && step !== seen) load().catch(() => {});
      seen = step;
    },
    end: (_, stop) => {
      stop();
      load().catch(() => {});
    },
  }));
  // What stands in its way changes without the job taking a step.
  stay.every(5, load);
}

function factRows(job) {
  const rows = [
    ["Kind", searchLink(job.kind, { kind: job.kind })],
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
    job.group_key && ["Group", searchLink(job.group_key, { group_key: job.group_key })],
    job.tags?.length && ["Tags", job.tags.map((tag) => [searchLink(tag, { tag }), " "])],
    job.finished_at && ["Finished", h("span", { title: moment(job.finished_at) }, when(job.finished_at))],
    job.ended_by && ["Ended by", job.ended_by],
  ];
  return rows.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

function dataBlock(title, value) {
  if (value === null || value === undefined) return null;
  return h("section", { class: "panel padded" }, h("h2", {}, title), h("pre", { tabindex: 0 }, pretty(value)));
}
