// Rows that were ticked, and the bar that acts on them.

import { selectionButtons } from "./actions.js";
import { h, redraw, write } from "./dom.js";
import { plural } from "./format.js";
import { may } from "./state.js";

export const PICK = ["", "pick"];

/** after() reads the list again once a verb is done. */
export function selection(after) {
  const picked = new Set();
  const boxes = new Map();
  let jobs = [];
  const allowed = may("operator") || may("approver");
  const words = h("b");
  const verbs = h("span", { class: "row-acts" });
  const bar = h("div", { class: "selected", role: "region", "aria-label": "Selected jobs", hidden: true }, words, verbs,
    h("button", { type: "button", class: "ghost", onclick: clear }, "Clear selection"));
  const every = h("input", { type: "checkbox", "aria-label": "Select all on this page" });
  every.addEventListener("change", () => {
    for (const job of jobs) mark(job.job_id, every.checked);
    draw();
  });
  let last = null;

  function mark(id, on) {
    if (on) picked.add(id);
    else picked.delete(id);
    const box = boxes.get(id);
    if (box) box.checked = on;
  }

  function clear() {
    for (const id of [...picked]) mark(id, false);
    draw();
  }

  function draw() {
    const chosen = jobs.filter((job) => picked.has(job.job_id));
    bar.hidden = chosen.length === 0;
    every.checked = chosen.length > 0 && chosen.length === jobs.length;
    every.indeterminate = chosen.length > 0 && !every.checked;
    write(words, `${plural(chosen.length, "job")} selected`);
    redraw(verbs, selectionButtons(chosen, async () => {
      clear();
      await after();
    }));
  }

  return {
    allowed,
    bar,
    every,
    /** A box for a row. With Shift it takes the rows since the last one along. */
    box(id) {
      const box = h("input", { type: "checkbox", "aria-label": `Select job ${id}` });
      box.checked = picked.has(id);
      boxes.set(id, box);
      box.addEventListener("click", (event) => {
        const ids = jobs.map((job) => job.job_id);
        const [from, to] = [ids.indexOf(event.shiftKey && last !== null ? last : id), ids.indexOf(id)];
        for (const each of ids.slice(Math.min(from, to), Math.max(from, to) + 1)) mark(each, box.checked);
        last = id;
        draw();
      });
      return box;
    },
    /** The rows now on screen: what is gone is no longer chosen. */
    shown(now) {
      jobs = now;
      const ids = new Set(now.map((job) => job.job_id));
      for (const id of picked) if (!ids.has(id)) picked.delete(id);
      draw();
    },
  };
}
