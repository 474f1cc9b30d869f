// Colours for the page as it is: light or dark is read off the background that the host of the drawing has.

function luminanceOf(colour) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = "#ffffff";
  probe.fillStyle = colour;
  const hex = probe.fillStyle;
  if (!hex.startsWith("#")) return 1;
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Fill, ink and pattern for every kind, on the page's own background. */
function themeOf(root, model) {
  const style = getComputedStyle(root);
  const given = style.getPropertyValue("--st-background-color").trim();
  const dark = given ? luminanceOf(given) < 0.4 : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = dark ? "dark" : "light";
  const { palette } = model;
  const base = palette.themes[name];
  const kinds = palette.kinds.map((kind) => ({ ...kind[name], name: kind.name, letter: kind.letter }));
  return {
    name, kinds, text: base.text, muted: base.muted, line: base.line, waiting: base.waiting,
    background: given || base.background,
    idle: kinds[model.kinds.indexOf("wait")].fill,
    categories: palette.categories.map((category) => ({ ...kinds[category.kind], name: category.name })),
    font: style.fontFamily || "sans-serif",
    ratio: Math.min(3, window.devicePixelRatio || 1),
    patterns: new Map(),
  };
}

/** The quiet hatch of waiting. */
function hatchOf(theme, context) {
  if (!theme.patterns.has("wait")) {
    const step = Math.round(6 * theme.ratio);
    const tile = document.createElement("canvas");
    tile.width = tile.height = step;
    const paint = tile.getContext("2d");
    paint.fillStyle = theme.idle;
    paint.fillRect(0, 0, step, step);
    paint.strokeStyle = theme.waiting;
    paint.globalAlpha = 0.75;
    paint.lineWidth = Math.max(1, 0.8 * theme.ratio);
    paint.beginPath();
    for (const shift of [-step, 0, step]) {
      paint.moveTo(shift - 1, step + 1);
      paint.lineTo(shift + step + 1, -1);
    }
    paint.stroke();
    theme.patterns.set("wait", context.createPattern(tile, "repeat"));
  }
  return theme.patterns.get("wait");
}

/** A canvas of the wanted size in CSS pixels; gives its context, cleared, in device pixels. */
function contextOf(canvas, width, height, ratio) {
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, w, h);
  return context;
}
