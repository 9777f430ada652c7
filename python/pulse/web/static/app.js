// The start: who is looking, which page, the live stream and the keys.

import { get, onAnswer } from "./api.js";
import { complain } from "./dialog.js";
import { byId, h, show, write } from "./dom.js";
import { conditions, parse, SEARCH_HELP, toQuery } from "./filters.js";
import { flow } from "./flow.js";
import { clock } from "./format.js";
import { groups } from "./groups.js";
import { job } from "./job.js";
import { list } from "./jobs.js";
import { kind, kinds } from "./kinds.js";
import { audit, health, workers } from "./lists.js";
import { overview } from "./overview.js";
import { empty, heading, tickMoments, trouble } from "./parts.js";
import { schedules } from "./schedules.js";
import { lacking, may, me, readOnce, startStream, Stay, takeVerbs } from "./state.js";
import { badges } from "./troubles.js";

const PAGES = {
  "": overview, jobs: list("jobs"), dead: list("dead"), approvals: list("approvals"),
  kinds, schedules, workers, health, audit,
};
const ONE = { jobs: job, kinds: kind, flows: flow, groups };
const LIVE = {
  connecting: "Connecting…", live: "Live", lost: "Disconnected, trying again…", trouble: "The database does not answer",
  still: "Not live",
};

const main = byId("main");
const search = /** @type {HTMLInputElement} */ (byId("search"));
let stay = new Stay();
let last = null;

/** #/jobs/123 and #/jobs?state=dead: the page, its job or kind, and its filter. */
function route() {
  const [address, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = address.split("/");
  return { page, id: id && decodeURIComponent(id), query: new URLSearchParams(query) };
}

async function go() {
  if (location.hash === "#main") return;
  const { page, id, query } = route();
  stay.leave();
  stay = new Stay();
  for (const link of document.querySelectorAll("#nav a")) {
    const mine = link.getAttribute("href") === `#/${page}`;
    if (mine) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const draw = id ? ONE[page] : PAGES[page];
  document.title = `${id ? `${page.slice(0, -1)} ${id}` : page || "overview"} · pulse`;
  if (!draw) {
    show(main, heading("There is no such page"), empty("The pages are listed above."));
    return;
  }
  await draw(main, stay, { id, query });
  // A new page is announced by its heading; a new filter leaves the focus where it is.
  if (last !== null && last !== `${page}/${id}`) {
    main.querySelector("h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  // On a phone the tabs are wider than the screen.
  if (last !== `${page}/${id}`) document.querySelector("#nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  last = `${page}/${id}`;
}

function report(state) {
  const live = byId("live");
  live.dataset.state = state;
  write(live, LIVE[state]);
  if (state === "still") stand();
  if (state === "trouble") down("The database does not answer.");
  if (state === "lost") down("The server does not answer.");
  if (state === "live") banner.hidden = true;
}

const banner = byId("banner");

/** Every view says when what it shows may be old, and since when. */
function down(what) {
  if (banner.hidden) show(banner, h("b", {}, what), ` What you see is from before ${clock(new Date().toISOString())}. The page goes on by itself when it is back.`);
  banner.hidden = false;
}

function answered(problem) {
  if (problem) down(`${problem.message}.`);
  else if (byId("live").dataset.state !== "trouble") banner.hidden = true;
}

/** Streams are refused here: say why, and show the picture of now when it is asked for. */
function stand() {
  me.streams = false;
  byId("refresh").hidden = false;
  get("stream").catch(complain);
  refresh();
}

function refresh() {
  return readOnce().catch(complain);
}

function keys(event) {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    if (document.querySelector("dialog[open]")) return;
    event.preventDefault();
    search.focus();
    search.select();
  }
  if (event.key === "Escape" && event.target === search) {
    search.value = "";
    main.focus();
  }
}

const said = byId("search-said");

/** While one types: what the search would look for. */
function understand() {
  const text = search.value.trim();
  const { id, filter, unknown } = parse(text);
  said.dataset.tone = unknown.length ? "bad" : "";
  if (!text) write(said, SEARCH_HELP);
  else if (id) write(said, `Opens job ${id}.`);
  else if (unknown.length) write(said, `Not understood: ${unknown.join(" ")}. ${SEARCH_HELP}`);
  else write(said, `Finds jobs whose ${conditions(filter).map(([, words]) => words).join(" and ")}.`);
  return { id, filter, unknown };
}

function find(event) {
  event.preventDefault();
  if (!search.value.trim()) return;
  const { id, filter, unknown } = understand();
  if (unknown.length) return;
  location.hash = id ? `#/jobs/${id}` : `#/jobs?${toQuery(filter)}`;
  search.blur();
}

async function signOut() {
  await fetch(new URL("../logout", import.meta.url), { method: "POST", headers: { "X-Pulse": "1" } });
  location.reload();
}

async function start() {
  document.addEventListener("keydown", keys);
  byId("find").addEventListener("submit", find);
  search.addEventListener("input", understand);
  search.addEventListener("focus", understand);
  onAnswer(answered);
  // "#main" would be taken for a page.
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  byId("sign-out").addEventListener("click", signOut);
  addEventListener("hashchange", go);
  setInterval(tickMoments, 1000);
  try {
    Object.assign(me, await get("me"));
    // A role that was given nothing may not ask, and has no buttons.
    if (me.rights.length > 0) takeVerbs((await get("verbs")).verbs);
  } catch (problem) {
    show(main, trouble(problem));
    setTimeout(() => location.reload(), 5000);
    return;
  }
  write(byId("database"), me.database);
  // Below the page of several databases.
  const node = location.pathname.match(/\/node\/(\d+)\/$/);
  if (node) document.querySelector(".brand")?.after(h("a", { id: "all-nodes", class: "plain", href: "../../" }, `node ${node[1]} of all`));
  const badge = byId("me");
  write(badge, may("operator") ? me.user : `${me.user} · view only`);
  badge.title = may("operator") ? `${me.role}: ${me.rights.join(", ")}` : lacking("operator");
  byId("sign-out").hidden = !me.signed_in;
  byId("refresh").addEventListener("click", refresh);
  badges();
  if (!may("viewer")) byId("live").hidden = true;
  else if (me.streams) startStream(report);
  else report("still");
  await go();
}

start();
