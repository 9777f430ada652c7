// What an operator can do to lanes: drain, change, pause and resume.

import { get, patch, path, post, Problem } from "./api.js";
import { ask, notify } from "./dialog.js";
import { laneChanged, me } from "./state.js";

const REASON = { name: "reason", label: "Reason", placeholder: "optional, shown to everybody who looks" };

export async function drain(name) {
  const said = await ask({
    title: `Drain lane ${name}?`,
    text: "What runs may end; nothing more is claimed from it until it is resumed. Enqueueing goes on.",
    fields: [REASON],
    confirm: "Drain",
  });
  if (!said) return;
  laneChanged(await post(path`lanes/${name}/drain`, said.reason ? { reason: said.reason } : {}));
  notify(`Lane ${name} is drained.`);
}

const SETTINGS = [
  { name: "max_slots", label: "Slots", type: "number", min: 0, max: 10000, hint: "How many of its jobs may run at once; 0 is no limit." },
  { name: "max_batch", label: "Largest claim", type: "number", min: 1, max: 10000, hint: "Jobs one call may claim." },
  { name: "lease_for", label: "Lease, in seconds", type: "number", min: 0, hint: "How long a worker may stay silent before its jobs are taken away." },
  { name: "max_runtime", label: "Longest run, in seconds", type: "number", min: 0, hint: "0 is no limit." },
];

export async function editLane(name) {
  const lane = (await get("lanes")).lanes.find((each) => each.name === name);
  if (!lane) throw new Problem({ title: `Lane ${name} is gone` });
  const settings = lane.settings ?? {};
  const before = { ...settings, max_slots: lane.max_slots ?? 0 };
  const said = await ask({
    title: `Settings of lane ${name}`,
    text: "They count from the next claim on. What is left empty stays as it is.",
    fields: [
      ...SETTINGS.map((field) => ({ ...field, value: before[field.name] ?? "" })),
      { name: "enabled", type: "checkbox", label: "Enabled", value: lane.enabled, hint: "A disabled lane is not claimed." },
      REASON,
    ],
    confirm: "Save",
  });
  if (!said) return;
  const change = {};
  for (const { name: key } of SETTINGS) {
    const value = said[key];
    if (value !== null && String(value) !== String(before[key] ?? "")) change[key] = value;
  }
  if (said.enabled !== lane.enabled) change.enabled = said.enabled;
  if (Object.keys(change).length === 0) return;
  if (said.reason) change.reason = said.reason;
  laneChanged(await patch(path`lanes/${name}`, change));
  notify(`Lane ${name} has its new settings.`);
}

export async function pauseAll() {
  const said = await ask({
    title: "Pause everything?",
    text: "No lane is claimed from until this holder resumes. What runs goes on; enqueueing goes on.",
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

export async function resumeHold(hold) {
  await post("resume", { holder: hold.holder, ...(hold.lane ? { lane: hold.lane } : {}) });
  notify(`What ${hold.holder} paused is resumed.`);
}
