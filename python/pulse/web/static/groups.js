// The groups of a lane: who waits, who runs, and who is held.

import { patch, query } from "./api.js";
import { ask, button, notify } from "./dialog.js";
import { h } from "./dom.js";
import { interval, number } from "./format.js";
import { whole } from "./lists.js";
import { cells, pill, searchLink, setWhen } from "./parts.js";
import { may } from "./state.js";

const COLUMNS = [["Group", "name"], ["Waiting", "num"], ["Running", "num"], ["Slots", "num"], ["State", "state"], ["", "acts"]];
const PILLS = { held: "paused", full: "retrying", rate: "retrying", waiting: "ready", running: "running", idle: "idle" };

export function groups(root, stay, { id: lane, query: asked }) {
  return whole({
    title: `Groups of ${lane}`,
    note: "Held ones first, then those at their slots, those whose rate is used up, then the longest lines: a hundred at most.",
    columns: COLUMNS, address: `groups${query({ lane })}`, key: "groups", id: (group) => group.group_key,
    nothing: "No job of this lane stands in a group, and no group has a rule.",
    row: (group, again) => cells(COLUMNS,
      group.group_key === "" ? h("span", { class: "quiet" }, "without a key") : searchLink(group.group_key, { lane, group_key: group.group_key }),
      group.waiting > 1000 ? "more than 1,000" : number(group.waiting), number(group.running),
      group.max_slots === null ? "∞" : number(group.max_slots),
      [pill(PILLS[group.state], group.state), held(group), rated(group)],
      may("operator") && group.group_key !== "" && acts(lane, group, again)),
  })(root, stay, { query: asked });
}

function held(group) {
  if (!group.held_by) return null;
  return h("small", { class: "quiet why-held" }, `by ${group.held_by}`, group.reason && `: ${group.reason}`, " ", setWhen(h("time"), group.held_at));
}

function rated(group) {
  if (group.rate === null) return null;
  return h("small", { class: "quiet why-held" }, `${number(group.rate)} in ${interval(group.rate_per)}`,
    group.free_at && [", used up until ", setWhen(h("time"), group.free_at)]);
}

function acts(lane, group, again) {
  const { group_key: name } = group;
  const change = async (body, words) => {
    await patch("groups", { lane, group_key: name, ...body });
    notify(`Group ${name} ${words}.`);
    await again();
  };
  const hold = () => ask({
    title: `Hold group ${name}?`,
    text: "Running jobs finish; nothing more of this group is claimed until it is resumed. The other groups go on.",
    fields: [{ name: "reason", label: "Reason", placeholder: "optional, shown on this page and by why" }],
    confirm: "Hold",
    work: (said) => change({ enabled: false, ...(said.reason ? { reason: said.reason } : {}) }, "is held"),
  });
  const edit = () => ask({
    title: `Rule for group ${name}`,
    text: "It counts from the next claim on. What is left empty stays as it is.",
    fields: [
      { name: "max_slots", label: "Slots", type: "number", min: 0, max: 10000, value: group.max_slots ?? "", hint: "How many of its jobs may run at once; 0 is what the lane says." },
      { name: "rate", label: "Rate", type: "number", min: 0, max: 1000000, value: group.rate ?? "", hint: "How many of its jobs may start in any window of its period; 0 is what the lane says." },
      { name: "rate_per", label: "Period of the rate", value: interval(group.rate_per), hint: "100 ms to 1 day." },
    ],
    confirm: "Save",
    async work(said) {
      const before = { ...group, rate_per: interval(group.rate_per) };
      const body = Object.fromEntries(["max_slots", "rate", "rate_per"]
        .filter((key) => said[key] !== null && said[key] !== "" && String(said[key]) !== String(before[key] ?? ""))
        .map((key) => [key, said[key]]));
      if (Object.keys(body).length > 0) await change(body, "has its rule");
    },
  });
  return h("span", { class: "row-acts" },
    group.state === "held"
      ? button("Resume", () => change({ enabled: true }, "is resumed"), { kind: "small primary", name: `Resume group ${name}` })
      : button("Hold…", hold, { kind: "small", name: `Hold group ${name}` }),
    button("Rule…", edit, { kind: "small ghost", name: `Rule for group ${name}` }));
}
