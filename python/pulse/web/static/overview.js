// The first page: what is wrong, every lane at a glance, and what runs right now.

import { path, post } from "./api.js";
import { history } from "./charts.js";
import { button, notify } from "./dialog.js";
import { h, keyed, redraw, show, write } from "./dom.js";
import { count, number, plural, rate } from "./format.js";
import { drain, editLane, pauseAll, resumeHold } from "./lanes.js";
import { bar, cells, empty, heading, pill, searchLink, setPill, setWhen, sparkline, table, when } from "./parts.js";
import { runningTable } from "./running.js";
import { laneChanged, may, watch } from "./state.js";
import { troubles } from "./troubles.js";

const COLUMNS = [
  ["Lane", "name"], ["Slots", "slots"], ["Ready", "num"], ["Oldest", "num"],
  ["Delayed", "num"], ["Finished a minute", "flow"], ["State", "state"], ["", "acts"],
];

export function overview(root, stay, { query }) {
  if (!may("viewer")) {
    show(root, heading("Overview"), empty("Your role may not see the lanes. What it may see is under Jobs."));
    return;
  }
  const facts = figures();
  const holds = h("div", { class: "holds" });
  const lanes = table("Lanes", COLUMNS, "lanes");
  const running = runningTable();
  const runningNote = h("span", { class: "quiet" });
  show(root,
    heading("Overview", null, may("operator") && button("Pause everything…", pauseAll)),
    troubles(stay), holds, facts.element, history("", query, stay),
    h("div", { class: "heading second" }, h("h2", {}, "Lanes")), lanes.element,
    h("div", { class: "heading second" }, h("h2", {}, "Running now"), runningNote),
    running.element);
  stay.until(watch((picture) => {
    facts.set(picture);
    keyed(holds, picture.paused.filter((hold) => hold.holder !== "drain"), holdKey, holdLine);
    keyed(lanes.body, picture.lanes, (lane) => lane.name, laneRow);
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

export function holdKey(hold) {
  return JSON.stringify([hold.holder, hold.lane, hold.flow]);
}

/** A pause by a holder, over everything, one lane or one flow. */
export function holdLine(hold) {
  const scope = hold.flow ? `Flow ${hold.flow} is` : hold.lane ? `Lane ${hold.lane} is` : "All lanes are";
  return {
    element: h("div", { class: "hold" }, pill("paused", "paused"),
      h("p", {}, h("b", {}, `${scope} paused by ${hold.holder}`),
        hold.reason && `: ${hold.reason}`, " ",
        hold.held_at && h("span", { class: "quiet" }, setWhen(h("time"), hold.held_at))),
      may("operator") && button("Resume", () => resumeHold(hold), { kind: "small", name: `Resume what ${hold.holder} paused` })),
  };
}

function laneRow(lane) {
  const { name } = lane;
  const meter = bar("Slots");
  const slots = h("span", { class: "slots-text" });
  const [ready, delayed, flow] = Array.from({ length: 3 }, () => h("span"));
  const oldest = h("time");
  const spark = sparkline();
  const state = h("span", { class: "pill" });
  const why = h("small", { class: "quiet why-held" });
  const groups = h("a", { href: `#/groups/${encodeURIComponent(name)}`, class: "quiet", "aria-label": `Groups of lane ${name}` }, "groups");
  const acts = h("span", { class: "row-acts" });
  let drained = null;

  async function resume() {
    laneChanged(await post(path`lanes/${name}/resume`));
    notify(`Lane ${name} is resumed.`);
  }

  const element = h("tr", { "data-lane": name }, cells(COLUMNS,
    [searchLink(name, { lane: name }, `Jobs of lane ${name}`), " ", groups],
    [meter.element, slots], ready, oldest, delayed, [spark.element, flow], [state, why], acts));
  return {
    element,
    update(now) {
      groups.hidden = !now.grouped;
      const limit = now.max_slots;
      const share = limit === null ? null : limit === 0 ? 1 : now.used / limit;
      const words = limit === null ? `${number(now.used)} running` : `${number(now.used)} of ${number(limit)}`;
      meter.set(share, `Slots: ${words}`, share >= 1 ? "full" : "");
      write(slots, limit === null ? `${number(now.used)} / ∞` : `${number(now.used)} / ${number(limit)}`);
      write(ready, count(now.depth, now.depth_estimated));
      setWhen(oldest, now.oldest_since, "since");
      write(delayed, number(now.delayed));
      spark.set(now.recent);
      write(flow, rate(now.throughput));
      const [what, label] = laneState(now);
      setPill(state, what, label);
      write(why, (now.paused_by ?? []).join(" · "));
      if (now.drained === drained || !may("operator")) return;
      drained = now.drained;
      redraw(acts,
        drained
          ? button("Resume", resume, { kind: "small primary", name: `Resume lane ${name}` })
          : button("Drain…", () => drain(name), { kind: "small", name: `Drain lane ${name}` }),
        button("Settings…", () => editLane(name), { kind: "small ghost", name: `Settings of lane ${name}` }));
    },
  };
}

function laneState(lane) {
  if (lane.drained) return ["paused", lane.used > 0 ? "draining" : "drained"];
  if (lane.paused_by?.length) return ["paused", "paused"];
  if (!lane.enabled) return ["cancelled", "disabled"];
  if (lane.max_slots !== null && lane.used >= lane.max_slots) return ["retrying", "full"];
  if (lane.used > 0) return ["running", "working"];
  return lane.depth > 0 ? ["ready", "waiting"] : ["idle", "idle"];
}
