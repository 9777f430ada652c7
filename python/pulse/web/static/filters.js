// One filter language: what the form says, what the address bar keeps, what the search
// asks and what a bulk verb acts on.

import { h } from "./dom.js";
import { STATES } from "./parts.js";

const TEXTS = {
  lane: "Lane", kind: "Kind", worker: "Worker", tag: "Tag", group_key: "Group",
  enqueued_by: "Enqueued by", error: "Error contains",
};
const AGES = { older_than: "Older than", newer_than: "Newer than" };
const NUMBERS = { priority_above: "Priority above", priority_below: "Priority below" };
const KEYS = [...Object.keys(TEXTS), ...Object.keys(AGES), ...Object.keys(NUMBERS)];

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

/** As the API and pulse.*_where take it. Text within an error is a LIKE pattern there. */
export function toServer({ error, ...rest }) {
  const filter = { ...rest };
  if (error) filter.error_like = `%${error.replace(/[\\%_]/g, "\\$&")}%`;
  for (const key of Object.keys(NUMBERS)) {
    if (key in filter) filter[key] = Number(filter[key]);
  }
  return filter;
}

/** The search box: a job id, or kind:mail state:dead …; a bare word is a kind. */
export function parse(text) {
  const words = text.trim().match(/[a-z_]+:"[^"]*"|\S+/g) ?? [];
  if (words.length === 1 && /^#?\d+$/.test(words[0])) return { id: words[0].replace("#", "") };
  const query = new URLSearchParams();
  for (const word of words) {
    const [, key, value] = word.match(/^([a-z_]+):"?(.*?)"?$/) ?? [null, "kind", word];
    if (key === "state") value.split(",").forEach((state) => query.append("state", state));
    else if (KEYS.includes(key)) query.set(key, value);
    else query.set("kind", word);
  }
  return { query };
}

/** A form over the filter; change() gets the new one when it is applied. */
export function filterForm(filter, change, { states = true, keys = KEYS, open = false } = {}) {
  const main = ["lane", "kind", "error"].filter((key) => keys.includes(key));
  const rest = keys.filter((key) => !main.includes(key));
  const boxes = STATES.map((state) => {
    const box = h("input", { type: "checkbox", name: "state", value: state });
    box.checked = (filter.state ?? []).includes(state);
    box.addEventListener("change", () => form.requestSubmit());
    return h("label", { class: "chip", "data-state": state }, box, h("span", {}, state.replaceAll("_", " ")));
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
    change(fromQuery(new URLSearchParams(new FormData(form))));
  });
  return form;
}

function box(key, filter) {
  const label = TEXTS[key] ?? AGES[key] ?? NUMBERS[key];
  const field = h("input", {
    name: key, type: key in NUMBERS ? "number" : "text", autocomplete: "off", spellcheck: "false",
    placeholder: key in AGES ? "2 hours" : null,
  });
  field.value = filter[key] ?? "";
  return h("label", { class: "field" }, h("span", {}, label), field);
}
