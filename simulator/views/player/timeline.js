// The timeline of several runs on one clock: zoom, play, step, details. The same text runs wherever its data comes from:
// mount(root, data) in a saved page, the default export in Streamlit.

const SPEEDS = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2];
const FILM_SECONDS = 9;
const AXIS_HEIGHT = 26;

export function mount(root, data) {
  const player = (root.player ??= create(root));
  player.show(data);
  return player;
}

export default function streamlit({ data, parentElement }) {
  const root = parentElement.querySelector(".player");
  const player = mount(root, data instanceof Uint8Array ? JSON.parse(new TextDecoder().decode(data)) : data);
  return () => player.destroy();
}

function create(root) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const p = {
    root, model: null, theme: null, view: { t0: 0, t1: 1, width: 0, hidePath: false }, parts: [], open: new Set(),
    time: null, playing: false, veiled: false, speedIndex: 4, hover: null, selected: null, frames: 0, builds: 0,
  };
  buildFrame(p);

  // ---- showing

  p.show = (raw) => {
    const known = p.model?.same === raw.same;
    const devices = p.model?.panels.map((panel) => panel.devices).join();
    p.model = decodeTimeline(raw);
    p.theme = themeOf(root, p.model);
    p.builds++;
    root.lang = p.model.language;
    root.dataset.theme = p.theme.name;
    for (const name of ["text", "muted", "line", "waiting", "idle", "background"]) root.style.setProperty(`--${name}`, p.theme[name]);
    if (!known) {
      p.playing = false;
      p.time = p.selected = p.hover = null;
      Object.assign(p.view, { t0: 0, t1: p.model.end * 1.015 });
      if (devices !== p.model.panels.map((panel) => panel.devices).join()) {
        p.open = new Set(p.model.look.shown.map((d) => (d < 0 ? Math.max(...p.model.panels.map((panel) => panel.devices)) + d : d)));
      }
    }
    buildBar(p);
    buildParts(p);
    buildLegend(p);
    fillSpeeds();
    if (known) p.selected = p.hover = null;
    lay();
    if (!known && p.model.look.autoplay && !calm.matches) p.play();
    root.dataset.v = p.model.v;
  };

  function lay() {
    for (const part of p.parts) layRows(p, part);
    if (p.selected?.row) p.selected.row = p.selected.part.rows.find((row) => row.lane && row.lane === p.selected.row.lane);
    if (p.all) p.all.textContent = everything() ? p.model.words.fewer_devices : p.model.words.all_devices;
    p.view.width = Math.max(40, p.axis.clientWidth);
    paint();
  }

  const everything = () => p.model.panels.every((panel) => [...Array(panel.devices).keys()].every((d) => p.open.has(d)));

  /** What does not move with the cursor. */
  function paint() {
    if (!p.model || p.view.width <= 40) return;
    const most = memoryScale(p.model);
    for (const part of p.parts) {
      const context = contextOf(part.base, p.view.width, part.height, p.theme.ratio);
      paintGrid(context, p.view, p.model, p.theme, part.height);
      for (const row of part.rows) {
        if (row.lane) paintLane(context, p.model, part.panel, row.lane, p.view, row.top, row.height, p.theme);
        if (row.memory !== undefined) paintMemory(context, p.model, part.panel, row.memory, p.view, row.top, row.height, p.theme, most);
      }
      paintMarks(context, part.panel, p.view, p.theme, part.height, p.model.words);
    }
    root.classList.toggle("zoomed", p.zoomed());
    overlay();
  }

  /** Cursor, what is still to come, what is pointed at. */
  function overlay() {
    const { ratio } = p.theme;
    for (const part of p.parts) {
      const context = contextOf(part.over, p.view.width, part.height, ratio);
      const h = part.height * ratio;
      if (p.veiled && p.time !== null && p.time < p.model.end) {
        const x = Math.max(0, toX(p.view, p.time, ratio));
        context.fillStyle = p.theme.background;
        context.globalAlpha = 0.86;
        context.fillRect(x, 0, p.view.width * ratio - x, h);
        context.globalAlpha = 1;
      }
      for (const at of [p.hover, p.selected]) if (at?.part === part) outline(context, at, at === p.selected);
      if (p.hover && p.hover !== p.selected) line(context, p.hover.t, h, 0.35);
      if (p.time !== null && p.time < p.model.end) line(context, p.time, h, 1);
    }
    const context = contextOf(p.axisCanvas, p.view.width, AXIS_HEIGHT, ratio);
    const shown = p.hover && !p.playing ? p.hover.t : p.time !== null && p.time < p.model.end ? p.time : null;
    const flagged = shown === null ? [0, -1] : flag(context, shown);
    paintAxis(context, p.view, p.model, p.theme, AXIS_HEIGHT, flagged);
    p.clock.textContent = `${durationText(Math.round(p.time ?? p.model.end))}`;
    for (const part of p.parts) status(part);
    p.moment.textContent = p.time === null ? p.model.words.hint : momentText(p.model, p.time);
    root.dataset.state = p.playing ? "playing" : p.time === null ? "whole" : p.time >= p.model.end ? "ended" : "paused";
  }

  function line(context, t, h, alpha) {
    const x = Math.round(toX(p.view, t, p.theme.ratio));
    context.globalAlpha = alpha;
    context.fillStyle = p.theme.text;
    context.fillRect(x, 0, Math.max(1, 1.5 * p.theme.ratio), h);
    context.globalAlpha = 1;
  }

  function outline(context, at, strong) {
    if (!(at.i >= 0) || !at.row?.lane) return;
    const { ratio } = p.theme;
    const { lane, top, height } = at.row;
    const box = (one, i) => {
      const x0 = toX(p.view, one.lane.start[i], ratio), x1 = toX(p.view, one.lane.end[i], ratio);
      return [x0, one.top * ratio, Math.max(2 * ratio, x1 - x0), one.height * ratio];
    };
    context.strokeStyle = p.theme.text;
    context.lineWidth = (strong ? 2 : 1.25) * ratio;
    context.strokeRect(...box({ lane, top, height }, at.i));
    const cause = causeOf(at.part.panel, lane, at.i);
    const from = cause && at.part.rows.find((row) => row.lane === cause.lane);
    if (!from) return;
    const [x0, y0, w, h] = box(from, cause.i);
    const x1 = toX(p.view, lane.start[at.i], ratio);
    context.setLineDash([3 * ratio, 2 * ratio]);
    context.lineWidth = 1.25 * ratio;
    context.strokeRect(x0, y0, w, h);
    context.beginPath();
    context.moveTo(x0 + w, y0 + h / 2);
    context.lineTo(x1, (top + height / 2) * ratio);
    context.stroke();
    context.setLineDash([]);
  }

  function flag(context, t) {
    const { ratio } = p.theme;
    const text = durationText(Math.round(Math.max(0, t)));
    context.font = `600 ${Math.round(12 * ratio)}px ${p.theme.font}`;
    const width = context.measureText(text).width + 10 * ratio;
    const x = Math.max(0, Math.min(p.view.width * ratio - width, toX(p.view, t, ratio) - width / 2));
    context.fillStyle = p.theme.text;
    context.fillRect(x, 2 * ratio, width, 18 * ratio);
    context.fillStyle = p.theme.background;
    context.textBaseline = "middle";
    context.fillText(text, x + 5 * ratio, 11.5 * ratio);
    return [x - 6 * ratio, x + width + 6 * ratio];
  }

  function status(part) {
    const over = p.time === null || p.time >= part.panel.end;
    part.element.classList.toggle("over", over);
    if (over) return;
    const activity = activityAt(p.model, part.panel, 0, p.time);
    const text = activityText(p.model, activity);
    if (part.activity.textContent === text) return;
    part.activity.textContent = text;
    part.activity.style.setProperty("--dot", activity.kind === undefined ? p.theme.waiting : p.theme.kinds[activity.kind].fill);
  }

  // ---- the clock

  const rate = () => (p.model.end / FILM_SECONDS) * SPEEDS[p.speedIndex];

  function fillSpeeds() {
    p.speed.replaceChildren(...SPEEDS.map((speed) => {
      const text = fill(p.model.words.rate, { time: durationText((p.model.end / FILM_SECONDS) * speed) });
      return element("option", "", text);
    }));
    p.speed.selectedIndex = p.speedIndex;
    playLabel();
  }

  function playLabel() {
    const label = p.playing ? p.model.words.pause : p.model.words.play;
    p.playButton.innerHTML = ICONS[p.playing ? "pause" : "play"];
    p.playButton.title = label;
    p.playButton.setAttribute("aria-label", label);
  }

  let before = 0, ticket = 0;
  function frame(now) {
    ticket = 0;
    if (!p.playing || !p.visible) return;
    const passed = now - before;
    if (!calm.matches || passed >= 400) {
      before = now;
      p.frames++;
      p.time = Math.min(p.model.end, p.time + (Math.min(passed, calm.matches ? 500 : 100) / 1000) * rate());
      if (p.zoomed() && p.time > p.view.t0 + 0.85 * (p.view.t1 - p.view.t0)) p.pan(0.6);
      if (p.time >= p.model.end) return p.pause();
      overlay();
    }
    ticket = requestAnimationFrame(frame);
    return undefined;
  }
  const run = () => {
    if (!ticket && p.playing && p.visible) (before = performance.now()), (ticket = requestAnimationFrame(frame));
  };

  p.play = () => {
    if (p.time === null || p.time >= p.model.end) p.time = 0;
    Object.assign(p, { playing: true, veiled: true, hover: null });
    showTip(p, null);
    playLabel();
    overlay();
    run();
  };
  p.pause = () => {
    p.playing = false;
    if (p.time !== null && p.time >= p.model.end) p.veiled = false;
    playLabel();
    overlay();
    say(momentText(p.model, p.time ?? p.model.end));
  };
  p.toggle = () => (p.playing ? p.pause() : p.play());
  p.seek = (t) => {
    p.playing = false;
    p.time = Math.max(0, Math.min(p.model.end, t));
    if (p.zoomed() && (p.time < p.view.t0 || p.time > p.view.t1)) center(p.time);
    playLabel();
    overlay();
    say(momentText(p.model, p.time));
  };
  p.setSpeed = (index) => {
    p.speedIndex = Math.max(0, Math.min(SPEEDS.length - 1, index));
    p.speed.selectedIndex = p.speedIndex;
  };
  p.faster = (by) => p.setSpeed(p.speedIndex + by);
  const say = (text) => (p.live.textContent = text);

  // ---- the view

  p.zoomed = () => p.view.t1 - p.view.t0 < p.model.end * 0.999;
  p.setView = (t0, t1) => {
    const most = p.model.end * 1.015;
    const span = Math.max(Math.min(200, most), Math.min(most, t1 - t0));
    const middle = (t0 + t1) / 2;
    p.view.t0 = Math.max(0, Math.min(most - span, middle - span / 2));
    p.view.t1 = p.view.t0 + span;
    paint();
  };
  p.zoom = (factor, at = p.time ?? (p.view.t0 + p.view.t1) / 2) => {
    const where = Math.max(p.view.t0, Math.min(p.view.t1, at));
    const span = Math.min(p.model.end * 1.015, Math.max(Math.min(200, p.model.end), (p.view.t1 - p.view.t0) * factor));
    const part = (where - p.view.t0) / (p.view.t1 - p.view.t0);
    p.setView(where - part * span, where + (1 - part) * span);
  };
  p.fit = () => p.setView(0, p.model.end * 1.015);
  p.pan = (part) => {
    const shift = part * (p.view.t1 - p.view.t0);
    p.setView(p.view.t0 + shift, p.view.t1 + shift);
  };
  const center = (t) => {
    const half = (p.view.t1 - p.view.t0) / 2;
    p.setView(t - half, t + half);
  };
  p.togglePath = () => {
    p.view.hidePath = !p.view.hidePath;
    paint();
  };
  p.openDevices = (devices) => {
    for (const device of devices) p.open.add(device);
    lay();
  };
  p.openAll = () => {
    const most = Math.max(...p.model.panels.map((panel) => panel.devices));
    if (everything()) p.open = new Set(p.model.look.shown.map((d) => (d < 0 ? most + d : d)));
    else for (let device = 0; device < most; device++) p.open.add(device);
    lay();
  };

  bindChoice(p, { overlay, say, center });
  bindPointer(p);
  bindKeys(p);
  const size = new ResizeObserver(() => p.model && p.axis.clientWidth !== p.view.width && lay());
  const seen = new IntersectionObserver(([entry]) => {
    p.visible = entry.isIntersecting;
    run();
  });
  size.observe(p.axis), seen.observe(root);
  p.destroy = () => {
    p.playing = false;
    if (ticket) cancelAnimationFrame(ticket);
    size.disconnect();
    seen.disconnect();
    root.replaceChildren();
    delete root.player;
  };
  return p;
}
