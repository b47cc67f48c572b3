// What all charts share: a canvas as sharp as the screen, colours of the theme, axes.

/** A chart that is drawn again whenever its size or the theme changes. */
class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.width = 0;
    this.height = 0;
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paint();
  }

  /** Draw, if there is room; subclasses have `draw`. */
  paint() {
    if (this.canvas.offsetParent === null) return; // not shown
    if (!this.width) {
      this.resize();
      return;
    }
    this.context.clearRect(0, 0, this.width, this.height);
    const style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.font(12);
    this.draw();
  }

  font(size, weight = "") {
    this.context.font = `${weight} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif`;
  }

  text(text, x, y, { colour = "soft", align = "left", base = "alphabetic" } = {}) {
    this.context.fillStyle = this.colour(colour);
    this.context.textAlign = align;
    this.context.textBaseline = base;
    this.context.fillText(text, x, y);
  }

  /** A line through points; those that are not finite break it. */
  line(xs, ys, colour, width = 1.5, dash = []) {
    const { context } = this;
    context.beginPath();
    let open = false;
    for (let i = 0; i < xs.length; i++) {
      if (!Number.isFinite(ys[i])) open = false;
      else if (open) context.lineTo(xs[i], ys[i]);
      else {
        context.moveTo(xs[i], ys[i]);
        open = true;
      }
    }
    context.setLineDash(dash);
    context.strokeStyle = this.colour(colour);
    context.lineWidth = width;
    context.lineJoin = "round";
    context.stroke();
    context.setLineDash([]);
  }

  /** The area between two lines. */
  band(xs, lower, upper, colour, alpha) {
    const { context } = this;
    context.beginPath();
    for (let i = 0; i < xs.length; i++) context.lineTo(xs[i], upper[i]);
    for (let i = xs.length - 1; i >= 0; i--) context.lineTo(xs[i], lower[i]);
    context.closePath();
    context.globalAlpha = alpha;
    context.fillStyle = this.colour(colour);
    context.fill();
    context.globalAlpha = 1;
  }

  /** Grid and labels of a panel over time; returns the scales. */
  axes({ left, top, right, bottom }, [x0, x1], [y0, y1], { xLabels = true } = {}) {
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
    const y = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
    const { context } = this;
    context.lineWidth = 1;
    for (const tick of niceTicks(y0, y1, Math.max(2, (bottom - top) / 38))) {
      context.strokeStyle = this.colour("faint");
      context.beginPath();
      context.moveTo(left, y(tick));
      context.lineTo(right, y(tick));
      context.stroke();
      this.text(three(tick), left - 6, y(tick), { align: "right", base: "middle" });
    }
    if (xLabels) {
      for (const tick of niceTicks(x0, x1, (right - left) / 70)) {
        if (x(tick) > right - 60) continue; // where the axis is named
        this.text(three(tick), x(tick), bottom + 14, { align: "center" });
      }
    }
    if (xLabels) this.text("time (s)", right, bottom + 14, { align: "right" });
    return { x, y };
  }
}

/** Round numbers in a range, about `count` of them. */
function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0) || !Number.isFinite(rough)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

/** A range with a little room on both sides. */
function padded(low, high, share = 0.06) {
  const room = Math.max(high - low, 1e-6) * share;
  return [low - room, high + room];
}

/** The smallest and largest of values, which may be many. */
function extentOf(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}
