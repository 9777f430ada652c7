// Several databases: each of them, their lanes added up, and what runs. The page of one is
// below node/N/.

import { get } from "./api.js";
import { byId, h, keyed, show, write } from "./dom.js";
import { count, duration, number, rate } from "./format.js";
import { cells, empty, heading, pill, setWhen, table, tickMoments, trouble } from "./parts.js";
import { Stay } from "./state.js";

const NODES = [["Node", "num"], ["Database", "name"], ["State", ""], ["Running", "num"], ["Ready", "num"], ["Delayed", "num"], ["A minute", "num"], ["Workers", "num"], ["Pauses", "num"]];
const LANES = [["Lane", "name"], ["Node", "num"], ["Running", "num"], ["Slots", "num"], ["Ready", "num"], ["Oldest", "num"], ["Delayed", "num"], ["A minute", "num"]];
const RUNS = [["Node", "num"], ["Job", "name"], ["Kind", "kind"], ["Lane", ""], ["Worker", "worker"], ["Running for", "num"]];

const main = byId("main");
const live = byId("live");
const nodes = table("Nodes", NODES);
const lanes = table("Lanes", LANES);
const runs = table("Running jobs", RUNS, "running");
const nothing = empty("Nothing runs right now.");
const notes = h("div");

function link(node, text, place = "") {
  return node === null ? h("span", {}, text) : h("a", { href: `node/${node}/${place}`, class: "plain" }, text);
}

/** A row that is drawn again when its values have changed. */
function row(draw, props = {}) {
  const element = h("tr", props);
  let before = "";
  return {
    element,
    update(item) {
      const now = JSON.stringify(item);
      if (now !== before) show(element, draw(item));
      before = now;
    },
  };
}

function nodeRow(it) {
  const state = it.problem ? pill("dead", "does not answer") : it.paused ? pill("cancelled", "paused") : pill("running", "answers");
  if (it.problem && it.state) write(state, "refused");
  const figures = [it.used, it.depth, it.delayed, it.throughput, it.workers].map((n, i) => (i === 3 ? rate(n) : number(n)));
  return cells(NODES, it.node === null ? "–" : link(it.node, String(it.node)), link(it.node, it.place), state, ...figures, number(it.problem ? null : it.paused));
}

function laneRow(it) {
  const name = it.node === null ? h("b", {}, it.name) : link(it.node, it.name);
  return cells(LANES, name, it.node === null ? "all" : link(it.node, String(it.node)), number(it.used), it.max_slots === null ? "∞" : number(it.max_slots),
    count(it.depth, it.depth_estimated), duration(it.oldest_ready_seconds), number(it.delayed), rate(it.throughput));
}

function runRow(it) {
  return cells(RUNS, link(it.node, String(it.node)), link(it.node, it.job_id, `#/jobs/${it.job_id}`), it.kind, it.lane, it.worker ?? "–", setWhen(h("time"), it.started_at, "since"));
}

function total(all) {
  const sum = (key) => all.reduce((n, each) => n + (each[key] ?? 0), 0);
  return `${number(sum("used"))} running, ${number(sum("depth"))} ready, ${number(sum("delayed"))} delayed, ${rate(sum("throughput"))} a minute`;
}

function draw(found) {
  keyed(nodes.body, found.nodes, (it) => it.place, (it) => row(nodeRow, { "data-node": it.node ?? "", "data-place": it.place }));
  const rows = found.lanes.flatMap((lane) => [...(lane.nodes.length > 1 ? [{ ...lane.all, node: null }] : []), ...lane.nodes]);
  keyed(lanes.body, rows, (it) => `${it.node} ${it.name}`, (it) => row(laneRow, { "data-lane": it.name, "data-node": it.node ?? "all" }));
  keyed(runs.body, found.running, (it) => it.job_id, (it) => row(runRow, { "data-job": it.job_id }));
  runs.element.hidden = found.running.length === 0;
  nothing.hidden = found.running.length > 0;
  const wrong = found.nodes.filter((it) => it.problem);
  show(notes, wrong.map((it) => h("div", { class: "trouble", role: "alert" },
    h("h2", {}, `Database ${it.place}: ${it.problem}`), it.hint && h("p", { class: "hint" }, it.hint))));
  show(byId("sum"), total(found.nodes));
}

async function load() {
  try {
    draw(await get("nodes"));
    live.dataset.state = "live";
    write(live, "Live");
  } catch (problem) {
    live.dataset.state = "lost";
    write(live, "Disconnected, trying again…");
    show(notes, trouble(problem));
  }
}

byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = /** @type {HTMLInputElement} */ (byId("search")).value.trim();
  if (/^\d{1,19}$/.test(id)) location.href = `node/${BigInt(id) >> 43n}/#/jobs/${id}`;
});
const second = (title) => h("div", { class: "heading second" }, h("h2", {}, title));
const head = heading("Nodes");
head.append(h("p", { id: "sum", class: "quiet" }));
show(main, head, notes, nodes.element, second("Lanes"), lanes.element, second("Running now"), runs.element, nothing);
setInterval(tickMoments, 1000);
load();
new Stay().every(2, load);
