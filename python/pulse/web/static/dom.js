// Every element of the page is made here. Text goes in as text, never as markup, so
// what a job, a lane or an error says cannot become part of the page.

const SVG = "http://www.w3.org/2000/svg";

/**
 * h("a", {href: "#/", onclick: go}, "text", [more]): an element.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, any>} [props]
 * @param {...any} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function h(name, props, ...children) {
  return fill(document.createElement(name), props, children);
}

/**
 * The same for a picture.
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, any>} [props]
 * @param {...any} children
 * @returns {SVGElementTagNameMap[Name]}
 */
export function svg(name, props, ...children) {
  return fill(document.createElementNS(SVG, name), props, children);
}

/**
 * @template {Element} Made
 * @param {Made} element
 * @returns {Made}
 */
function fill(element, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

function present(children) {
  return children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);
}

/** The element with this id, which the HTML of the page has. */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * Put children in place of what an element held.
 * @template {Element} Shown
 * @param {Shown} element
 * @param {...any} children
 */
export function show(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** The same; the element with the focus keeps it, or the one that replaces it. */
export function redraw(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  show(element, ...children);
  if (focused) (focused.isConnected ? focused : element.querySelector("a, button, summary"))?.focus();
}

/**
 * Change a text only when it differs: a selection in it survives.
 * @template {Element} Written
 * @param {Written} element
 * @param {any} text
 */
export function write(element, text) {
  const wanted = text ?? "";
  if (element.textContent !== String(wanted)) element.textContent = wanted;
  return element;
}

const kept = new WeakMap();

/**
 * Make the children of parent follow items: rows are kept by key, so that focus, open
 * details and selections outlive an update. make() answers {element, update(item)}.
 */
export function keyed(parent, items, keyOf, make) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const row = before.get(key) ?? make(item);
    row.update?.(item);
    after.set(key, row);
  }
  let lost = -1;
  [...before].forEach(([key, row], place) => {
    if (after.has(key)) return;
    if (row.element.contains(document.activeElement)) lost = place;
    row.element.remove();
  });
  let at = parent.firstElementChild;
  for (const { element } of after.values()) {
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  kept.set(parent, after);
  if (lost >= 0) refocus(parent, lost);
}

/** The row that had the focus is gone: its neighbour gets it, else the page. */
function refocus(parent, place) {
  const rows = [...parent.children];
  const next = rows[Math.min(place, rows.length - 1)]?.querySelector("a, button");
  (next ?? byId("main")).focus();
}
