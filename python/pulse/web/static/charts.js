// What happened over time: throughput, failures, depth and waiting time, of everything, of
// a lane or of a kind. Every point stands at its time, also where nothing happened.

import { get, query } from "./api.js";
import { h, redraw, show, svg, write } from "./dom.js";
import { clock, duration, now, number, rate } from "./format.js";
import { trouble } from "./parts.js";
import { watch } from "./state.js";

const RANGES = { "1h": "1 h", "24h": "24 h", "7d": "7 d" };
const EVERY = { "1h": 15, "24h": 60, "7d": 300 };

/** title, unit and series: [name, value of a row, tone]. A minute has step minutes. */
const CHARTS = [
  { title: "Throughput", unit: "a minute", say: rate, series: [["completed", (row, step) => row.completed / step, "good"], ["enqueued", (row, step) => row.enqueued / step, "quiet"]] },
  { title: "Failures", unit: "a minute", say: rate, series: [["failed attempts", (row, step) => row.failed / step, "warn"], ["dead", (row, step) => row.dead / step, "bad"]] },
  { title: "Depth", unit: "jobs", say: (jobs) => number(Math.round(jobs)), series: [["ready", (row) => row.ready, "accent"], ["running", (row) => row.running, "good"]], sampled: true },
  { title: "Wait until start", unit: "", say: duration, series: [["p50", (row) => row.wait_p50, "accent"], ["p95", (row) => row.wait_p95, "plum"], ["p99", (row) => row.wait_p99, "warn"]] },
];

/** A section of charts; asked is the query of the page's address, which keeps the choice. */
export function history(place, asked, stay, fixed = {}) {
  const range = asked.get("range") in RANGES ? asked.get("range") : "1h";
  const wanted = { lane: asked.get("lane") ?? "", kind: fixed.kind ?? asked.get("kind") ?? "" };
  const charts = CHARTS.filter((chart) => !(chart.sampled && wanted.lane && wanted.kind)).map(figure);
  const rest = h("div");

  function address(change) {
    const next = { ...(fixed.kind ? { lane: wanted.lane } : wanted), range, ...change };
    return `#/${place}${query(next)}`;
  }

  async function load() {
    const answer = await get(`history${query({ range, ...wanted })}`);
    if (stay.left) return;
    show(rest);
    for (const chart of charts) chart.set(answer);
  }

  load().catch((problem) => show(rest, trouble(problem)));
  stay.every(EVERY[range], load);
  const choose = (key, label) => select(label, wanted[key], (value) => { location.hash = address({ [key]: value }); });
  const lanes = choose("lane", "All lanes");
  stay.until(watch((picture) => lanes.set(picture.lanes.map((lane) => lane.name))));
  const kinds = fixed.kind ? null : choose("kind", "All kinds");
  if (kinds) get("kinds").then(({ kinds: known }) => kinds.set(known.map((kind) => kind.name))).catch(() => {});
  return h("section", { class: "history-charts", "aria-label": "History" },
    h("div", { class: "heading second" }, h("h2", {}, "History"),
      h("nav", { class: "ranges", "aria-label": "Range" }, Object.entries(RANGES).map(([key, words]) =>
        h("a", { href: address({ range: key }), "aria-current": key === range ? "true" : null }, words))),
      h("div", { class: "actions" }, lanes.element, kinds?.element)),
    h("div", { class: "charts" }, charts.map((chart) => chart.element)), rest);
}

/** A list to choose from that keeps what was chosen, known or not. */
function select(all, chosen, change) {
  const element = h("select", { "aria-label": all.replace("All ", "Of one of the ") });
  element.addEventListener("change", () => change(element.value));
  let before = null;
  function set(names) {
    const list = [...new Set([...names, ...(chosen ? [chosen] : [])])].sort();
    if (list.join("\n") === before) return;
    before = list.join("\n");
    show(element, h("option", { value: "" }, all), list.map((name) => h("option", { value: name }, name)));
    element.value = chosen;
  }
  set([]);
  return { element, set };
}

const WIDE = 600;
const HIGH = 120;

function figure({ title, unit, say, series }) {
  const lines = series.map(([, , tone]) => svg("path", { class: "line", "data-tone": tone }));
  const area = svg("path", { class: "area", "data-tone": series[0][2] });
  const top = h("span", { class: "top-value" });
  const cross = h("span", { class: "cross", hidden: true });
  const ticks = h("div", { class: "ticks" });
  const legend = h("p", { class: "legend" });
  const plot = h("div", { class: "plot", tabindex: 0, role: "img" },
    svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      // What comes first is drawn last: over the others.
      area, [...lines].reverse()), top, cross);
  let rows = [];
  let values = [];
  /** @type {[number, number]} */
  let span = [0, 1];
  let at = null;

  function left(row) {
    return (Date.parse(row.at) - span[0]) / (span[1] - span[0]);
  }

  /** The values of a moment, or of the latest one. */
  function point(place) {
    at = place;
    const shown = place ?? rows.length - 1;
    cross.hidden = place === null;
    if (place !== null) cross.style.setProperty("--at", String(left(rows[place])));
    redraw(legend, place !== null && h("b", {}, clock(rows[shown].at)), series.map(([name, , tone], i) => [" ",
      h("span", { "data-tone": tone }, name), ` ${values[i][shown] === null ? "–" : say(values[i][shown])}`]));
  }

  plot.addEventListener("pointermove", (event) => {
    if (rows.length === 0) return;
    const box = plot.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    point(rows.reduce((best, row, i) => (Math.abs(left(row) - part) < Math.abs(left(rows[best]) - part) ? i : best), 0));
  });
  plot.addEventListener("pointerleave", () => rows.length && point(null));
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") point(null);
    if (!step || rows.length === 0) return;
    event.preventDefault();
    point(Math.max(0, Math.min(rows.length - 1, (at ?? rows.length) + step)));
  });

  return {
    element: h("figure", { class: "panel chart", "data-chart": title }, h("figcaption", {}, h("span", {}, h("b", {}, title), h("span", { class: "quiet" }, ` ${unit}`)), legend), plot, ticks),
    set({ rows: found, step_seconds: step }) {
      // Upkeep counts within a minute: what is younger is left out, and a long step that
      // goes on is measured by what is over of it.
      const age = (row) => (now() - Date.parse(row.at)) / 1000;
      rows = found.filter((row) => age(row) >= 105);
      values = series.map(([, value]) => rows.map((row) => value(row, Math.min(age(row), step) / 60) ?? null));
      span = [Date.parse(rows[0].at), Date.parse(rows[rows.length - 1].at)];
      const highest = Math.max(...values.flat().map((value) => value ?? 0));
      const scale = highest || 1;
      values.forEach((list, i) => lines[i].setAttribute("d", path(list, (place) => left(rows[place]), scale)));
      area.setAttribute("d", filled(values[0], (place) => left(rows[place]), scale));
      write(top, say(highest));
      redraw(ticks, [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {}, tick(span[0] + part * (span[1] - span[0]), span))));
      plot.setAttribute("aria-label", `${title}: highest ${say(highest)} ${unit}, ${series.map(([name]) => name).join(", ")}. Arrow keys read the values.`);
      point(at === null || at >= rows.length ? null : at);
    },
  };
}

/** The highest stands below its figure. */
function y(value, scale) {
  return (HIGH - 2 - (value / scale) * (HIGH - 22)).toFixed(1);
}

/** A line from point to point; a value that is not there is a gap. */
function path(list, x, scale) {
  let pen = "M";
  return list.map((value, place) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const drawn = `${pen}${(x(place) * WIDE).toFixed(1)} ${y(value, scale)}`;
    // A point between two gaps is a dot.
    const dot = pen === "M" && (list[place + 1] ?? null) === null ? "h0.1" : "";
    pen = "L";
    return drawn + dot;
  }).join(" ");
}

function filled(list, x, scale) {
  const known = list.map((value) => value ?? 0);
  return `M0 ${HIGH} ${known.map((value, place) => `L${(x(place) * WIDE).toFixed(1)} ${y(value, scale)}`).join(" ")} L${WIDE} ${HIGH} Z`;
}

const HOUR = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric" });

function tick(time, [from, to]) {
  return (to - from > 2 * 86400000 ? DAY : HOUR).format(new Date(time));
}
