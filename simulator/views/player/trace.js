// The runs as the drawing reads them: decoding, looking things up, numbers as words. Nothing here touches the page.

const TIME_UNITS = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]];
const BYTE_UNITS = [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]];

function threeDigits(value) {
  if (value === 0) return "0";
  const shown = Number(value.toExponential(2));
  const digits = Math.floor(Math.log10(Math.abs(shown)));
  return shown.toFixed(Math.max(0, 2 - digits));
}

function inUnit(value, units) {
  const rounded = Math.abs(Number(value.toExponential(2)));
  let best = units[0];
  for (const unit of units) if (unit[0] <= rounded * (1 + 1e-12)) best = unit;
  return `${threeDigits(value / best[0])} ${best[1]}`;
}

const durationText = (ns) => (ns === 0 ? "0 s" : inUnit(ns, TIME_UNITS));
const bytesText = (n) => (Math.abs(n) < 1000 ? `${n} B` : inUnit(n, BYTE_UNITS));
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "");

/** Columns of gaps and lengths become start and end of every span; memory changes become steps. */
function decodeTimeline(raw) {
  const panels = raw.panels.map((panel) => {
    let base = 0;
    const lanes = panel.lanes.map((lane, index) => {
      const count = lane.d.length;
      const start = new Float64Array(count), end = new Float64Array(count);
      for (let i = 0, now = 0; i < count; i++) {
        start[i] = now + lane.s[i];
        now = end[i] = start[i] + lane.d[i];
      }
      base += count;
      return { ...lane, index, count, start, end, what: lane.w, cause: lane.c, base: base - count };
    });
    const memory = panel.memory.map((changes, device) => decodeMemory(changes, raw.categories, device));
    const decoded = { ...panel, lanes, memory, onPath: null };
    decoded.onPath = criticalPath(decoded, raw);
    return decoded;
  });
  return { ...raw, panels, end: Math.max(1, ...panels.map((panel) => panel.end)) };
}

/** `peak` is all that lies on the card, `allocated` is without the context: what torch counts. */
function decodeMemory(changes, categories, device) {
  const times = [], held = [], total = [];
  const now = new Float64Array(categories.length), context = categories.indexOf("context");
  let time = 0, allocated = 0;
  for (let i = 0; i < changes.t.length; i++) {
    time += changes.t[i];
    now[changes.k[i]] += changes.b[i];
    if (times.length && times[times.length - 1] === time) held.pop(), total.pop();
    else times.push(time);
    held.push(now.slice());
    total.push(now.reduce((sum, bytes) => sum + bytes, 0));
  }
  let peak = 0;
  for (let i = 0; i < total.length; i++) {
    peak = Math.max(peak, total[i]);
    allocated = Math.max(allocated, total[i] - held[i][context]);
  }
  return { device, times, held, total, peak, allocated };
}

/** Index of the last value that is not above t; -1 if there is none. */
function lastAtOrBefore(values, t) {
  let low = -1, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= t) low = middle;
    else high = middle - 1;
  }
  return low;
}

function spanAt(lane, t) {
  const i = lastAtOrBefore(lane.start, t);
  return i >= 0 && t < lane.end[i] ? i : -1;
}

function nearestSpan(lane, t) {
  const i = Math.max(0, lastAtOrBefore(lane.start, t));
  if (t < lane.end[i] || i + 1 >= lane.count) return i;
  return t - lane.end[i] <= lane.start[i + 1] - t ? i : i + 1;
}

/** The lane and index of a span's cause, or null. */
function causeOf(panel, lane, i) {
  if (!lane.cause[i]) return null;
  const number = lane.base + i - lane.cause[i];
  const owner = panel.lanes.find((other) => number >= other.base && number < other.base + other.count);
  return owner ? { lane: owner, i: number - owner.base } : null;
}

/** One flag a span, for each lane: whether the step waits for it. From the end back along causes. */
function criticalPath(panel, raw) {
  const flags = panel.lanes.map((lane) => new Uint8Array(lane.count));
  const optimizer = raw.kinds.indexOf("optimizer");
  let last = null;
  for (const lane of panel.lanes) {
    const i = lane.count - 1;
    const rank = i < 0 ? -1 : lane.end[i] + (raw.what.kind[lane.what[i]] === optimizer ? 0.5 : 0);
    if (i >= 0 && (!last || rank > last.rank)) last = { lane, i, rank };
  }
  for (let at = last, steps = 0; at && steps < 1e6; steps++) {
    if (flags[at.lane.index][at.i]) break;
    flags[at.lane.index][at.i] = 1;
    at = causeOf(panel, at.lane, at.i);
  }
  return flags;
}

/** What the device's compute does at t: {kind} of work, or {waits} for what, or {over}. */
function activityAt(model, panel, device, t) {
  if (t >= panel.end) return { over: true };
  const lanes = panel.lanes.filter((lane) => lane.device === device && lane.role === "compute");
  let next = null;
  for (const lane of lanes) {
    const i = lastAtOrBefore(lane.start, t);
    if (i >= 0 && t < lane.end[i]) return { kind: model.what.kind[lane.what[i]], lane, i };
    if (i + 1 < lane.count && (!next || lane.start[i + 1] < next.lane.start[next.i])) next = { lane, i: i + 1 };
  }
  return { waits: next ? waitsFor(model, panel, next.lane, next.i) : "" };
}

/** In words, what a span had to wait for. */
function waitsFor(model, panel, lane, i) {
  const cause = causeOf(panel, lane, i);
  if (!cause) return "";
  if (cause.lane.role === "python") return model.words.python_thread;
  if (cause.lane.role === "host") return model.words.host_thread;
  return model.palette.kinds[model.what.kind[cause.lane.what[cause.i]]].name;
}

function activityText(model, activity) {
  const { words } = model;
  if (activity.over) return words.over;
  if (activity.waits !== undefined) return activity.waits ? fill(words.waits_for, { what: activity.waits }) : words.waits;
  return model.palette.kinds[activity.kind].name;
}

/** One sentence for the moment: each run's first device, and what is on its way. */
function momentText(model, t) {
  const parts = model.panels.map((panel) => {
    const activity = activityAt(model, panel, 0, t);
    let text = activityText(model, activity);
    if (!activity.over) {
      const python = panel.lanes.find((lane) => lane.role === "python");
      const doing = python ? spanAt(python, t) : -1;
      if (activity.waits === model.words.python_thread && doing >= 0) {
        text = fill(model.words.which_does, { text, what: spanName(model, python, doing) });
      }
      const busy = panel.lanes.filter((lane) => lane.role === "communication" && lane.device === 0 && spanAt(lane, t) >= 0);
      if (busy.length) text += `${model.words.comma}${busy.map((lane) => spanName(model, lane, spanAt(lane, t))).join(model.words.comma)}`;
      text = fill(model.words.on_device, { device: deviceName(model, 0), text });
    }
    return `${panel.spoken}${model.words.colon}${text}`;
  });
  return `${durationText(t)}${model.words.colon}${parts.join(model.words.semicolon)}`;
}

const spanName = (model, lane, i) => model.what.name[lane.what[i]];
const deviceName = (model, device) => fill(model.words.device, { device });

function laneName(model, lane) {
  const role = lane.device < 0 ? `${model.words.process}, ${model.words.lane_python}` : model.words[`lane_${lane.role}`];
  return lane.device < 0 ? role : `${deviceName(model, lane.device)} ${role}`;
}

/** All that is known of a span, as [label, text] rows. */
function spanRows(model, panel, lane, i) {
  const { what, words } = model;
  const entry = lane.what[i];
  const rows = [
    [words.begins, durationText(lane.start[i])],
    [words.lasts, durationText(lane.end[i] - lane.start[i])],
  ];
  if (what.bytes[entry] >= 0) rows.push([words.bytes, bytesText(what.bytes[entry])]);
  if (what.bucket[entry] >= 0) rows.push([words.bucket, String(what.bucket[entry])]);
  if (what.functions[what.function[entry]]) rows.push([words.torch, what.functions[what.function[entry]], "code"]);
  const cause = causeOf(panel, lane, i);
  if (cause) rows.push([words.after, `${spanName(model, cause.lane, cause.i)} (${laneName(model, cause.lane)})`]);
  if (panel.onPath[lane.index][i]) rows.push(["", words.on_path]);
  return rows;
}
