// A layered graph: who waits for whom from left to right, on a narrow screen downwards.
// Only numbers here: what is drawn, and how, is flow.js.

const HEIGHT = 68;
// Five layers fit on a desk, two names side by side on a phone.
const WIDE = { width: 184, along: 48, across: 20 };
const NARROW = { width: 150, along: 42, across: 14 };
const MOST = 40;

/**
 * Few enough to be looked at. Many names of one kind at one depth become one group, and
 * if that is not enough, all of one kind. Answers {nodes, words}: words say what was done.
 */
export function grouped(nodes, states) {
  if (nodes.length <= MOST) return { nodes: nodes.map((node) => ({ ...node, key: node.name, names: 1 })), words: "" };
  const depth = depths(nodes);
  let keyOf = (node) => `${depth.get(node.name)} ${node.kind}`;
  if (new Set(nodes.map(keyOf)).size > MOST) keyOf = (node) => node.kind;
  const groups = new Map();
  const keys = new Map(nodes.map((node) => [node.name, keyOf(node)]));
  for (const node of nodes) {
    const key = keys.get(node.name);
    const group = groups.get(key) ?? { ...node, key, name: node.kind, jobs: 0, names: 0, after: [], ...Object.fromEntries(states.map((state) => [state, 0])) };
    group.jobs += node.jobs;
    group.names += 1;
    for (const state of states) group[state] += node[state];
    group.after = [...new Set([...group.after, ...node.after.map((name) => keys.get(name)).filter(Boolean)])];
    if (group.names === 1) group.name = node.name;
    else group.name = node.kind;
    groups.set(key, group);
  }
  const all = [...groups.values()];
  const left = all.length - MOST;
  const words = `${nodes.length} names are drawn as ${all.length} groups of one kind`;
  return { nodes: all.slice(0, MOST), words: left > 0 ? `${words}; ${left} of them are left out` : words };
}

/** How far each is from the start. A name may wait for itself: several jobs have it. */
function depths(nodes, id = (node) => node.name) {
  const known = new Map(nodes.map((node) => [id(node), node]));
  const found = new Map();
  const open = new Set();
  function of(key) {
    if (found.has(key)) return found.get(key);
    if (open.has(key)) return -1;
    open.add(key);
    const above = known.get(key).after.filter((up) => up !== key && known.has(up)).map(of);
    open.delete(key);
    const depth = Math.max(-1, ...above) + 1;
    found.set(key, depth);
    return depth;
  }
  for (const node of nodes) of(id(node));
  return found;
}

/** Where each stands: {nodes: [{node, x, y, layer, place}], edges: [{from, to, path}], size, width, height}. */
export function layout(nodes, downwards) {
  const depth = depths(nodes, (node) => node.key);
  const layers = [];
  for (const node of nodes) (layers[depth.get(node.key)] ??= []).push(node);
  const gap = downwards ? NARROW : WIDE;
  const size = { width: gap.width, height: HEIGHT };
  const along = (downwards ? size.height : size.width) + gap.along;
  const across = (downwards ? size.width : size.height) + gap.across;
  const [far, broad] = [layers.length * along - gap.along, Math.max(...layers.map((layer) => layer.length)) * across - gap.across];
  const widest = Math.max(...layers.map((layer) => layer.length));
  const placed = new Map();
  layers.forEach((layer, at) => {
    // Near those it waits for: fewer lines cross.
    const pull = (node) => {
      const above = node.after.map((key) => placed.get(key)?.middle).filter((middle) => middle !== undefined);
      return above.length ? above.reduce((sum, middle) => sum + middle, 0) / above.length : layer.indexOf(node);
    };
    const order = layer.map((node) => [pull(node), node]).sort((a, b) => a[0] - b[0]);
    order.forEach(([, node], place) => {
      const middle = ((widest - layer.length) / 2 + place) * across;
      const [x, y] = downwards ? [middle, at * along] : [at * along, middle];
      placed.set(node.key, { node, x, y, layer: at, place, middle });
    });
  });
  const edges = [...placed.values()].flatMap((to) => to.node.after
    .filter((key) => placed.has(key) && key !== to.node.key)
    .map((key) => ({ from: placed.get(key), to, path: curve(placed.get(key), to, size, downwards) })));
  return { nodes: [...placed.values()], edges, size, width: downwards ? broad : far, height: downwards ? far : broad };
}

function curve(from, to, { width, height }, downwards) {
  if (downwards) {
    const [x1, y1] = [from.x + width / 2, from.y + height];
    const [x2, y2] = [to.x + width / 2, to.y - 6];
    const bend = Math.max(16, (y2 - y1) / 2);
    return `M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  }
  const [x1, y1] = [from.x + width, from.y + height / 2];
  const [x2, y2] = [to.x - 6, to.y + height / 2];
  const bend = Math.max(20, (x2 - x1) / 2);
  return `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
