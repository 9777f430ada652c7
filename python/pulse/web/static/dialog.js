// Questions to the operator, and short news in the corner.

import { byId, h, show } from "./dom.js";
import { trouble } from "./parts.js";

let number = 0;

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {string} [type]  of an input, or "lines"
 * @property {any} [value]
 * @property {boolean} [required]
 * @property {string} [hint]
 * @property {string} [placeholder]
 * @property {number} [min]
 * @property {number} [max]
 * @property {string[]} [options]
 *
 * @typedef {object} Question
 * @property {string} title
 * @property {string} confirm
 * @property {string} [text]
 * @property {Field[]} [fields]
 * @property {boolean} [danger]
 * @property {any[]} [details]
 * @property {(said: Record<string, any>) => any} [work]
 * @property {boolean} [wide]
 */

/**
 * Ask in a dialog and answer {field: value}, or null when it was closed (Esc, Cancel).
 * With work, the dialog stays open until that has succeeded: what was typed survives a
 * refusal.
 * @param {Question} question
 * @returns {Promise<Record<string, any> | null>}
 */
export function ask({ title, text, fields = [], confirm, danger = false, details = [], work, wide = false }) {
  const name = `dialog-${++number}`;
  const inputs = fields.map((field, i) => input(field, `${name}-${i}`));
  const refusal = h("div");
  const form = h("form", {},
    h("h2", { id: name }, title),
    text && h("p", {}, text),
    details,
    h("div", { class: "fields" }, inputs.map((each) => each.element)),
    refusal,
    h("div", { class: "buttons" },
      h("button", { type: "button", class: "ghost", onclick: () => dialog.close() }, "Close"),
      h("button", { type: "submit", class: danger ? "danger" : "primary", autofocus: fields.length === 0 && !danger }, confirm)));
  const dialog = h("dialog", { "aria-labelledby": name, class: wide ? "wide" : null }, form);
  document.body.append(dialog);
  return new Promise((answer) => {
    let values = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const said = Object.fromEntries(inputs.map((each) => [each.name, each.value()]));
      try {
        await work?.(said);
      } catch (problem) {
        show(refusal, trouble(problem));
        return;
      }
      values = said;
      dialog.close();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(values);
    });
    dialog.showModal();
  });
}

/**
 * @param {Field} field
 * @param {string} id
 */
function input({ name, label, type = "text", value = "", required, hint, placeholder, min, max, options }, id) {
  const described = hint ? `${id}-hint` : null;
  if (type === "checkbox") {
    const box = h("input", { id, type, "aria-describedby": described });
    box.checked = Boolean(value);
    return {
      name,
      value: () => box.checked,
      element: h("div", { class: "field check" }, box, h("label", { for: id }, label),
        hint && h("small", { id: described }, hint)),
    };
  }
  const more = { id, required, placeholder, "aria-describedby": described, autocomplete: "off" };
  const box = options ? h("select", more, options.map((each) => h("option", { value: each }, each || "–")))
    : type === "lines" ? h("textarea", { ...more, rows: 4, spellcheck: "false" })
      : h("input", { ...more, type, min, max, step: type === "number" ? "any" : null });
  box.value = value ?? "";
  return {
    name,
    value: () => (type === "number" ? (box.value === "" ? null : Number(box.value)) : box.value.trim()),
    element: h("div", { class: "field" }, h("label", { for: id }, label), box,
      hint && h("small", { id: described }, hint)),
  };
}

/** News that goes away by itself. */
export function notify(text) {
  const toast = h("div", { class: "toast" }, h("p", {}, text), dismiss());
  place(toast);
  setTimeout(() => toast.remove(), 6000);
}

/** Trouble stays until it is closed: it may hold a hint that one wants to act on. */
export function complain(problem) {
  place(h("div", { class: "toast bad", role: "alert" },
    h("div", {},
      h("p", {}, h("b", {}, problem.message)),
      problem.detail && h("p", {}, problem.detail),
      problem.hint && h("p", { class: "hint" }, problem.hint),
      problem.sqlstate && h("p", { class: "quiet" }, `SQLSTATE ${problem.sqlstate}`)),
    dismiss()));
}

function dismiss() {
  return h("button", {
    type: "button", class: "ghost small", "aria-label": "Dismiss",
    onclick: (event) => event.currentTarget.parentElement.remove(),
  }, "✕");
}

function place(toast) {
  const all = byId("toasts");
  all.append(toast);
  while (all.children.length > 4) all.firstElementChild?.remove();
}

/**
 * A button that cannot be pressed twice while its work is under way.
 * @param {string} label
 * @param {() => any} work
 * @param {{ kind?: string, title?: string, name?: string }} [look]
 */
export function button(label, work, { kind = "", title, name } = {}) {
  const element = h("button", { type: "button", class: kind, title, "aria-label": name }, label);
  element.addEventListener("click", async () => {
    if (element.getAttribute("aria-busy") === "true") return;
    element.setAttribute("aria-busy", "true");
    try {
      await work();
    } catch (problem) {
      complain(problem);
    } finally {
      element.removeAttribute("aria-busy");
    }
  });
  return element;
}
