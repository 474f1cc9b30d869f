// Memory of one device over time: a stack by category, and the line of what the card holds.

const MEMORY_HEIGHT = { first: 72, other: 26 };

/** The scale of all memory rows of the picture: the fullest card, and the limits that are near. */
function memoryScale(model) {
  let peak = 1;
  for (const panel of model.panels) for (const device of panel.memory) peak = Math.max(peak, device.peak);
  let most = peak;
  for (const panel of model.panels) {
    for (const limit of panel.limits) if (limit && limit < 2.2 * peak) most = Math.max(most, limit * 1.04);
  }
  return most;
}

function paintMemory(context, model, panel, device, view, top, height, theme, most) {
  const { ratio } = theme;
  const memory = panel.memory[device];
  const y = Math.round(top * ratio), h = Math.round(height * ratio);
  const edge = view.width * ratio;
  const right = Math.min(edge, toX(view, panel.end, ratio));
  context.fillStyle = theme.line;
  context.globalAlpha = 0.35;
  context.fillRect(0, y, Math.max(0, right), h);
  context.globalAlpha = 1;
  if (!memory || !memory.times.length) return;
  const thickest = new Map();
  const last = model.categories.length - 1;
  const draw = (x0, x1, held) => {
    let base = y + h;
    for (let n = 0; n <= last; n++) {
      const k = n ? n - 1 : last; // the CUDA context lies at the bottom
      if (!held[k]) continue;
      const size = (held[k] / most) * h;
      context.fillStyle = k === last ? hatchOf(theme, context) : theme.categories[k].fill;
      context.fillRect(x0, base - size, x1 - x0, size);
      const worth = size * (1 + 0.15 * Math.log2(x1 - x0 + 1)), best = thickest.get(k);
      if (size >= 12 * ratio && (!best || worth > best.worth)) thickest.set(k, { worth, y: base - size / 2, x: (x0 + x1) / 2 });
      base -= size;
    }
  };
  let column = -1, fullest = -1;
  const flush = () => {
    if (column >= 0) draw(column, column + 1, memory.held[fullest]);
    column = -1;
  };
  for (let i = Math.max(0, lastAtOrBefore(memory.times, view.t0)); i < memory.times.length; i++) {
    const x0 = Math.max(0, toX(view, memory.times[i], ratio));
    if (x0 >= edge) break;
    const next = i + 1 < memory.times.length ? memory.times[i + 1] : panel.end;
    const x1 = Math.min(right, toX(view, next, ratio));
    const at = Math.floor(x0);
    if (at !== column) flush(), (column = at), (fullest = i);
    if (memory.total[i] > memory.total[fullest]) fullest = i;
    if (x1 - at > 1) flush(), draw(at + 1, Math.ceil(x1), memory.held[i]);
  }
  flush();
  if (height > 40) memoryLabels(context, thickest, right, theme);
  memoryLimit(context, model, panel, device, right, y, h, theme, most);
}

function memoryLabels(context, thickest, right, theme) {
  const { ratio } = theme;
  context.font = `${Math.round(11 * ratio)}px ${theme.font}`;
  context.textBaseline = "middle";
  for (const [k, { y, x }] of thickest) {
    const { name, fill: colour, ink } = theme.categories[k];
    const width = context.measureText(name).width;
    const left = Math.max(4 * ratio, Math.min(right - width - 4 * ratio, x - width / 2));
    context.fillStyle = colour;
    context.fillRect(left - 3 * ratio, y - 6 * ratio, width + 6 * ratio, 12 * ratio);
    context.fillStyle = ink;
    context.fillText(name, left, y);
  }
}

/** A line where the card is full, if that is near; else nothing (the row's name says how far it is). */
function memoryLimit(context, model, panel, device, right, y, h, theme, most) {
  const limit = panel.limits[device];
  if (!limit || limit > most) return;
  const { ratio } = theme;
  const at = y + h - (limit / most) * h;
  context.strokeStyle = theme.text;
  context.lineWidth = Math.max(1, 1.25 * ratio);
  context.setLineDash([2 * ratio, 2 * ratio]);
  context.beginPath();
  context.moveTo(0, at);
  context.lineTo(right, at);
  context.stroke();
  context.setLineDash([]);
  if (h < 40 * ratio) return;
  const text = fill(model.words.full_at, { bytes: bytesText(limit) });
  context.font = `${Math.round(11 * ratio)}px ${theme.font}`;
  context.textBaseline = "top";
  const width = context.measureText(text).width;
  context.fillStyle = theme.background;
  context.fillRect(4 * ratio, at + 2 * ratio, width + 6 * ratio, 13 * ratio);
  context.fillStyle = theme.text;
  context.fillText(text, 7 * ratio, at + 3 * ratio);
}

/** What a device holds at t, as [label, text] rows, the largest first. */
function memoryRows(model, panel, device, t) {
  const memory = panel.memory[device];
  const i = memory ? lastAtOrBefore(memory.times, t) : -1;
  if (i < 0) return [];
  const rows = model.palette.categories
    .map((category, k) => [category.name, memory.held[i][k]])
    .filter(([, bytes]) => bytes > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([name, bytes]) => [name, bytesText(bytes)]);
  return [[model.words.all, bytesText(memory.total[i])], ...rows];
}
