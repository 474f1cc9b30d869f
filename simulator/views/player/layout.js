// The parts of the drawing on the page: bar, axis, one part a run with its rows, legend, details.

const ICONS = {
  play: '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M4 2.5v11l9-5.5z"/></svg>',
  pause: '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z"/></svg>',
};

function element(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

function button(name, label, act, text = label) {
  const made = element("button", name, text);
  made.type = "button";
  made.title = label;
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

/** Everything that stays when the runs change. */
function buildFrame(p) {
  p.bar = element("div", "bar");
  p.axis = element("div", "axis");
  p.axisCanvas = element("canvas", "");
  p.axis.append(p.axisCanvas);
  p.stages = element("div", "stages");
  p.stages.tabIndex = 0;
  p.stages.setAttribute("role", "application");
  p.legend = element("ul", "legend");
  p.moment = element("p", "moment");
  p.live = element("div", "unseen");
  p.live.setAttribute("aria-live", "polite");
  p.tip = element("div", "tip");
  p.tip.hidden = true;
  p.keys = element("div", "keys");
  p.keys.hidden = true;
  p.top = element("div", "top", p.bar, p.axis);
  p.root.append(p.top, p.stages, p.moment, p.legend, p.live, p.tip, p.keys);
}

function buildBar(p) {
  const { words } = p.model;
  p.playButton = button("play", words.play, () => p.toggle(), "");
  p.clock = element("output", "clock");
  p.speed = element("select", "speed");
  p.speed.title = words.speed;
  p.speed.setAttribute("aria-label", words.speed);
  p.speed.addEventListener("change", () => p.setSpeed(p.speed.selectedIndex));
  const many = p.model.panels.some((panel) => panel.devices > p.model.look.shown.length);
  p.all = many ? button("all", words.all_devices, () => p.openAll()) : null;
  p.bar.replaceChildren(
    p.playButton, p.clock, p.speed, element("span", "grow"), ...(p.all ? [p.all] : []),
    element("span", "zoom", button("", words.zoom_out, () => p.zoom(2), "−"), button("fit", words.fit, () => p.fit()),
      button("", words.zoom_in, () => p.zoom(0.5), "+")),
    button("help", words.keys, () => p.showKeys(p.keys.hidden), "?"),
  );
  p.stages.setAttribute("aria-label", words.picture);
  const lines = words.key_list.split("\n").map((line) => line.split("|"));
  p.keys.replaceChildren(
    element("dl", "", ...lines.flatMap(([key, text]) => [element("dt", "", key), element("dd", "", text)])));
}

/** One part a run: header, names at the left, two canvases. */
function buildParts(p) {
  const { model } = p;
  p.parts = [];
  let group = null, holder = null;
  p.stages.replaceChildren();
  for (const panel of model.panels) {
    if (!holder || panel.group !== group) {
      group = panel.group;
      holder = element("section", "group");
      if (group) holder.append(element("h3", "", group));
      p.stages.append(holder);
    }
    const part = {
      panel, activity: element("span", "activity"), result: element("span", "result", panel.result),
      factor: element("b", "factor", panel.factor), names: element("div", "names"), stage: element("div", "stage"),
      base: element("canvas", "base"), over: element("canvas", "over"), rows: [], height: 0,
    };
    const notes = [panel.mark, panel.unfinished.length ? fill(p.model.words.unfinished, { what: panel.unfinished.join(p.model.words.comma) }) : ""];
    const header = element("header", "", element("h4", "", panel.title), ...notes.filter(Boolean).map((note) => element("small", "mark", note)), part.activity, part.result, part.factor);
    part.stage.append(part.base, part.over);
    part.element = element("section", "run", header, element("div", "field", part.names, part.stage));
    part.element.dataset.key = panel.key;
    holder.append(part.element);
    p.parts.push(part);
  }
}

/** Rows of a run from top to bottom, in CSS pixels. */
function layRows(p, part) {
  const { panel } = part;
  const { look } = p.model;
  const rows = [];
  let y = 4;
  const place = (row, height, after) => (rows.push({ ...row, top: y, height }), (y += height + after));
  const lanesOf = (device) => panel.lanes.filter((lane) => lane.device === device && look.roles.includes(lane.role) && lane.count);
  for (const lane of lanesOf(-1)) place({ lane, first: true }, LANE_HEIGHT.python, 6);
  let hidden = [];
  const close = () => {
    if (hidden.length && look.memory) place({ devices: hidden }, 20, 6);
    hidden = [];
  };
  for (let device = 0; device < panel.devices; device++) {
    if (!p.open.has(device)) {
      hidden.push(device);
      continue;
    }
    close();
    const lanes = lanesOf(device);
    lanes.forEach((lane, n) => place({ lane, device, first: n === 0 }, LANE_HEIGHT[lane.role], n === lanes.length - 1 ? 8 : 2));
  }
  close();
  if (look.memory && panel.memory.length) {
    y += 2;
    for (let device = 0; device < panel.devices; device++) {
      if (!p.open.has(device)) continue;
      place({ memory: device, device, first: true }, device ? MEMORY_HEIGHT.other : MEMORY_HEIGHT.first, 6);
    }
  }
  part.rows = rows;
  part.height = y;
  part.names.style.height = part.stage.style.height = `${y}px`;
  part.names.replaceChildren(...rows.map((row) => rowName(p, part, row)));
}

function rowName(p, part, row) {
  const { words } = p.model;
  let made;
  if (row.devices) {
    const [from, to] = [row.devices[0], row.devices[row.devices.length - 1]];
    const text = fill(from === to ? words.hidden_one : words.hidden_many, { from, to });
    made = button("more", text, () => p.openDevices(row.devices), `+ ${text}`);
  } else {
    const device = !row.first ? "" : row.device === undefined ? words.process : deviceName(p.model, row.device);
    const role = row.memory === undefined ? words[`lane_${row.lane.role}`] : words.memory;
    made = element("div", "name", element("b", "", device), element("span", "", role));
    if (row.memory !== undefined) {
      const { peak, allocated } = part.panel.memory[row.memory], limit = part.panel.limits[row.memory];
      made.title = fill(limit ? words.peak_of : words.peak, { allocated: bytesText(allocated), peak: bytesText(peak), limit: bytesText(limit) });
      made.append(element("small", "", bytesText(allocated)));
    }
  }
  made.style.top = `${row.top}px`;
  made.style.height = `${row.height}px`;
  return made;
}

/** The kinds that are in the picture, and what the hatch and the line mean. */
function buildLegend(p) {
  const { model, theme } = p;
  const present = new Set();
  for (const panel of model.panels) {
    for (const lane of panel.lanes) if (model.look.roles.includes(lane.role)) for (const entry of lane.what) present.add(model.what.kind[entry]);
  }
  const swatch = (text, style) => {
    const mark = element("i", "");
    Object.assign(mark.style, style);
    return element("li", "", mark, text);
  };
  p.legend.replaceChildren(
    ...model.palette.order.filter((kind) => present.has(kind)).map((kind) => swatch(theme.kinds[kind].name, { background: theme.kinds[kind].fill })),
    swatch(model.words.waits, { background: `repeating-linear-gradient(135deg, ${theme.waiting} 0 1.5px, ${theme.idle} 1.5px 4px)` }),
    swatch(model.words.path_line, { borderBottom: `2px solid ${theme.text}`, borderRadius: 0, height: "6px" }),
    ...(model.panels.some((panel) => panel.alone) ? [swatch(model.words.alone, { background: `repeating-linear-gradient(${theme.text} 0 3px, transparent 3px 5px)`, borderRadius: 0, width: "2px" })] : []),
  );
}

/** Details of what is under the pointer or chosen: {title, fill, rows, note}. */
function detailsOf(p, at) {
  const { model, theme } = p;
  const { panel } = at.part;
  if (at.row?.memory !== undefined) {
    const title = `${deviceName(model, at.row.memory)} ${model.words.memory}`;
    return { title, where: durationText(Math.max(0, at.t)), rows: memoryRows(model, panel, at.row.memory, at.t) };
  }
  const { lane } = at.row ?? {};
  if (!lane) return null;
  if (at.i >= 0) {
    const kind = model.what.kind[lane.what[at.i]];
    return {
      title: spanName(model, lane, at.i), fill: theme.kinds[kind].fill, kind: theme.kinds[kind].name,
      where: laneName(model, lane), rows: spanRows(model, panel, lane, at.i),
      note: at.many > 1 ? fill(model.words.zoom_more, { count: at.many }) : "",
    };
  }
  if (at.t < 0 || at.t > panel.end) return null;
  const next = lastAtOrBefore(lane.start, at.t) + 1;
  const from = next > 0 ? lane.end[next - 1] : 0, to = next < lane.count ? lane.start[next] : panel.end;
  const what = next < lane.count ? waitsFor(model, panel, lane, next) : "";
  return {
    title: what ? fill(model.words.waits_for, { what }) : model.words.waits, where: laneName(model, lane),
    rows: [[model.words.begins, durationText(from)], [model.words.lasts, durationText(to - from)],
      ...(next < lane.count ? [[model.words.until, spanName(model, lane, next)]] : [])],
  };
}

function showTip(p, details, x, y) {
  p.tip.hidden = !details;
  if (!details) return;
  const head = element("div", "head");
  if (details.fill) {
    const mark = element("i", "");
    mark.style.background = details.fill;
    head.append(mark);
  }
  head.append(element("b", "", details.title));
  const where = [details.kind, details.where].filter(Boolean).join(" · ");
  const rows = details.rows.flatMap(([label, text, tag]) => [element("dt", "", label), element("dd", "", tag ? element(tag, "", text) : text)]);
  p.tip.replaceChildren(head, element("div", "where", where), element("dl", "", ...rows));
  if (details.note) p.tip.append(element("div", "note", details.note));
  const box = p.root.getBoundingClientRect();
  const width = p.tip.offsetWidth, height = p.tip.offsetHeight;
  const left = x + 16 + width > box.width ? Math.max(0, x - width - 16) : x + 16;
  const below = box.top + y + 20 + height < window.innerHeight;
  p.tip.style.left = `${Math.max(0, Math.min(box.width - width, left))}px`;
  p.tip.style.top = `${below ? y + 20 : Math.max(0, y - height - 12)}px`;
}
