// The user, the latest picture of the lanes that the server has sent, and the
// latest summary of what is wrong.

import { follow, get } from "./api.js";
import { serverSays } from "./format.js";

/** @type {{ user: string, role: string, rights: string[], streams: boolean, database?: string, signed_in?: boolean }} */
export const me = { user: "", role: "", rights: [], streams: true };

export function may(right) {
  return me.rights.includes(right);
}

/** @typedef {{ verb: string, access: string[], states: string[] | null }} Verb */

/** What the database says of its verbs, by name. @type {Map<string, Verb>} */
const verbs = new Map();

/** @param {Verb[]} said */
export function takeVerbs(said) {
  for (const verb of said) verbs.set(verb.verb, verb);
}

/**
 * Whether this person may call a verb on every job: a producer may on its own alone.
 * @param {string} verb
 */
export function mayCall(verb) {
  return verbs.get(verb)?.access.some((level) => level !== "producer" && may(level)) ?? false;
}

/** The states of jobs on which a verb acts. @param {string} verb @returns {string[]} */
export function actsOn(verb) {
  return verbs.get(verb)?.states ?? [];
}

/** Why a button is not there, with the statement that would bring it. */
export function lacking(right) {
  return `${me.role || "Your role"} may look but not act. An admin can change that: SELECT pulse.grant_access('${me.role}', '${right}')`;
}

/** @type {any} */
let picture = null;
const watchers = new Set();

/** Call watcher with every new picture, and with the latest at once. */
export function watch(watcher) {
  watchers.add(watcher);
  if (picture) watcher(picture);
  return () => watchers.delete(watcher);
}

/** Show a lane as an answer has it, without waiting for the next picture. */
export function laneChanged(lane) {
  if (!picture || !lane?.name) return;
  const lanes = picture.lanes.map((l) => (l.name === lane.name ? { ...l, ...lane } : l));
  publish({ ...picture, lanes });
}

function publish(next) {
  picture = next;
  for (const watcher of watchers) watcher(picture);
}

/** @type {any} */
let summary = null;
const readers = new Set();

/** The same for summaries: what is wrong, and how many jobs are in each state. */
export function watchSummary(reader) {
  readers.add(reader);
  if (summary) reader(summary);
  return () => readers.delete(reader);
}

function takeSummary(next) {
  summary = next;
  for (const reader of readers) reader(summary);
}

/** After a verb: fetch the troubles now instead of after five seconds. */
export async function refreshSummary() {
  if (may("viewer")) takeSummary(await get("summary"));
}

function take(next) {
  serverSays(next.at);
  publish({ ...next, lanes: next.lanes.map((lane) => dated(lane, next.at)) });
}

/** The picture of now, where the server may not stream. */
export async function readOnce() {
  const [{ lanes }, status] = await Promise.all([get("lanes"), get("status"), refreshSummary()]);
  take({ ...status, lanes });
}

export function startStream(report) {
  follow("stream", {
    overview(next) {
      report("live");
      take(next);
    },
    summary: takeSummary,
    trouble: () => report("trouble"),
  }, report);
}

/** An age grows by itself and is not sent again for that: here it becomes a moment. */
function dated(lane, at) {
  const age = lane.oldest_ready_seconds;
  const since = age === null ? null : new Date(Date.parse(at) - age * 1000).toISOString();
  return { ...lane, oldest_since: since };
}

/** What a page holds while one stays on it; leaving lets all of it go. */
export class Stay {
  /** @type {(() => void)[]} */
  #ends = [];
  left = false;

  until(end) {
    if (this.left) end();
    else this.#ends.push(end);
  }

  /** Do work again every so often, one at a time, while the page is visible. */
  every(seconds, work) {
    let busy = false;
    const timer = setInterval(async () => {
      if (busy || document.hidden || document.querySelector("dialog[open]")) return;
      busy = true;
      await work().catch(() => {});
      busy = false;
    }, seconds * 1000);
    this.until(() => clearInterval(timer));
  }

  leave() {
    this.left = true;
    for (const end of this.#ends.splice(0)) end();
  }
}
