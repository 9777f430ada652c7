// The first page: what is wrong, every lane at a glance, and what runs right now.

import { history } from "./charts.js";
import { button } from "./dialog.js";
import { h, keyed, show, write } from "./dom.js";
import { count, number, plural, rate } from "./format.js";
import { pauseAll, resumeHold, resumeLane } from "./lanes.js";
import { laneTable } from "./lanetable.js";
import { empty, heading, pill, setWhen, when } from "./parts.js";
import { runningTable } from "./running.js";
import { may, watch } from "./state.js";
import { troubles } from "./troubles.js";

// More holds than these are counted.
const HOLDS = 10;

export function overview(root, stay, { query }) {
  if (!may("viewer")) {
    show(root, heading("Overview"), empty("Your role may not see the lanes. What it may see is under Jobs."));
    return;
  }
  const facts = figures();
  const holds = h("div", { class: "holds" });
  const moreHolds = h("p", { class: "quiet note-line" });
  const lanes = laneTable();
  const running = runningTable();
  const runningNote = h("span", { class: "quiet" });
  show(root,
    heading("Overview", null, may("operator") && button("Pause everything…", pauseAll)),
    troubles(stay), holds, moreHolds, facts.element, history("", query, stay),
    lanes.heading, lanes.element,
    h("div", { class: "heading second" }, h("h2", {}, "Running now"), runningNote),
    running.element);
  stay.until(watch((picture) => {
    facts.set(picture);
    const held = heldUp(picture);
    keyed(holds, held.slice(0, HOLDS), holdKey, holdLine);
    moreHolds.hidden = held.length <= HOLDS;
    write(moreHolds, `and ${plural(held.length - HOLDS, "hold")} more`);
    lanes.set(picture.lanes);
    running.set(picture.running);
    const used = total(picture.lanes, "used");
    write(runningNote, picture.running.length < used
      ? `the ${number(picture.running.length)} longest of ${number(used)}` : plural(used, "job"));
  }));
}

function total(lanes, key) {
  return lanes.reduce((sum, lane) => sum + Number(lane[key] ?? 0), 0);
}

function figures() {
  const fields = ["Running", "Ready", "Finished a minute", "Workers"].map((name) => {
    const value = h("dd");
    const more = h("dd", { class: "quiet" });
    return { name, value, more };
  });
  const [running, ready, flow, workers] = fields;
  return {
    element: h("dl", { class: "figures" }, fields.map(({ name, value, more }) =>
      h("div", {}, h("dt", {}, name), value, more))),
    set({ lanes, workers: live }) {
      const used = total(lanes, "used");
      const limited = lanes.filter((lane) => lane.max_slots !== null);
      const slots = total(limited, "max_slots");
      write(running.value, number(used));
      write(running.more, slots ? `${Math.round((total(limited, "used") / slots) * 100)} % of ${number(slots)} slots` : "no slot limits");
      write(ready.value, count(total(lanes, "depth"), lanes.some((lane) => lane.depth_estimated)));
      const [oldest] = lanes.map((lane) => lane.oldest_since).filter(Boolean).sort();
      show(ready.more, oldest ? ["oldest ", when(oldest, "since")] : "nothing waits");
      write(flow.value, rate(total(lanes, "throughput")));
      write(flow.more, "over five minutes");
      write(workers.value, number(live));
      write(workers.more, live ? "live" : "no worker is live");
    },
  };
}

/** Pauses, and drained lanes in which jobs wait, the most first. */
function heldUp({ paused, lanes }) {
  const depths = new Map(lanes.map((lane) => [lane.name, lane]));
  return paused.map((hold) => ({ ...hold, waiting: depths.get(hold.lane) }))
    .filter(({ holder, waiting }) => holder !== "drain" || waiting?.depth > 0)
    .sort((a, b) => (b.waiting?.depth ?? Infinity) - (a.waiting?.depth ?? Infinity) || 0);
}

function holdKey(hold) {
  return JSON.stringify([hold.holder, hold.lane]);
}

/** A pause by a holder, over everything or one lane. */
function holdLine(hold) {
  const scope = hold.lane ? `Lane ${hold.lane} is` : "All lanes are";
  const drained = hold.lane && hold.holder === "drain";
  const waiting = h("span");
  return {
    element: h("div", { class: "hold" }, pill("paused", drained ? "drained" : "paused"),
      h("p", {}, h("b", {}, drained ? `${scope} drained` : `${scope} paused by ${hold.holder}`), waiting,
        hold.reason && `: ${hold.reason}`, " ",
        hold.held_at && h("span", { class: "quiet" }, setWhen(h("time"), hold.held_at))),
      may("operator") && button("Resume", () => (drained ? resumeLane(hold.lane) : resumeHold(hold)), { kind: "small", name: drained ? `Resume ${hold.lane}` : `Resume what ${hold.holder} paused` })),
    update({ waiting: lane }) {
      write(waiting, lane?.depth > 0 ? `, ${count(lane.depth, lane.depth_estimated)} ${lane.depth === 1 ? "job waits" : "jobs wait"}` : "");
    },
  };
}
