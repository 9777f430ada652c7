// The small things that pages are put together from.

import { h, svg, write } from "./dom.js";
import * as format from "./format.js";

export const STATES = [
  "blocked", "awaiting_approval", "scheduled", "ready", "running",
  "retrying", "completed", "dead", "cancelled",
];

/** Colour, sign and word: the colour alone never says it. */
export function pill(state, words) {
  const element = h("span", { class: "pill" });
  return setPill(element, state, words);
}

export function setPill(element, state, words) {
  element.dataset.state = state;
  return write(element, words ?? String(state).replaceAll("_", " "));
}

export function jobLink(id) {
  return h("a", { href: `#/jobs/${encodeURIComponent(id)}`, class: "id" }, String(id));
}

export function searchLink(text, filters, title) {
  const query = new URLSearchParams(filters);
  return h("a", { href: `#/jobs?${query}`, class: "plain", title }, text);
}

export function flowLink(flow) {
  return h("a", { href: `#/flows/${encodeURIComponent(flow)}`, class: "plain" }, flow);
}

export function kindLink(kind) {
  return h("a", { href: `#/kinds/${encodeURIComponent(kind)}`, class: "plain" }, kind);
}

/** A moment as a distance from now, which goes on counting; the title has it in full. */
export function when(iso, mode = "distance") {
  if (!iso) return h("span", { class: "quiet" }, "–");
  const element = h("time", {});
  return setWhen(element, iso, mode);
}

export function setWhen(element, iso, mode = "distance") {
  if (!iso) {
    element.removeAttribute("datetime");
    return write(element, "–");
  }
  if (element.getAttribute("datetime") !== iso) {
    element.setAttribute("datetime", iso);
    element.setAttribute("title", format.moment(iso));
  }
  element.dataset.mode = mode;
  return write(element, format[mode](iso));
}

/** Called once a second: every moment on the page moves on. */
export function tickMoments() {
  for (const element of document.querySelectorAll("time[datetime][data-mode]")) {
    write(element, format[element.getAttribute("data-mode") ?? "distance"](element.getAttribute("datetime")));
  }
}

/** A bar from 0 to 1. Without a limit (fraction null) it shows no fill. */
export function bar(label) {
  const fill = h("span", { class: "fill" });
  const element = h("span", { class: "meter", role: "img", "aria-label": label }, fill);
  return {
    element,
    set(fraction, words, tone = "") {
      const part = Math.max(0, Math.min(1, fraction ?? 0));
      fill.style.setProperty("--part", String(part));
      element.dataset.tone = tone;
      element.classList.toggle("open", fraction === null || fraction === undefined);
      element.setAttribute("aria-label", words);
    },
  };
}

/** How far a job says it has come, as a progress bar with its note. */
export function progress() {
  const fill = h("span", { class: "fill" });
  const track = h("span", {
    class: "meter progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Progress",
  }, fill);
  const percent = h("span", { class: "percent" });
  const note = h("span", { class: "note" });
  const element = h("span", { class: "progress-line" }, track, percent, note);
  return {
    element,
    set(fraction, words) {
      const known = fraction !== null && fraction !== undefined;
      element.classList.toggle("unknown", !known);
      const whole = Math.round((fraction ?? 0) * 100);
      fill.style.setProperty("--part", String(known ? fraction : 0));
      track.setAttribute("aria-valuenow", String(whole));
      write(percent, known ? `${whole} %` : "");
      write(note, words ?? (known ? "" : "no progress reported"));
    },
  };
}

const WIDTH = 96;
const HEIGHT = 24;

/** Finished a minute, oldest first, as a line over its area. */
export function sparkline() {
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const dot = svg("circle", { class: "dot", r: 1.75 });
  const element = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", preserveAspectRatio: "xMinYMid",
  }, area, line, dot);
  return {
    element,
    set(values) {
      element.toggleAttribute("hidden", !values);
      const list = values?.length > 1 ? values : [0, values?.[0] ?? 0];
      const top = Math.max(...list, 1);
      const step = (WIDTH - 4) / (list.length - 1);
      const points = list.map((v, i) => [
        2 + i * step,
        HEIGHT - 3 - (v / top) * (HEIGHT - 6),
      ]);
      const drawn = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join(" L");
      line.setAttribute("d", `M${drawn}`);
      area.setAttribute("d", `M${points[0][0].toFixed(1)} ${HEIGHT - 1} L${drawn} L${WIDTH - 2} ${HEIGHT - 1} Z`);
      const [x, y] = points[points.length - 1];
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      element.setAttribute(
        "aria-label",
        `Finished a minute, last ${list.length} samples: highest ${format.rate(Math.max(...list))}`,
      );
    },
  };
}

/** A table whose rows become cards on a phone; columns are [title, class]. */
export function table(caption, columns, kind = "") {
  const body = h("tbody");
  const element = h("table", { class: `cards ${kind}` },
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, columns.map(([title, kind]) =>
      h("th", { scope: "col", class: kind }, title)))),
    body);
  return { element: h("div", { class: "panel scroll" }, element), body };
}

/** Cells carry their column's title for the phone. */
export function cells(columns, ...contents) {
  return contents.map((content, i) =>
    h("td", { "data-label": columns[i][0], class: columns[i][1] }, content));
}

export function empty(...words) {
  return h("p", { class: "empty" }, ...words);
}

/** Text that may be long or many lines: its gist, and all of it on demand. */
export function errorText(error) {
  if (!error) return h("span", { class: "quiet" }, "–");
  const gist = format.gist(error);
  if (gist === error.trim() && gist.length <= 160) return h("span", { class: "error-line" }, gist);
  return h("details", { class: "error-more" },
    h("summary", {}, h("span", { class: "error-line" }, gist)),
    h("pre", { tabindex: 0 }, error));
}

/** What stands in a page that could not be read. */
export function trouble(problem) {
  return h("div", { class: "trouble", role: "alert" },
    h("h2", {}, problem.message),
    problem.detail && h("p", {}, problem.detail),
    problem.hint && h("p", { class: "hint" }, problem.hint),
    problem.sqlstate && h("p", { class: "quiet" }, `SQLSTATE ${problem.sqlstate}`));
}

export function heading(title, note, ...actions) {
  return h("div", { class: "heading" },
    h("h1", { tabindex: -1 }, title),
    note && h("p", { class: "quiet" }, note),
    actions.length > 0 && h("div", { class: "actions" }, actions));
}

/** Longer lists are shown in part, with a box that narrows them. */
export const MANY = 50;

/**
 * A box for a list that may be long: part(items, nameOf, words) answers those that are shown
 * and says how many that is. again() draws the list again.
 */
export function narrow(label, again) {
  const box = h("input", { type: "search", "aria-label": label, placeholder: `${label}…`, autocomplete: "off", spellcheck: "false" });
  const said = h("span", { class: "quiet" });
  const all = h("button", { type: "button", class: "small ghost" }, "Show all");
  const element = h("div", { class: "narrow", hidden: true }, box, said, all);
  let every = false;
  box.addEventListener("input", () => again());
  all.addEventListener("click", () => {
    every = true;
    again();
  });
  return {
    element,
    part(items, nameOf, words) {
      element.hidden = items.length <= MANY;
      const text = element.hidden ? "" : box.value.trim().toLowerCase();
      const found = text ? items.filter((item) => nameOf(item).toLowerCase().includes(text)) : items;
      const shown = every ? found : found.slice(0, MANY);
      all.hidden = shown.length === found.length;
      write(said, `${format.number(shown.length)} of ${format.number(items.length)} ${words}`);
      return shown;
    },
  };
}
