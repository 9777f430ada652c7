// One filter language: what the form says, what the address bar keeps, what the search
// asks, what a bulk verb acts on, and the words that say what was understood.

import { h } from "./dom.js";
import { STATES } from "./parts.js";

const TEXTS = {
  lane: "Lane", kind: "Kind", worker: "Worker", tag: "Tag", group_key: "Group", flow: "Flow",
  enqueued_by: "Enqueued by", error: "Error contains", payload: "Payload", error_like: "Error like",
};
const AGES = { older_than: "Older than", newer_than: "Newer than" };
const NUMBERS = { priority_above: "Priority above", priority_below: "Priority below" };
const KEYS = [...Object.keys(TEXTS), ...Object.keys(AGES), ...Object.keys(NUMBERS)];
// A link of the dead letters sets it; users do not type one.
const TYPED = KEYS.filter((key) => key !== "error_like");

/** The filter in a page's address: {state: [...], lane: "…"}. */
export function fromQuery(query) {
  const filter = {};
  // A misspelt one stays: the server refuses it, where leaving it out would mean all.
  const states = query.getAll("state").filter(Boolean);
  if (states.length > 0) filter.state = states;
  for (const key of KEYS) {
    if (query.get(key)) filter[key] = query.get(key);
  }
  return filter;
}

export function toQuery(filter) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(filter)) [value].flat().forEach((each) => query.append(key, each));
  return query;
}

/** As pulse.find_jobs and the bulk verbs take it. */
export function toServer({ error, payload, ...rest }) {
  const filter = { ...rest };
  if (error) filter.error_contains = error;
  if (payload) Object.assign(filter, payloadFilter(payload));
  for (const key of Object.keys(NUMBERS)) {
    if (key in filter) filter[key] = Number(filter[key]);
  }
  return filter;
}

/** The same in an address, where JSON is text. */
export function toAddress(filter) {
  const wanted = toServer(filter);
  return wanted.payload ? { ...wanted, payload: JSON.stringify(wanted.payload) } : wanted;
}

/** {"order": 7} and order.id=7 are parts of a payload, anything else is text within it. */
function payloadFilter(text) {
  const json = read(text);
  if (json !== undefined && json !== null && typeof json === "object") return { payload: json };
  const [, path, value] = text.match(/^([\w-]+(?:\.[\w-]+)*)\s*=\s*(.+)$/) ?? [];
  if (!path) return { payload_contains: text };
  const inner = read(value) ?? value;
  return { payload: path.split(".").reduceRight((all, key) => ({ [key]: all }), inner) };
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * The search box: a job id, or words: kind:mail tag:"a b" state:dead. A bare word is a
 * state or a kind, text in quotes is in the error, {…} in the payload. Answers what was
 * understood, {id} or {filter}, and unknown: the words that were not.
 */
export function parse(text) {
  const [payload] = text.match(/\{.*\}/s) ?? [];
  const words = text.replace(payload ?? "", " ").match(/[a-z_.]+:"[^"]*"|"[^"]*"|\S+/g) ?? [];
  if (!payload && words.length === 1 && /^#?\d+$/.test(words[0])) return { id: words[0].replace("#", ""), unknown: [] };
  const filter = payload ? { payload } : {};
  const unknown = [];
  for (const word of words) {
    const [, key, value] = word.match(/^([a-z_.]+):"?(.*?)"?$/) ?? [];
    if (key === "state" && value) filter.state = [...(filter.state ?? []), ...value.split(",")];
    else if (KEYS.includes(key) && value) filter[key] = value;
    else if (key?.startsWith("payload.") && value) filter.payload = `${key.slice(8)}=${value}`;
    else if (key !== undefined) unknown.push(word);
    else if (/^".+"$/.test(word)) filter.error = word.slice(1, -1);
    else if (STATES.includes(word)) filter.state = [...(filter.state ?? []), word];
    else if (!filter.kind) filter.kind = word;
    else unknown.push(word);
  }
  return { filter, unknown };
}

export const SEARCH_HELP =
  `A job id, or words: ${["state", ...TYPED].map((key) => `${key}:…`).join(" ")}. A bare word is a state or a kind, "text" is in the error, {…} in the payload.`;

/** [key, words] for each condition: kind is mail, error contains “bank”. */
export function conditions(filter) {
  return Object.entries(filter).map(([key, value]) => {
    const said = [value].flat().map((each) => String(each).replaceAll("_", key === "state" ? " " : "_")).join(" or ");
    if (key === "error") return [key, `error contains “${said}”`];
    if (key === "error_like") return [key, `error is like ${said}`];
    if (key === "payload") {
      const { payload, payload_contains: within } = payloadFilter(value);
      return [key, within ? `payload contains “${within}”` : `payload has ${JSON.stringify(payload)}`];
    }
    if (key in AGES || key in NUMBERS) return [key, `${key.replace("_", " ")} ${said}`];
    return [key, `${(TEXTS[key] ?? key).toLowerCase()} is ${said}`];
  });
}

/** What a list was filtered by, each part with a way to leave it out. */
export function understood(filter, change) {
  const parts = conditions(filter);
  if (parts.length === 0) return null;
  return h("p", { class: "understood" }, h("span", { class: "quiet" }, "Jobs whose "), parts.map(([key, words], i) => {
    const { [key]: _, ...rest } = filter;
    return [i > 0 && h("span", { class: "quiet" }, " and "),
      h("span", { class: "said" }, words, h("a", {
        href: "#", role: "button", "aria-label": `Leave out: ${words}`,
        onclick: (event) => {
          event.preventDefault();
          change(rest);
        },
      }, "✕"))];
  }));
}

/** A form over the filter; change() gets the new one when it is applied. */
export function filterForm(filter, change, { states = true, keys = TYPED, open = false } = {}) {
  const main = ["lane", "kind", "error"].filter((key) => keys.includes(key));
  const rest = keys.filter((key) => !main.includes(key));
  const chips = new Map();
  const boxes = STATES.map((state) => {
    const box = h("input", { type: "checkbox", name: "state", value: state });
    box.checked = (filter.state ?? []).includes(state);
    box.addEventListener("change", () => form.requestSubmit());
    const count = h("b", { class: "count" });
    chips.set(state, count);
    return h("label", { class: "chip", "data-state": state }, box, h("span", {}, state.replaceAll("_", " "), " ", count));
  });
  const used = rest.some((key) => key in filter);
  const form = h("form", { class: "filters", role: "search", "aria-label": "Filter" },
    states && h("fieldset", { class: "chips" }, h("legend", { class: "unseen" }, "State"), boxes),
    h("div", { class: "row" }, main.map((key) => box(key, filter)),
      h("button", { type: "submit" }, "Filter"),
      Object.keys(filter).length > 0 && h("button", { type: "button", class: "ghost", onclick: () => change({}) }, "Clear")),
    rest.length > 0 && h("details", { open: open || used },
      h("summary", {}, "More filters"),
      h("div", { class: "row" }, rest.map((key) => box(key, filter)))));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const next = fromQuery(new URLSearchParams(/** @type {any} */ (new FormData(form))));
    change(filter.error_like && !next.error ? { ...next, error_like: filter.error_like } : next);
  });
  return { element: form, chips };
}

const PLACEHOLDERS = { older_than: "2 hours", newer_than: "15 min", payload: "order.id=7, {…} or text" };

function box(key, filter) {
  const label = TEXTS[key] ?? AGES[key] ?? NUMBERS[key];
  const field = h("input", {
    name: key, type: key in NUMBERS ? "number" : "text", autocomplete: "off", spellcheck: "false",
    placeholder: PLACEHOLDERS[key],
  });
  field.value = filter[key] ?? "";
  return h("label", { class: "field" }, h("span", {}, label), field);
}
