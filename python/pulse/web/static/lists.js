// Workers, health and the audit.

import { get } from "./api.js";
import { h, keyed, redraw, show } from "./dom.js";
import { number, pretty } from "./format.js";
import { pagedTable } from "./pages.js";
import { cells, empty, heading, jobLink, MANY, narrow, pill, searchLink, table, trouble, when } from "./parts.js";
import { remedy, statusPill } from "./troubles.js";

/**
 * A page that is one list, read again every few seconds. actions(again) makes the buttons
 * above it; fits(item, query) says which of the items the address asks for, first(item, many) a
 * number for those that come first; look is a class of the table.
 * @param {object} list
 * @param {string} list.title
 * @param {string} [list.note]
 * @param {string[][]} list.columns
 * @param {string} list.address
 * @param {string} list.key
 * @param {(item: any) => string} list.id
 * @param {(item: any, again: () => any, kept: any) => any} list.row
 * @param {string} list.nothing
 * @param {(again: () => any) => any} [list.actions]
 * @param {(item: any, query: URLSearchParams) => boolean} [list.fits]
 * @param {(item: any, many: boolean) => number} [list.first]
 * @param {string} [list.look]
 */
export function whole({ title, note, columns, address, key, id, row, nothing, actions = () => null, fits = () => true, first = () => 0, look = "" }) {
  return async (root, stay, { query }) => {
    const { element, body } = table(title, columns, look);
    const none = empty(nothing);
    const rest = h("div");
    const wanted = narrow(`Find ${title.toLowerCase()}`, draw);
    let items = [];
    show(root, heading(title, note, ...[actions(load)].filter(Boolean)), wanted.element, element, rest);
    function draw() {
      keyed(body, wanted.part(items, id, title.toLowerCase()), id, () => redrawn((now, kept) => row(now, load, kept)));
    }
    async function load() {
      const found = (await get(address))[key].filter((item) => fits(item, query));
      const many = found.length > MANY;
      items = found.sort((a, b) => first(a, many) - first(b, many));
      if (stay.left) return;
      draw();
      element.hidden = items.length === 0;
      show(rest, items.length === 0 && none);
    }
    await load().catch((problem) => {
      element.hidden = true;
      show(rest, trouble(problem));
    });
    stay.every(5, load);
  };
}

/** A row that is drawn again when its values have changed; kept is what it remembers. */
function redrawn(draw) {
  const element = h("tr");
  const kept = {};
  let before = "";
  return {
    element,
    update(now) {
      const text = JSON.stringify(now);
      if (text === before) return;
      before = text;
      redraw(element, draw(now, kept));
    },
  };
}

const WORKERS = [["Worker", "name"], ["Running", "num"], ["Lanes", ""], ["Kinds", "wide"], ["Role", ""], ["Last seen", "num"], ["State", "state"]];

export const workers = whole({
  title: "Workers", columns: WORKERS, address: "workers", key: "workers", id: (worker) => worker.worker,
  nothing: "No worker was seen. Start one: pulse work app:worker",
  row: (worker) => cells(WORKERS,
    searchLink(worker.worker, { worker: worker.worker, state: "running" }), number(worker.running),
    (worker.lanes ?? []).join(", "), worker.kinds ? worker.kinds.join(", ") : "every kind",
    worker.seen_by ?? "–", when(worker.seen_at), workerState(worker)),
});

/** One that left its jobs behind is lost; one that has none has stopped. */
function workerState({ live, running }) {
  if (live) return pill("completed", "live");
  return running > 0 ? pill("dead", "lost") : pill("cancelled", "stopped");
}

const HEALTH = [["Check", "name check"], ["Status", "state"], ["Figure", "wide"], ["What to do", "wide"]];

export const health = whole({
  title: "Health", columns: HEALTH, address: "health", key: "checks", id: (check) => check.check_name,
  nothing: "There are no checks.", first: ({ status }) => ["fail", "warn", "ok"].indexOf(status),
  row: (check) => cells(HEALTH,
    check.check_name.replaceAll("_", " "), statusPill(check.status), check.figure ?? "", remedy(check)),
});

const AUDIT = [["When", ""], ["Who", ""], ["What", ""], ["To", ""], ["Why", "wide"], ["Change", "wide"]];

export function audit(root, stay) {
  const entries = pagedTable({
    caption: "Audit", columns: AUDIT, address: "audit", key: "audit", filter: {}, id: (entry) => entry.entry,
    nothing: "No operator has done anything in the last 90 days.",
    row: (entry) => ({
      element: h("tr", {}, cells(AUDIT,
        when(entry.at), entry.who, entry.verb.replaceAll("_", " "),
        target(entry), entry.reason ?? "", changeOf(entry))),
    }),
  }, stay);
  show(root, heading("Audit", "What operators did, newest first."), entries.element);
}

function target({ job_id, lane, before, after }) {
  return job_id ? jobLink(job_id) : after?.name ?? before?.name ?? lane ?? "–";
}

function changeOf({ before, after }) {
  if (!before && !after) return "";
  return h("details", {}, h("summary", {}, "Before and after"),
    h("pre", { tabindex: 0 }, pretty({ before, after })));
}
