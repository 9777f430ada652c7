// The running jobs, longest first, moving as their handlers report.

import { jobButtons } from "./actions.js";
import { h, keyed, show, write } from "./dom.js";
import { cells, empty, jobLink, kindLink, pill, progress, searchLink, setWhen, table } from "./parts.js";

const COLUMNS = [
  ["Job", "name"], ["Kind", "kind"], ["Lane", ""], ["Worker", "worker"],
  ["Running for", "num"], ["Progress", "wide"], ["", "acts"],
];

export function runningTable() {
  const { element, body } = table("Running jobs", COLUMNS, "running");
  const none = empty("Nothing runs right now.");
  const all = h("div", {}, element, none);
  return {
    element: all,
    set(jobs) {
      keyed(body, jobs, (job) => job.job_id, runningRow);
      element.hidden = jobs.length === 0;
      none.hidden = jobs.length > 0;
    },
  };
}

function runningRow(job) {
  const worker = h("span");
  const started = h("time");
  const line = progress();
  const acts = h("span", { class: "row-acts" });
  let asked = null;
  return {
    element: h("tr", { "data-job": job.job_id }, cells(COLUMNS,
      jobLink(job.job_id),
      kindLink(job.kind),
      searchLink(job.lane, { lane: job.lane }),
      worker, started, line.element, acts)),
    update(now) {
      write(worker, now.worker);
      setWhen(started, now.started_at, "since");
      line.set(now.progress, now.progress_note);
      const wanted = now.cancel_by ?? "";
      if (asked === wanted) return;
      asked = wanted;
      show(acts,
        wanted && pill("cancelled", "asked to stop"),
        jobButtons({ ...now, state: "running" }, null, ["cancel"], true));
    },
  };
}
