// A flow: its names as a graph with the states of their jobs, live, and the same as a table.

import { bulkButtons } from "./actions.js";
import { get, path } from "./api.js";
import { h, keyed, show, svg, write } from "./dom.js";
import { number, plural } from "./format.js";
import { grouped, layout } from "./graph.js";
import { cells, heading, kindLink, pill, setPill, STATES, table, trouble } from "./parts.js";
import { refreshSummary } from "./state.js";

// What a name is painted in: the first state that one of its jobs has.
const LOUD = ["dead", "running", "retrying", "awaiting_approval", "ready", "scheduled", "blocked", "cancelled", "completed"];
const COLUMNS = [["Name", "name"], ["Kind", "kind"], ["Jobs", "num"], ["States", "wide"], ["Waits for", "wide"]];
const NARROW = 640;

export async function flow(root, stay, { id: name }) {
  const state = h("span", { class: "pill" });
  const done = h("p", { class: "quiet" });
  const note = h("p", { class: "quiet graph-note" });
  const picture = graph(name);
  const { element: list, body } = table(`Names of flow ${name}`, COLUMNS);
  const load = async () => {
    const found = await get(path`flows/${name}`);
    if (!stay.left) draw(found);
  };
  const after = () => Promise.all([load(), refreshSummary()]);

  function draw(found) {
    const total = Object.fromEntries(STATES.map((each) => [each, sum(found.nodes, each)]));
    const jobs = sum(found.nodes, "jobs");
    setPill(state, loudest(total));
    write(done, `${number(total.completed)} of ${plural(jobs, "job")} completed${found.more ? ", and more under other names" : ""}`);
    const { nodes, words } = grouped(found.nodes, STATES);
    write(note, words);
    picture.set(nodes);
    keyed(body, found.nodes.slice(0, 200), (node) => node.name, (node) => row(name, node));
  }

  show(root,
    h("div", { class: "heading" },
      h("div", { class: "job-title" }, h("h1", { tabindex: -1 }, name), state, done),
      h("div", { class: "actions" },
        bulkButtons(["retry", "cancel"], { flow: name }, after, { of: `all of ${name}` }))),
    h("figure", { class: "panel graph-panel" }, picture.element, h("figcaption", { class: "unseen" }, `Graph of flow ${name}; the table below says the same.`)),
    note,
    h("div", { class: "heading second" }, h("h2", {}, "Names"), h("a", { href: `#/jobs?${new URLSearchParams({ flow: name })}` }, "Search its jobs")),
    list);
  try {
    await load();
  } catch (problem) {
    show(root, heading(name), trouble(problem));
    return;
  }
  stay.until(picture.follow());
  stay.every(2, load);
}

function sum(nodes, key) {
  return nodes.reduce((all, node) => all + node[key], 0);
}

function loudest(counts) {
  return LOUD.find((state) => counts[state] > 0) ?? "completed";
}

/** 2 dead, 100 running, 900 completed */
function stateWords(node) {
  const there = LOUD.filter((state) => node[state] > 0);
  const words = (state) => state.replaceAll("_", " ");
  if (node.jobs === 1 && there.length === 1) return words(there[0]);
  return there.map((state) => `${number(node[state])} ${words(state)}`).join(", ");
}

/** One job: the job. Several: a search for them. */
function address(flow, { jobs, first_job: first, kind }) {
  if (jobs === 1) return `#/jobs/${encodeURIComponent(first)}`;
  return `#/jobs?${new URLSearchParams({ flow, kind })}`;
}

function row(flow, node) {
  const link = h("a", { class: "plain" }, node.name);
  const [jobs, states] = [h("span"), h("span", { class: "state-pills" })];
  const waits = h("span", {}, node.after.length ? node.after.join(", ") : "–");
  const element = h("tr", {}, cells(COLUMNS, link, kindLink(node.kind), jobs, states, waits));
  return {
    element,
    update(now) {
      link.setAttribute("href", address(flow, now));
      write(jobs, number(now.jobs));
      const words = stateWords(now);
      if (states.dataset.words !== words) {
        states.dataset.words = words;
        show(states, LOUD.filter((state) => now[state] > 0).map((state) => pill(state, `${number(now[state])} ${state.replaceAll("_", " ")}`)));
      }
      write(waits, now.after.length ? now.after.join(", ") : "–");
    },
  };
}

/** The picture: drawn again when names or lines change, else only its texts. */
function graph(flow) {
  const element = h("div", { class: "scroll graph", tabindex: -1 });
  let shape = "";
  let nodes = [];
  let drawn = new Map();
  let lines = [];
  let places = [];

  function set(next) {
    nodes = next;
    const downwards = element.clientWidth > 0 && element.clientWidth < NARROW;
    const now = JSON.stringify([downwards, nodes.map(({ key, after }) => [key, after])]);
    if (now !== shape) {
      shape = now;
      build(downwards);
    }
    for (const node of nodes) drawn.get(node.key).update(node);
    for (const { line, from } of lines) line.dataset.done = drawn.get(from).done ? "yes" : "no";
  }

  function build(downwards) {
    const focused = element.contains(document.activeElement) ? document.activeElement?.closest(".node")?.getAttribute("data-key") : null;
    const { nodes: found, edges, size, width, height } = layout(nodes, downwards);
    places = found;
    drawn = new Map(found.map(({ node, x, y }) => [node.key, box(flow, node, size, x, y)]));
    lines = edges.map(({ from, path: d }) => ({ from: from.node.key, line: svg("path", { class: "edge", d, "marker-end": "url(#flow-arrow)" }) }));
    const margin = 12;
    show(element, svg("svg", {
      width: width + 2 * margin, height: height + 2 * margin, viewBox: `${-margin} ${-margin} ${width + 2 * margin} ${height + 2 * margin}`,
      role: "group", "aria-label": `Graph of flow ${flow}`, onkeydown: (event) => move(event, downwards),
    },
    svg("defs", {}, svg("marker", { id: "flow-arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { class: "arrow", d: "M0 0 L8 4 L0 8 z" }))),
    lines.map(({ line }) => line), [...drawn.values()].map((each) => each.element)));
    if (focused) drawn.get(focused)?.element.focus();
  }

  /** The arrow keys go where the picture shows it. */
  function move(event, downwards) {
    const here = places.find(({ node }) => node.key === event.target.closest?.(".node")?.dataset.key);
    const ways = downwards
      ? { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }
      : { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    const way = ways[event.key];
    if (!here || !way) return;
    const [layers, rows] = way;
    const wanted = places
      .filter(({ layer, place }) => (layers ? layer === here.layer + layers : layer === here.layer && place === here.place + rows))
      .sort((a, b) => Math.abs(a.middle - here.middle) - Math.abs(b.middle - here.middle))[0];
    if (!wanted) return;
    event.preventDefault();
    drawn.get(wanted.node.key).element.focus();
  }

  return {
    element,
    set,
    /** A screen that is turned gets the other picture. */
    follow() {
      const again = () => nodes.length > 0 && set(nodes);
      addEventListener("resize", again);
      again();
      return () => removeEventListener("resize", again);
    },
  };
}

function box(flow, node, { width, height }, x, y) {
  const title = svg("title");
  const [label, kind, words] = ["label", "kind", "words"].map((kind, at) => svg("text", { class: kind, x: 12, y: [22, 22, 58][at] }));
  kind.setAttribute("x", String(width - 12));
  const parts = svg("g", { class: "parts", transform: "translate(12 34)" });
  const element = svg("a", { class: "node", transform: `translate(${x} ${y})`, "data-key": node.key },
    title, svg("rect", { class: "card", width, height, rx: 8 }), label, kind, parts, words);
  const made = {
    element,
    done: false,
    update(now) {
      const said = stateWords(now);
      made.done = now.completed === now.jobs;
      element.setAttribute("href", address(flow, now));
      element.dataset.state = loudest(now);
      const count = now.jobs > 1 ? `× ${number(now.jobs)}` : "";
      write(kind, count);
      // Letters that fit, as wide as they come on average.
      write(label, cut(now.name, Math.floor((width - 24) / 7.6) - count.length));
      write(words, cut(said, Math.floor((width - 24) / 6.3)));
      const waits = now.after.length ? `, waits for ${now.names > 1 ? plural(now.after.length, "group") : now.after.join(", ")}` : "";
      const full = `${now.name}: ${plural(now.jobs, "job")}, ${said}${waits}`;
      element.setAttribute("aria-label", full);
      write(title, full);
      stack(parts, now, width - 24);
    },
  };
  return made;
}

function cut(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

/** The states of its jobs as parts of one line; what is there is seen, however few. */
function stack(element, node, width) {
  const there = [...LOUD].reverse().filter((state) => node[state] > 0);
  const text = JSON.stringify(there.map((state) => [state, node[state]]));
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  const free = width - 4 * there.length;
  let at = 0;
  show(element, there.map((state) => {
    const part = 4 + (free * node[state]) / node.jobs;
    const piece = svg("rect", { class: "part", "data-state": state, x: at, width: Math.max(3, part - 1), height: 7, rx: 2 });
    at += part;
    return piece;
  }));
}
