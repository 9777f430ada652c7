// What an operator can do to lanes: drain, change, pause and resume.

import { get, patch, path, post, Problem } from "./api.js";
import { ask, notify } from "./dialog.js";
import { interval } from "./format.js";
import { laneChanged, me } from "./state.js";

const REASON = { name: "reason", label: "Reason", placeholder: "optional, shown on this page and by why" };

export async function drain(name) {
  const said = await ask({
    title: `Drain lane ${name}?`,
    text: "Running jobs finish; nothing more is claimed from it until it is resumed. Enqueueing goes on.",
    fields: [REASON],
    confirm: "Drain",
  });
  if (!said) return;
  laneChanged(await post(path`lanes/${name}/drain`, said.reason ? { reason: said.reason } : {}));
  notify(`Lane ${name} is drained.`);
}

const COUNTS = [
  { name: "max_slots", label: "Slots", type: "number", min: 0, max: 10000, hint: "How many of its jobs may run at once; 0 is no limit." },
  { name: "group_slots", label: "Slots of a group", type: "number", min: 0, max: 10000, hint: "How many jobs with one group key may run at once; 0 is no limit." },
  { name: "rate", label: "Rate", type: "number", min: 0, max: 1000000, hint: "How many of its jobs may start in any window of its period; 0 is no limit." },
  { name: "group_rate", label: "Rate of a group", type: "number", min: 0, max: 1000000, hint: "The same for the jobs with one group key." },
  { name: "max_batch", label: "Largest claim", type: "number", min: 1, max: 10000, hint: "Jobs one call may claim." },
];
const DURATIONS = [
  { name: "rate_per", label: "Period of the rate", hint: "100 ms to 1 day." },
  { name: "group_rate_per", label: "Period of the rate of a group", hint: "100 ms to 1 day." },
  { name: "lease_for", label: "Lease", hint: "How long a worker may stay silent before its jobs are taken away." },
  { name: "max_runtime", label: "Longest run", hint: "0 is no limit." },
  { name: "poll_interval", label: "Poll interval", hint: "How often a worker that does not listen looks for jobs." },
  { name: "cancel_grace", label: "Grace of a cancel", hint: "How long a run may take to stop before it is ended." },
  { name: "retain_completed", label: "Keep completed jobs" },
  { name: "retain_cancelled", label: "Keep cancelled jobs" },
  { name: "retain_dead", label: "Keep dead jobs" },
];

/** Every setting, with its default where it was not set. */
export async function editLane(name) {
  const { lanes, defaults } = await get("lanes");
  const lane = lanes.find((each) => each.name === name);
  if (!lane) throw new Problem({ title: `Lane ${name} is gone` });
  const before = Object.fromEntries([
    ...COUNTS.map(({ name: key }) => [key, lane.settings[key] ?? ""]),
    ...DURATIONS.map(({ name: key }) => [key, interval(lane.settings[key])]),
  ]);
  const usual = (key) => (key in defaults ? interval(defaults[key]) : "no limit");
  await ask({
    title: `Settings of lane ${name}`,
    text: "They count from the next claim on. What is left empty stays as it is; durations are words like 30 s, 15 min, 48 h or 7 days.",
    wide: true,
    fields: [
      ...COUNTS.map((field) => ({ ...field, value: before[field.name], placeholder: `default: ${defaults[field.name] ?? "no limit"}` })),
      ...DURATIONS.map((field) => ({ ...field, value: before[field.name], placeholder: `default: ${usual(field.name)}` })),
      { name: "fair", type: "checkbox", label: "Fair", value: lane.settings.fair ?? false, hint: "Groups take turns, however many jobs one of them has." },
      { name: "in_order", type: "checkbox", label: "In order", value: lane.settings.in_order ?? false, hint: "A group runs one job at a time and waits for one that is retried." },
      { name: "enabled", type: "checkbox", label: "Enabled", value: lane.enabled, hint: "A disabled lane is not claimed." },
      REASON,
    ],
    confirm: "Save",
    async work(said) {
      const change = {};
      for (const [key, was] of Object.entries(before)) {
        if (said[key] !== null && said[key] !== "" && String(said[key]) !== String(was)) change[key] = said[key];
      }
      if (said.enabled !== lane.enabled) change.enabled = said.enabled;
      for (const key of ["fair", "in_order"]) {
        if (said[key] !== (lane.settings[key] ?? false)) change[key] = said[key];
      }
      if (Object.keys(change).length === 0) return;
      if (said.reason) change.reason = said.reason;
      laneChanged(await patch(path`lanes/${name}`, change));
      notify(`Lane ${name} has its new settings.`);
    },
  });
}

export async function pauseAll() {
  const said = await ask({
    title: "Pause everything?",
    text: "Nothing is claimed from any lane until this holder resumes. Running jobs and enqueueing go on.",
    fields: [
      { name: "holder", label: "Holder", required: true, value: me.user, hint: "Pauses nest: each holder resumes its own." },
      REASON,
    ],
    confirm: "Pause all lanes",
    danger: true,
  });
  if (!said) return;
  await post("pause", { holder: said.holder, ...(said.reason ? { reason: said.reason } : {}) });
  notify("Everything is paused.");
}

export async function resumeLane(name) {
  laneChanged(await post(path`lanes/${name}/resume`));
  notify(`Lane ${name} is resumed.`);
}

export async function resumeHold(hold) {
  await post("resume", { holder: hold.holder, ...(hold.lane ? { lane: hold.lane } : {}) });
  notify(`What ${hold.holder} paused is resumed.`);
}
