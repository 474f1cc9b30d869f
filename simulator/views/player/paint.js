// Lanes, axis and cursor on canvases, in device pixels. A view is {t0, t1, width}: nanoseconds and CSS pixels.

const LANE_HEIGHT = { python: 20, host: 12, compute: 22, communication: 16 };
const MIN_LABEL = 14;

const toX = (view, t, ratio) => ((t - view.t0) / (view.t1 - view.t0)) * view.width * ratio;

/** All spans of a lane. What is narrower than half a pixel is summed up column by column: the kind that fills most of
 *  the column gives its colour, and how much of it is busy gives the strength. */
function paintLane(context, model, panel, lane, view, top, height, theme) {
  const { ratio } = theme;
  const y = Math.round(top * ratio), h = Math.round(height * ratio);
  const right = Math.min(view.width * ratio, toX(view, panel.end, ratio));
  const left = Math.max(0, toX(view, 0, ratio));
  if (right > left) {
    context.fillStyle = lane.role === "compute" ? hatchOf(theme, context) : theme.line;
    context.globalAlpha = lane.role === "compute" ? 1 : 0.45;
    context.fillRect(left, y, right - left, h);
    context.globalAlpha = 1;
  }
  const { kind } = model.what;
  const scale = (view.width * ratio) / (view.t1 - view.t0);
  const cover = new Float64Array(model.kinds.length);
  let column = -1, filled = 0;
  const flush = () => {
    if (filled > 0) {
      let best = 0;
      for (let k = 1; k < cover.length; k++) if (cover[k] > cover[best]) best = k;
      context.fillStyle = theme.kinds[best].fill;
      context.globalAlpha = Math.min(1, 0.2 + 0.8 * filled);
      context.fillRect(column, y, 1, h);
      context.globalAlpha = 1;
    }
    cover.fill(0);
    filled = 0;
  };
  const wide = [];
  for (let i = Math.max(0, lastAtOrBefore(lane.start, view.t0)); i < lane.count && lane.start[i] < view.t1; i++) {
    let x0 = (lane.start[i] - view.t0) * scale;
    const x1 = (lane.end[i] - view.t0) * scale;
    if (x1 < 0) continue;
    if (x1 - x0 >= 0.5) {
      wide.push(i);
      continue;
    }
    while (x0 < x1) {
      const at = Math.floor(x0);
      if (at !== column) flush(), (column = at);
      const part = Math.min(x1, at + 1) - x0;
      cover[kind[lane.what[i]]] += part;
      filled += part;
      x0 = Math.min(x1, at + 1);
    }
  }
  flush();
  for (const i of wide) {
    const x0 = Math.max(-2, (lane.start[i] - view.t0) * scale);
    const x1 = Math.min(view.width * ratio + 2, (lane.end[i] - view.t0) * scale);
    context.fillStyle = theme.kinds[kind[lane.what[i]]].fill;
    context.fillRect(x0, y, x1 - x0 > 5 * ratio ? x1 - x0 - ratio * 0.7 : x1 - x0, h);
  }
  if (height >= MIN_LABEL) paintLabels(context, model, panel, lane, view, scale, y, h, theme);
  paintPath(context, panel, lane, scale, view, y, h, theme);
}

/** A line under what the step waits for. */
function paintPath(context, panel, lane, scale, view, y, h, theme) {
  if (view.hidePath) return;
  const flags = panel.onPath[lane.index];
  const thick = Math.max(1, Math.round(2 * theme.ratio));
  context.fillStyle = theme.text;
  let from = null, to = 0;
  const flush = () => from !== null && context.fillRect(from, y + h - thick, Math.max(theme.ratio / 2, to - from), thick);
  for (let i = Math.max(0, lastAtOrBefore(lane.start, view.t0)); i < lane.count && lane.start[i] < view.t1; i++) {
    if (!flags[i]) continue;
    const x0 = Math.max(0, (lane.start[i] - view.t0) * scale), x1 = (lane.end[i] - view.t0) * scale;
    if (from !== null && x0 - to < 1) to = Math.max(to, x1);
    else flush(), ([from, to] = [x0, x1]);
  }
  flush();
}

/** The word that stands for a span in a run of like ones. */
function runWord(model, entry) {
  const kind = model.what.kind[entry];
  if (model.kinds[kind] !== "host") return model.palette.kinds[kind].name;
  const torch = model.what.functions[model.what.function[entry]];
  return model.words[`host ${torch}`] ?? (torch || model.palette.kinds[kind].name);
}

/** Names of spans that are wide enough, else the kind's name over a run of like spans, else what is waited for. */
function paintLabels(context, model, panel, lane, view, scale, y, h, theme) {
  const { ratio } = theme;
  context.font = `${Math.round(Math.min(12, (h / ratio) * 0.62) * ratio)}px ${theme.font}`;
  context.textBaseline = "middle";
  const edge = view.width * ratio;
  let run = null, before = Math.max(0, toX(view, 0, ratio));
  const write = (x0, x1, text, kind, many) => {
    const a = Math.max(0, x0), b = Math.min(edge, x1);
    const room = b - a - 8 * ratio;
    if (room < 14 * ratio) return;
    const width = context.measureText(text).width;
    if (width > room) return;
    const x = a + (b - a - width) / 2;
    if (many) {
      context.fillStyle = theme.kinds[kind].fill;
      context.fillRect(x - 4 * ratio, y, width + 8 * ratio, h);
    }
    context.fillStyle = theme.kinds[kind].ink;
    context.fillText(text, x, y + h / 2);
  };
  const close = () => {
    if (run) write(run.x0, run.x1, run.many ? run.word : run.name, run.kind, run.many);
    run = null;
  };
  let i = Math.max(0, lastAtOrBefore(lane.start, view.t0));
  for (; i < lane.count && lane.start[i] < view.t1; i++) {
    const x0 = (lane.start[i] - view.t0) * scale, x1 = (lane.end[i] - view.t0) * scale;
    if (lane.role === "compute" && x0 - Math.max(0, before) > 60 * ratio) {
      close();
      paintWait(context, model, panel, lane, i, Math.max(0, before), Math.min(edge, x0), y, h, theme);
    }
    before = x1;
    const entry = lane.what[i], word = runWord(model, entry), kind = model.what.kind[entry];
    if (x1 - x0 > 48 * ratio) {
      close();
      const name = model.what.name[entry];
      const fits = context.measureText(name).width < Math.min(edge, x1) - Math.max(0, x0) - 8 * ratio;
      write(x0, x1, fits ? name : word, kind, false);
    } else if (run && run.word === word && x0 - run.x1 < 8 * ratio) {
      run.x1 = x1;
      run.many = true;
    } else {
      close();
      run = { x0, x1, word, kind, many: false, name: model.what.name[entry] };
    }
  }
  close();
  if (lane.role === "compute" && i < lane.count && edge - before > 60 * ratio) {
    paintWait(context, model, panel, lane, i, Math.max(0, before), edge, y, h, theme);
  }
}

function paintWait(context, model, panel, lane, i, x0, x1, y, h, theme) {
  const what = waitsFor(model, panel, lane, i);
  const text = what ? fill(model.words.waits_for, { what }) : model.words.waits;
  const width = context.measureText(text).width;
  if (width + 12 * theme.ratio > x1 - x0) return;
  const x = x0 + (x1 - x0 - width) / 2;
  context.fillStyle = theme.background;
  context.globalAlpha = 0.82;
  context.fillRect(x - 4 * theme.ratio, y + 2 * theme.ratio, width + 8 * theme.ratio, h - 4 * theme.ratio);
  context.globalAlpha = 1;
  context.fillStyle = theme.muted;
  context.fillText(text, x, y + h / 2);
}

/** Ticks at round numbers, all in the one unit of the whole picture. */
function ticksOf(view, end, least = 70) {
  const [unit, name] = [...TIME_UNITS].reverse().find(([ns]) => ns <= end) ?? TIME_UNITS[0];
  const wanted = ((view.t1 - view.t0) / unit) * (least / view.width);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted) ?? 10 * power;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let n = Math.ceil(view.t0 / unit / step); n * step * unit <= view.t1; n++) {
    ticks.push({ t: n * step * unit, text: `${(n * step).toFixed(digits)}` });
  }
  return { ticks, unit: name };
}

/** Labels that the cursor's own would cover, `avoid` pixels from and to, are left out. */
function paintAxis(context, view, model, theme, height, avoid = [0, -1]) {
  const { ratio } = theme;
  const { ticks, unit } = ticksOf(view, model.end);
  context.font = `${Math.round(12 * ratio)}px ${theme.font}`;
  context.textBaseline = "alphabetic";
  context.fillStyle = theme.muted;
  const edge = view.width * ratio;
  ticks.forEach(({ t, text }, index) => {
    const x = toX(view, t, ratio);
    const label = index === ticks.length - 1 || ticks.length < 3 ? `${text} ${unit}` : text;
    const width = context.measureText(label).width;
    const left = Math.max(0, Math.min(edge - width, x - width / 2));
    if (left > avoid[1] || left + width < avoid[0]) context.fillText(label, left, (height - 8) * ratio);
    context.fillRect(Math.round(x), (height - 5) * ratio, Math.max(1, ratio * 0.75), 5 * ratio);
  });
}

function paintGrid(context, view, model, theme, height) {
  context.fillStyle = theme.line;
  context.globalAlpha = 0.7;
  for (const { t } of ticksOf(view, model.end).ticks) {
    context.fillRect(Math.round(toX(view, t, theme.ratio)), 0, Math.max(1, theme.ratio * 0.6), height * theme.ratio);
  }
  context.globalAlpha = 1;
}

/** One device's own step and the end of the run, as marks across a panel. */
function paintMarks(context, panel, view, theme, height, words) {
  const { ratio } = theme;
  const h = height * ratio, edge = view.width * ratio;
  const mark = (t, dashed, text) => {
    const x = Math.round(toX(view, t, ratio));
    if (x < 0 || x > edge) return;
    context.strokeStyle = theme.text;
    context.globalAlpha = dashed ? 0.75 : 0.9;
    context.lineWidth = Math.max(1, 1.25 * ratio);
    context.setLineDash(dashed ? [4 * ratio, 3 * ratio] : []);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, h);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
    context.font = `${Math.round(12 * ratio)}px ${theme.font}`;
    context.textBaseline = "middle";
    const width = context.measureText(text).width;
    if (!dashed && x + width + 10 * ratio < edge) {
      context.fillStyle = theme.text;
      context.fillText(text, x + 6 * ratio, h / 2);
    }
  };
  if (panel.alone) mark(panel.alone, true, words.alone);
  mark(panel.end, false, durationText(panel.end));
}
