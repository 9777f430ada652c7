// Talking to the server. All addresses are relative to where this file was served, so
// the page works below any prefix.

const BASE = new URL("../admin/workers/", import.meta.url);

/** What went wrong, as the server reports it (application/problem+json). */
export class Problem extends Error {
  /** @param {{ title?: string, detail?: string, status?: number, sqlstate?: string, hint?: string }} said */
  constructor({ title, detail, status, sqlstate, hint }) {
    super(title || "Something went wrong");
    Object.assign(this, { detail, status, sqlstate, hint });
  }
}

/** path`jobs/${id}/cancel`: an address whose parts cannot escape their place. */
export function path(texts, ...parts) {
  return texts.reduce((done, text, i) => done + encodeURIComponent(parts[i - 1]) + text);
}

export function query(filters) {
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(filters)) {
    for (const each of [value].flat()) {
      if (each !== "" && each !== null && each !== undefined) pairs.append(key, each);
    }
  }
  const text = pairs.toString();
  return text ? `?${text}` : "";
}

/** @type {(problem: Problem | null) => void} */
let hear = () => {};

/** Let listener know after each request whether it was answered: (problem or null). */
export function onAnswer(listener) {
  hear = listener;
}

/**
 * @param {string} method
 * @param {string} address
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function call(method, address, body) {
  /** @type {RequestInit & { headers: Record<string, string> }} */
  const options = { method, headers: { Accept: "application/json" }, cache: "no-store" };
  if (method !== "GET") options.headers["X-Pulse"] = "1";
  if (method !== "GET" && method !== "DELETE") {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body ?? {});
  }
  let response;
  try {
    response = await fetch(new URL(address, BASE), options);
  } catch {
    const problem = new Problem({
      title: "The server does not answer",
      hint: "The page goes on by itself when it is back.",
    });
    hear(problem);
    throw problem;
  }
  // The login page stands where this page was.
  if (response.status === 401) location.reload();
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => ({}));
  if (response.ok) {
    hear(null);
    return answer;
  }
  const problem = new Problem({ title: `${response.status} ${response.statusText}`, ...answer });
  if (response.status >= 502) hear(problem);
  throw problem;
}

export const get = (address) => call("GET", address);
/** @type {(address: string, body?: object) => Promise<any>} */
export const post = (address, body) => call("POST", address, body);
export const put = (address, body) => call("PUT", address, body);
export const patch = (address, body) => call("PATCH", address, body);
export const remove = (address) => call("DELETE", address);

/**
 * Follow server-sent events until the answered function is called. A browser gives up
 * on an answer that is not a stream, so a closed one is opened again here. A hidden tab
 * lets go of its connection: browsers allow only six to a host. Where the server may
 * not stream, "still" is reported and nothing is tried again.
 * @param {string} address
 * @param {Record<string, (said: any, stop: () => void) => void>} handlers
 * @param {(state: string) => void} report
 */
export function follow(address, handlers, report = () => {}) {
  /** @type {EventSource | null} */
  let source = null;
  let timer = 0;
  let tries = 0;
  let stopped = false;

  function open() {
    clearTimeout(timer);
    if (source || stopped || document.hidden) return;
    source = new EventSource(new URL(address, BASE));
    source.onopen = () => {
      tries = 0;
      report("live");
    };
    source.onerror = () => {
      report("lost");
      if (source?.readyState !== EventSource.CLOSED) return;
      close();
      tries += 1;
      // Not all pages at the same moment: they lost the server together.
      timer = setTimeout(again, Math.min(10000, 500 * 2 ** tries) * (0.5 + Math.random()));
    };
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data || "null"), stop));
    }
  }

  async function again() {
    // Whether it is the login that ended: then this reloads the page.
    const who = await get("me").catch(() => null);
    if (who?.streams === false) {
      stop();
      report("still");
    } else open();
  }

  function close() {
    source?.close();
    source = null;
  }

  function seen() {
    if (document.hidden) close();
    else open();
  }

  function stop() {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
    close();
  }

  document.addEventListener("visibilitychange", seen);
  open();
  return stop;
}
