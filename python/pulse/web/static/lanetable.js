// Every lane at a glance. Of many, those that wait longest come first, and a part is shown.

import { button } from "./dialog.js";
import { h, keyed, redraw, write } from "./dom.js";
import { count, number, rate } from "./format.js";
import { drain, editLane, resumeLane } from "./lanes.js";
import { bar, cells, MANY, narrow, searchLink, setPill, setWhen, sparkline, table } from "./parts.js";
import { may } from "./state.js";

const COLUMNS = [
  ["Lane", "name"], ["Slots", "slots"], ["Ready", "num"], ["Oldest", "num"],
  ["Delayed", "num"], ["Finished a minute", "flow"], ["State", "state"], ["", "acts"],
];

/** The heading and the table; set() gets the lanes of each picture. */
export function laneTable() {
  const { element, body } = table("Lanes", COLUMNS, "lanes");
  const wanted = narrow("Find lanes", draw);
  let lanes = [];
  let order = [];

  function draw() {
    const many = lanes.length > MANY;
    // Rows do not change places under a hand.
    if (many && !body.matches(":hover, :focus-within")) order = [...lanes].sort(longest).map((lane) => lane.name);
    const places = new Map(order.map((name, place) => [name, place]));
    const sorted = many ? [...lanes].sort((a, b) => (places.get(a.name) ?? order.length) - (places.get(b.name) ?? order.length)) : lanes;
    keyed(body, wanted.part(sorted, (lane) => lane.name, "lanes, those that wait longest first"), (lane) => lane.name, laneRow);
  }

  return {
    heading: h("div", { class: "heading second" }, h("h2", {}, "Lanes"), wanted.element),
    element,
    set(now) {
      lanes = now;
      draw();
    },
  };
}

function longest(a, b) {
  const never = "9999";
  return (a.oldest_since ?? never).localeCompare(b.oldest_since ?? never) || b.used - a.used || a.name.localeCompare(b.name);
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
      meter.set(share, `Slots: ${words}`, (share ?? 0) >= 1 ? "full" : "");
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
          ? button("Resume", () => resumeLane(name), { kind: "small primary", name: `Resume lane ${name}` })
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
