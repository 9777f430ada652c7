// Searching jobs, the dead letters and what awaits approval: three views of one list.

import { bulkButtons, jobButtons } from "./actions.js";
import { get, query as address } from "./api.js";
import { h, keyed, redraw, show, write } from "./dom.js";
import { filterForm, fromQuery, toAddress, toQuery, toServer, understood } from "./filters.js";
import { capped, number } from "./format.js";
import { pagedTable } from "./pages.js";
import { cells, errorText, heading, jobLink, kindLink, pill, progress, searchLink, table, when } from "./parts.js";
import { PICK, selection } from "./selection.js";
import { lacking, may, watchSummary } from "./state.js";
import { groupFilter } from "./troubles.js";

const VIEWS = {
  jobs: {
    title: "Jobs", fixed: {}, verbs: ["cancel", "retry", "run_now", "reschedule", "rerun", "discard", "reprioritize", "move"],
    nothing: "No job matches.", states: true,
  },
  dead: {
    title: "Dead letters", fixed: { state: ["dead"] }, verbs: ["retry", "discard"], right: "operator",
    nothing: "No dead letters. Jobs that fail for good are listed here with their errors.",
    keys: ["lane", "kind", "error", "tag", "payload", "group_key", "older_than", "newer_than"],
  },
  approvals: {
    title: "Approvals", fixed: { state: ["awaiting_approval"] }, verbs: ["approve", "reject"], right: "approver",
    nothing: "Nothing awaits approval.",
    keys: ["lane", "kind", "enqueued_by", "tag", "payload", "group_key"],
  },
};

const WHAT = {
  jobs: [
    ["Job", "name"], ["State", "state"], ["Kind", "kind"], ["Lane", "lane"], ["Priority", "num"],
    ["Attempts", "num"], ["Enqueued", "num age"], ["What happened", "wide"],
  ],
  dead: [["Job", "name"], ["Kind", "kind"], ["Lane", "lane"], ["Failures", "num"], ["Died", "num age"], ["Error", "wide"], ["", "acts"]],
  approvals: [["Job", "name"], ["Kind", "kind"], ["Lane", "lane"], ["Enqueued by", ""], ["Enqueued", "num age"], ["Expires", "num"], ["Payload", "wide"], ["", "acts"]],
};

export function list(which) {
  return (root, stay, { query }) => {
    const view = VIEWS[which];
    const asked = fromQuery(query);
    const filter = { ...asked, ...view.fixed };
    const found = jobTable(which, filter, stay, view.nothing);

    function change(next) {
      const text = toQuery(next).toString();
      location.hash = `#/${which}${text ? `?${text}` : ""}`;
    }

    // A bulk verb needs a filter, or the word that it is all of them.
    const acts = which !== "jobs" || Object.keys(asked).length > 0
      ? bulkButtons(view.verbs, toServer(filter), found.again) : [];
    const form = filterForm(asked, change, { states: Boolean(view.states), keys: view.keys });
    stay.until(watchSummary(({ counts }) => {
      for (const [state, chip] of form.chips) write(chip, counts[state].jobs ? capped(counts[state]) : "");
    }));
    show(root,
      heading(view.title, null, ...acts),
      view.right && !may(view.right) && h("p", { class: "quiet note-line" }, lacking(view.right)),
      form.element,
      understood(asked, change),
      which === "dead" && may("viewer") && deadGroups(asked, stay, found.again, "By kind and error", "By time of death"),
      found.element);
  };
}

/** Jobs that match a filter, as a view shows them, with boxes to select them. */
export function jobTable(which, filter, stay, nothing, limit = 50) {
  const chosen = selection(() => found.again());
  const columns = chosen.allowed ? [PICK, ...WHAT[which]] : WHAT[which];
  // Those who see their own jobs alone have them by number.
  const byDeath = which === "dead" && may("viewer");
  const { state, ...rest } = toAddress(filter);
  const found = pagedTable({
    caption: VIEWS[which].title, columns, kind: `jobs ${which}`, nothing, limit,
    address: byDeath ? "dead" : "jobs", key: "jobs", filter: byDeath ? rest : { state, ...rest },
    id: (job) => job.job_id, shown: chosen.shown,
    row: (job) => jobRow(which, columns, job, chosen, () => found.again()),
  }, stay);
  if (chosen.allowed) {
    found.element.querySelector("th.pick")?.append(chosen.every);
    found.element.append(chosen.bar);
  }
  return found;
}

function jobRow(which, columns, job, chosen, again) {
  const element = h("tr", { "data-job": job.job_id });
  const pick = chosen.allowed ? [chosen.box(job.job_id)] : [];
  let before = "";
  return {
    element,
    update(now) {
      const text = JSON.stringify({ ...now, waiting_for: null });
      if (text === before) return;
      before = text;
      redraw(element, cells(columns, ...pick, ...contents[which](now, again)));
    },
  };
}

const GROUPS = [["Kind", "kind name"], ["Error", "wide"], ["Jobs", "num"], ["First", "num"], ["Last", "num"], ["", "acts"]];

/** Errors of dead jobs: one line for each kind and error; next is shown below it. */
export function deadGroups(asked, stay, after, title, next) {
  const { element, body } = table("Dead letters by kind and error", GROUPS, "groups");
  const all = h("section", { class: "of-groups", hidden: true },
    h("div", { class: "heading second" }, h("h2", {}, title), h("span", { class: "quiet" }, "of the last 5,000")), element,
    next && h("div", { class: "heading second" }, h("h2", {}, next)));

  async function load() {
    const { groups } = await get(`dead/groups${address({ ...toAddress(asked), limit: 20 })}`);
    if (stay.left) return;
    all.hidden = groups.length === 0;
    keyed(body, groups, (group) => JSON.stringify([group.kind, group.error_like]), groupRow);
  }

  function groupRow(group) {
    const filter = groupFilter(group);
    const [jobs, first, last] = [h("a", { href: `#/dead?${toQuery({ ...asked, ...filter })}` }), h("time"), h("time")];
    const acts = bulkButtons(["retry", "discard"], { ...toServer(asked), ...filter, state: ["dead"] }, async () => {
      await Promise.all([load(), after()]);
    }, { of: `${group.kind}: ${group.error}` });
    return {
      element: h("tr", { "data-kind": group.kind }, cells(GROUPS, kindLink(group.kind), errorText(group.error), jobs, first, last, h("span", { class: "row-acts" }, acts))),
      update(now) {
        write(jobs, number(now.jobs));
        redraw(first, when(now.first_at));
        redraw(last, when(now.last_at));
      },
    };
  }

  load().catch(() => {});
  stay.every(5, load);
  return all;
}

const contents = {
  jobs: (job) => [
    jobLink(job.job_id), pill(job.state), kindLink(job.kind),
    searchLink(job.lane, { lane: job.lane }), number(job.priority),
    `${number(job.attempts)}`, when(job.enqueued_at), happened(job),
  ],
  dead: (job, again) => [
    jobLink(job.job_id), kindLink(job.kind), searchLink(job.lane, { lane: job.lane }),
    `${job.failures} of ${job.max_attempts}`, when(job.finished_at), errorText(job.last_error),
    h("span", { class: "row-acts" }, jobButtons(job, again, ["retry"], true)),
  ],
  approvals: (job, again) => [
    jobLink(job.job_id), kindLink(job.kind), searchLink(job.lane, { lane: job.lane }),
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
