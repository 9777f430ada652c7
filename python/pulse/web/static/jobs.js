// Searching jobs, the dead letters and what awaits approval: three views of one list.

import { bulkButtons, jobButtons } from "./actions.js";
import { h, redraw, show } from "./dom.js";
import { filterForm, fromQuery, toServer } from "./filters.js";
import { number } from "./format.js";
import { pagedTable } from "./pages.js";
import { cells, errorText, heading, jobLink, pill, progress, searchLink, when } from "./parts.js";
import { lacking, may } from "./state.js";

const VIEWS = {
  jobs: {
    title: "Jobs", fixed: {}, verbs: ["cancel", "retry", "reprioritize", "move"],
    nothing: "No job matches.", states: true,
  },
  dead: {
    title: "Dead letters", fixed: { state: ["dead"] }, verbs: ["retry"], right: "operator",
    nothing: "No dead letters. Jobs that fail for good are listed here with their errors.",
    keys: ["lane", "kind", "error", "tag", "group_key", "older_than", "newer_than"],
  },
  approvals: {
    title: "Approvals", fixed: { state: ["awaiting_approval"] }, verbs: ["approve", "reject"], right: "approver",
    nothing: "Nothing awaits approval.",
    keys: ["lane", "kind", "enqueued_by", "tag", "group_key"],
  },
};

const WHAT = {
  jobs: [
    ["Job", "name"], ["State", "state"], ["Kind", "kind"], ["Lane", ""], ["Priority", "num"],
    ["Attempts", "num"], ["Enqueued", "num"], ["What happened", "wide"],
  ],
  dead: [["Job", "name"], ["Kind", "kind"], ["Lane", ""], ["Failures", "num"], ["Died", "num"], ["Error", "wide"], ["", "acts"]],
  approvals: [["Job", "name"], ["Kind", "kind"], ["Lane", ""], ["Enqueued by", ""], ["Enqueued", "num"], ["Expires", "num"], ["Payload", "wide"], ["", "acts"]],
};

export function list(which) {
  return (root, stay, { query }) => {
    const view = VIEWS[which];
    const asked = fromQuery(query);
    const filter = { ...asked, ...view.fixed };
    const columns = WHAT[which];
    const found = pagedTable({
      caption: view.title, columns, address: "jobs", key: "jobs", filter: toServer(filter),
      id: (job) => job.job_id, nothing: view.nothing,
      row: (job) => jobRow(which, columns, job, () => found.again()),
    }, stay);

    function change(next) {
      const words = new URLSearchParams();
      for (const [key, value] of Object.entries(next)) [value].flat().forEach((v) => words.append(key, v));
      const text = words.toString();
      location.hash = `#/${which}${text ? `?${text}` : ""}`;
    }

    // A bulk verb needs a filter, or the word that it is all of them.
    const acts = which !== "jobs" || Object.keys(asked).length > 0
      ? bulkButtons(view.verbs, toServer(filter), found.again) : [];
    show(root,
      heading(view.title, null, ...acts),
      view.right && !may(view.right) && h("p", { class: "quiet note-line" }, lacking(view.right)),
      filterForm(asked, change, { states: Boolean(view.states), keys: view.keys }),
      found.element);
  };
}

function jobRow(which, columns, job, again) {
  const element = h("tr", { "data-job": job.job_id });
  let before = "";
  return {
    element,
    update(now) {
      const text = JSON.stringify({ ...now, waiting_for: null });
      if (text === before) return;
      before = text;
      redraw(element, cells(columns, ...contents[which](now, again)));
    },
  };
}

const contents = {
  jobs: (job) => [
    jobLink(job.job_id), pill(job.state), searchLink(job.kind, { kind: job.kind }),
    searchLink(job.lane, { lane: job.lane }), number(job.priority),
    `${number(job.attempts)}`, when(job.enqueued_at), happened(job),
  ],
  dead: (job, again) => [
    jobLink(job.job_id), searchLink(job.kind, { kind: job.kind }), searchLink(job.lane, { lane: job.lane }),
    `${job.failures} of ${job.max_attempts}`, when(job.finished_at), errorText(job.last_error),
    h("span", { class: "row-acts" }, jobButtons(job, again, ["retry"], true)),
  ],
  approvals: (job, again) => [
    jobLink(job.job_id), searchLink(job.kind, { kind: job.kind }), searchLink(job.lane, { lane: job.lane }),
    job.enqueued_by, when(job.enqueued_at), when(job.approval_until), payloadLine(job.payload),
    h("span", { class: "row-acts" }, jobButtons(job, again, ["approve", "reject"], true)),
  ],
};

function payloadLine(payload) {
  if (payload === null || payload === undefined) return h("span", { class: "quiet" }, "large: open the job to see it");
  return h("code", { class: "one-line" }, JSON.stringify(payload));
}

/** The one thing worth saying about a job in this state. */
function happened(job) {
  if (job.state === "running") {
    const line = progress();
    line.set(job.progress, job.progress_note);
    return line.element;
  }
  if (job.last_error && job.state !== "completed") return errorText(job.last_error);
  if (job.state === "scheduled" || job.state === "retrying") return ["due ", when(job.run_at)];
  if (job.state === "awaiting_approval") return ["expires ", when(job.approval_until)];
  if (job.finished_at) return ["finished ", when(job.finished_at), job.worker ? ` by ${job.worker}` : ""];
  return h("span", { class: "quiet" }, "in line");
}
