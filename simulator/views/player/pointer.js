// Hands on the drawing: pointer, touch, wheel and keys. `p` is the player that timeline.js makes.

/** What lies under a point of a panel: {part, row, t}. */
function hitAt(p, part, clientX, clientY) {
  const box = part.over.getBoundingClientRect();
  const t = p.view.t0 + ((clientX - box.left) / p.view.width) * (p.view.t1 - p.view.t0);
  const y = clientY - box.top;
  const far = (row) => Math.max(row.top - y, y - row.top - row.height, 0);
  const row = part.rows.reduce((best, each) => (best && far(best) <= far(each) ? best : each), null);
  return { part, row: row && far(row) < 6 && !row.devices ? row : undefined, t };
}

/** The span at a time, or the longest of those that share its pixel; `many` counts them. */
function pickSpan(p, lane, t) {
  const half = (p.view.t1 - p.view.t0) / p.view.width;
  let i = spanAt(lane, t);
  if (i >= 0 && lane.end[i] - lane.start[i] >= half) return { i, many: 1 };
  let many = 0, best = -1;
  for (let k = Math.max(0, lastAtOrBefore(lane.start, t - half)); k < lane.count && lane.start[k] <= t + half; k++) {
    if (lane.end[k] < t - half) continue;
    many++;
    if (best < 0 || lane.end[k] - lane.start[k] > lane.end[best] - lane.start[best]) best = k;
  }
  return { i: best, many };
}

function bindPointer(p) {
  const touches = new Map();
  let drag = null, pinch = null;
  const partOf = (event) => p.parts.find((part) => part.stage.contains(event.target));

  p.stages.addEventListener("pointermove", (event) => {
    const part = drag?.part ?? partOf(event);
    if (touches.has(event.pointerId)) touches.set(event.pointerId, event.clientX);
    if (pinch && touches.size === 2) return pinchTo(event);
    if (drag) {
      const moved = event.clientX - drag.x;
      drag.far ||= Math.abs(moved) > 4;
      if (drag.far && drag.pan) p.setView(drag.t0 - moved * drag.perPixel, drag.t1 - moved * drag.perPixel);
      else if (drag.far && event.pointerType !== "touch") p.seek(hitAt(p, drag.part, event.clientX, event.clientY).t);
      return undefined;
    }
    if (part && event.pointerType !== "touch") p.setHover(hitAt(p, part, event.clientX, event.clientY));
    return undefined;
  });
  p.stages.addEventListener("pointerleave", () => p.setHover(null));
  p.stages.addEventListener("pointerdown", (event) => {
    const part = partOf(event);
    if (!part || event.button || event.target.closest("button")) return;
    touches.set(event.pointerId, event.clientX);
    if (touches.size === 2) {
      const [a, b] = [...touches.values()];
      pinch = { a, b, t0: p.view.t0, t1: p.view.t1, left: part.over.getBoundingClientRect().left };
      drag = null;
      return;
    }
    const { t0, t1, width } = p.view;
    drag = { part, x: event.clientX, t0, t1, perPixel: (t1 - t0) / width, pan: p.zoomed(), far: false };
    if (event.pointerType !== "touch") p.stages.setPointerCapture(event.pointerId);
  });
  const release = (event) => {
    touches.delete(event.pointerId);
    if (pinch && touches.size < 2) pinch = null;
    else if (drag && !drag.far && event.type === "pointerup") p.choose(hitAt(p, drag.part, event.clientX, event.clientY));
    drag = null;
  };
  p.stages.addEventListener("pointerup", release);
  p.stages.addEventListener("pointercancel", release);
  p.stages.addEventListener("dblclick", (event) => {
    const part = partOf(event);
    if (part) p.zoom(0.25, hitAt(p, part, event.clientX, event.clientY).t);
  });

  function pinchTo() {
    const [a, b] = [...touches.values()];
    const apart = Math.max(8, Math.abs(b - a)), before = Math.max(8, Math.abs(pinch.b - pinch.a));
    const span = (pinch.t1 - pinch.t0) * (before / apart);
    const middle = (pinch.a + pinch.b) / 2 - pinch.left, now = (a + b) / 2 - pinch.left;
    const at = pinch.t0 + (middle / p.view.width) * (pinch.t1 - pinch.t0);
    const t0 = at - (now / p.view.width) * span;
    p.setView(t0, t0 + span);
  }

  p.stages.addEventListener("wheel", (event) => {
    const part = partOf(event);
    if (!part) return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      p.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), hitAt(p, part, event.clientX, event.clientY).t);
    } else if (p.zoomed() && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) {
      event.preventDefault();
      const shift = ((event.deltaX || event.deltaY) / p.view.width) * (p.view.t1 - p.view.t0);
      p.setView(p.view.t0 + shift, p.view.t1 + shift);
    }
  }, { passive: false });

  const scrub = (event) => {
    const box = p.axis.getBoundingClientRect();
    p.seek(p.view.t0 + ((event.clientX - box.left) / p.view.width) * (p.view.t1 - p.view.t0));
  };
  p.axis.addEventListener("pointerdown", (event) => {
    p.axis.setPointerCapture(event.pointerId);
    scrub(event);
  });
  p.axis.addEventListener("pointermove", (event) => event.buttons && scrub(event));
}

/** Streamlit listens for single letters on the whole page (r runs the app again), so that no key leaves the player. */
function bindKeys(p) {
  const keys = {
    " ": () => p.toggle(),
    k: () => p.toggle(),
    ArrowRight: (event) => (event.shiftKey ? p.pan(0.15) : p.step(1)),
    ArrowLeft: (event) => (event.shiftKey ? p.pan(-0.15) : p.step(-1)),
    ArrowDown: () => p.changeLane(1),
    ArrowUp: () => p.changeLane(-1),
    Home: () => p.seek(0),
    End: () => p.seek(p.model.end),
    "+": () => p.zoom(0.5),
    "=": () => p.zoom(0.5),
    "-": () => p.zoom(2),
    0: () => p.fit(),
    Enter: () => p.zoomToSelected(),
    b: () => p.followCause(),
    p: () => p.togglePath(),
    "[": () => p.faster(-1),
    "]": () => p.faster(1),
    "?": () => p.showKeys(p.keys.hidden),
    Escape: () => p.escape(),
  };
  p.root.addEventListener("keydown", (event) => {
    if (event.key !== "Tab") event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const control = event.target.closest("button, select");
    if (control && (event.key === " " || event.key === "Enter" || (control.tagName === "SELECT" && event.key.startsWith("Arrow")))) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act(event);
  });
}
