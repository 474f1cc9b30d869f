// What is pointed at and what is chosen: a span, a gap or a moment of memory, by pointer or by arrow keys.

function bindChoice(p, { overlay, say, center }) {
  const place = (at) => {
    const box = p.root.getBoundingClientRect(), stage = at.part.over.getBoundingClientRect();
    const x = stage.left - box.left + Math.max(0, Math.min(p.view.width, toX(p.view, at.t, 1)));
    return [x, stage.top - box.top + at.row.top + at.row.height];
  };

  const withSpan = (at) => {
    if (!at?.row?.lane) return at;
    const found = pickSpan(p, at.row.lane, at.t);
    return { ...at, ...found };
  };

  p.setHover = (at) => {
    if (p.playing || (!at && !p.hover)) return;
    p.hover = at ? withSpan(at) : null;
    const shown = p.hover?.row ? p.hover : p.selected;
    showTip(p, shown && detailsOf(p, shown), ...(shown?.row ? place(shown) : [0, 0]));
    overlay();
  };

  p.choose = (at) => {
    const found = withSpan(at);
    p.hover = null;
    p.seek(at.t);
    select(found?.row ? found : null);
  };

  function select(at) {
    p.selected = at;
    const details = at && detailsOf(p, at);
    showTip(p, details, ...(at?.row ? place(at) : [0, 0]));
    overlay();
    if (details) say([details.title, details.where, ...details.rows.map(([label, text]) => `${label} ${text}`)].join(", "));
  }

  const lanesShown = () => p.parts.flatMap((part) => part.rows.filter((row) => row.lane).map((row) => ({ part, row })));

  /** Where the arrow keys begin: the first lane that is full of work, at the cursor. */
  function start() {
    const lanes = lanesShown();
    const first = lanes.find(({ row }) => row.lane.role === "python") ?? lanes.find(({ row }) => row.lane.role === "compute") ?? lanes[0];
    return first && at(first, Math.max(0, nearestSpan(first.row.lane, p.time ?? 0)));
  }
  const at = ({ part, row }, i) => ({ part, row, i, many: 1, t: row.lane.start[i] });

  function go(next) {
    if (!next) return;
    p.seek(next.t);
    const { t0, t1 } = p.view;
    const end = next.row.lane.end[next.i];
    if (end < t0 || next.t > t1) center((next.t + end) / 2);
    select(next);
  }

  p.step = (by) => {
    const now = p.selected?.row?.lane && p.selected.i >= 0 ? p.selected : null;
    if (!now) return go(start());
    const i = now.i + by;
    return i >= 0 && i < now.row.lane.count ? go(at(now, i)) : undefined;
  };
  p.changeLane = (by) => {
    const lanes = lanesShown();
    const now = p.selected?.row?.lane ? lanes.findIndex(({ row, part }) => row === p.selected.row && part === p.selected.part) : -1;
    if (now < 0) return go(start());
    const next = lanes[Math.max(0, Math.min(lanes.length - 1, now + by))];
    return go(at(next, nearestSpan(next.row.lane, p.time ?? 0)));
  };
  p.followCause = () => {
    const now = p.selected;
    const cause = now?.row?.lane && now.i >= 0 ? causeOf(now.part.panel, now.row.lane, now.i) : null;
    if (!cause) return;
    if (cause.lane.device >= 0) p.openDevices([cause.lane.device]);
    const row = now.part.rows.find((candidate) => candidate.lane === cause.lane);
    if (row) go(at({ part: now.part, row }, cause.i));
  };
  p.zoomToSelected = () => {
    const now = p.selected;
    if (!now?.row?.lane || !(now.i >= 0)) return;
    const { start: starts, end: ends } = now.row.lane;
    const length = Math.max(50, ends[now.i] - starts[now.i]);
    p.setView(starts[now.i] - length * 2, ends[now.i] + length * 2);
    select(now);
  };
  /** For tests and captions: what a device does at a time, as plain values. */
  p.activity = (panel, device, t) => {
    const { kind, waits, over } = activityAt(p.model, p.model.panels[panel], device, t);
    return { ...(kind === undefined ? {} : { kind }), ...(waits === undefined ? {} : { waits }), over: Boolean(over) };
  };
  p.showKeys = (shown) => {
    p.keys.hidden = !shown;
  };
  p.escape = () => {
    p.keys.hidden = true;
    p.hover = null;
    select(null);
    p.time = p.playing ? p.time : null;
    p.veiled = p.playing;
    overlay();
  };
}
