// Numbers, durations and moments as people read them.

const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const MOMENT = new Intl.DateTimeFormat(undefined, {
  dateStyle: "medium",
  timeStyle: "long",
});
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

// How far the server's clock is ahead of this one: ages count by the server's.
let ahead = 0;

export function serverSays(iso) {
  if (iso) ahead = Date.parse(iso) - Date.now();
}

export function now() {
  return Date.now() + ahead;
}

export function number(n) {
  return n === null || n === undefined ? "–" : NUMBER.format(n);
}

/** A count that may be an estimate: 1,204 or ≈ 1.2M. */
export function count(n, estimated) {
  return estimated ? `≈ ${COMPACT.format(n)}` : number(n);
}

/** {jobs, more}: how many were counted, and whether there are more. */
export function capped({ jobs, more }) {
  const said = jobs >= 1000 ? COMPACT.format(jobs) : NUMBER.format(jobs);
  // Only dead letters are more than are counted of other states: more of them are estimated.
  if (more && jobs > 10000) return `≈ ${said}`;
  return more ? `${said}+` : said;
}

export function rate(n) {
  if (n === null || n === undefined) return "–";
  return n >= 100 || Number.isInteger(n) ? NUMBER.format(Math.round(n)) : Number(n).toFixed(1);
}

export function plural(n, one, many = `${one}s`) {
  return `${NUMBER.format(n)} ${n === 1 ? one : many}`;
}

/** Two units at most: 840 ms, 12 s, 3 min 05 s, 2 h 10 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.abs(seconds);
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return pair(Math.floor(whole / 60), "min", whole % 60, "s");
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return pair(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.floor(minutes / 60);
  return pair(Math.floor(hours / 24), "d", hours % 24, "h");
}

function pair(big, bigUnit, small, smallUnit) {
  return small ? `${big} ${bigUnit} ${String(small).padStart(2, "0")} ${smallUnit}` : `${big} ${bigUnit}`;
}

/** @type {[string, number][]} */
const UNITS = [["h", 3600], ["min", 60], ["s", 1]];

/** As PostgreSQL reads it back: 500 ms, 30 s, 15 min, 48 h, 7 days. */
export function interval(seconds) {
  if (seconds === null || seconds === undefined || seconds === "") return "";
  const s = Number(seconds);
  if (s === 0) return "0";
  if (s % 86400 === 0 && s >= 3 * 86400) return `${s / 86400} days`;
  for (const [unit, size] of UNITS) if (s % size === 0) return `${s / size} ${unit}`;
  return s < 1 ? `${s * 1000} ms` : `${s} s`;
}

/** Whole seconds, for what ticks while one looks. */
export function ticking(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  return duration(s < 1 ? 0 : s).replace(/^0 ms$/, "0 s").replace(/^(\d)\.0 s$/, "$1 s");
}

/** Years that no calendar of a browser holds (BC, or five digits) are shown as they came. */
function unreadable(iso) {
  return Number.isNaN(Date.parse(iso));
}

export function distance(iso) {
  if (unreadable(iso)) return String(iso);
  const seconds = (now() - Date.parse(iso)) / 1000;
  if (Math.abs(seconds) < 1) return "just now";
  return seconds > 0 ? `${ticking(seconds)} ago` : `in ${ticking(-seconds)}`;
}

export function since(iso) {
  if (unreadable(iso)) return String(iso);
  return ticking((now() - Date.parse(iso)) / 1000);
}

export function moment(iso) {
  return unreadable(iso) ? String(iso) : MOMENT.format(new Date(iso));
}

/** The time of day, with the day when it is not today. */
export function clock(iso) {
  if (unreadable(iso)) return String(iso);
  const at = new Date(iso);
  const today = new Date(now()).toDateString() === at.toDateString();
  return today ? CLOCK.format(at) : `${DAY.format(at)}, ${CLOCK.format(at)}`;
}

export function firstLine(text) {
  return (text ?? "").split("\n", 1)[0];
}

/** Python's tracebacks say what happened in their last line. */
export function gist(error) {
  const lines = (error ?? "").trim().split("\n");
  return lines[0].startsWith("Traceback") ? lines[lines.length - 1] : lines[0];
}

export function pretty(value) {
  return JSON.stringify(value, null, 2) ?? "";
}
