// A list that is read in keyset pages: newest first, older ones on demand, and the first
// page looked at again while one stays.

import { get, query } from "./api.js";
import { button } from "./dialog.js";
import { h, keyed, show } from "./dom.js";
import { empty, table, trouble } from "./parts.js";

/**
 * columns and row() make the table; address, key (of the answer) and filter say what to
 * read. nothing: words for an empty list.
 * @param {object} list
 * @param {string} list.caption
 * @param {string[][]} list.columns
 * @param {string} list.address
 * @param {string} list.key
 * @param {Record<string, any>} list.filter
 * @param {(item: any) => any} list.id
 * @param {(item: any) => { element: Element, update?: (item: any) => void }} list.row
 * @param {string} list.nothing
 * @param {string} [list.kind]
 * @param {(items: any[]) => void} [list.shown]
 * @param {number} [list.limit]
 * @param {number} [list.every]
 * @param {import("./state.js").Stay} stay
 */
export function pagedTable({ caption, columns, address, key, filter, id, row, nothing, kind, shown = () => {}, limit = 50, every = 5 }, stay) {
  const { element, body } = table(caption, columns, kind);
  const foot = h("div", { class: "foot" });
  const all = h("div", {}, element, foot);
  let items = [];
  let next = null;
  let deep = false;

  async function read(before) {
    const answer = await get(address + query({ ...filter, limit, before }));
    return { found: answer[key], next: answer.next ?? null, cut: Boolean(answer.searched_to) };
  }

  function draw(cut) {
    keyed(body, items, id, row);
    shown(items);
    element.hidden = items.length === 0;
    show(foot,
      items.length === 0 && !next && empty(nothing),
      cut && h("p", { class: "quiet" }, "The search stopped at its limit; older jobs may match too."),
      next && button(cut ? "Search on" : "Older", older, { name: cut ? "Search on in older jobs" : "Show older ones" }));
  }

  async function older() {
    const page = await read(next);
    if (stay.left) return;
    deep = true;
    items = items.concat(page.found);
    next = page.next;
    draw(page.cut);
  }

  /** The newest page again; with older ones on screen, only those rows change. */
  async function refresh() {
    const page = await read(null);
    if (stay.left) return;
    if (deep) {
      const fresh = new Map(page.found.map((item) => [id(item), item]));
      items = items.map((item) => fresh.get(id(item)) ?? item);
      draw(false);
    } else {
      items = page.found;
      next = page.next;
      draw(page.cut);
    }
  }

  /** A rare match may lie behind many newer jobs: a few more looks before one has to ask. */
  async function start() {
    try {
      await refresh();
      for (let looks = 0; looks < 4 && items.length === 0 && next && !stay.left; looks += 1) await older();
    } catch (problem) {
      show(foot, trouble(problem));
      element.hidden = true;
    }
  }

  function again() {
    deep = false;
    return start();
  }

  start();
  stay.every(every, refresh);
  return { element: all, again };
}
