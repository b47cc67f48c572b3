// A recorded trajectory with the fan of predictions from one moment on.

const PANELS = [
  ["gap", "gap (m)", 1.15],
  ["speed", "speed (m/s)", 1.15],
  ["acceleration", "acceleration (m/s²)", 0.8],
];

/** Gap, speeds and acceleration over time. */
class TrajectoryChart extends Chart {
  constructor(canvas, dt) {
    super(canvas);
    Object.assign(this, { dt, pair: null, fan: null, seen: 0, moment: 0 });
  }

  /** @param pair the recorded series. @param seen samples that the model has read. */
  show(pair, seen) {
    Object.assign(this, { pair, seen, fan: null });
    this.paint();
  }

  /** The fan of one moment; null takes it away. */
  predict(moment, fan) {
    Object.assign(this, { moment, fan });
    this.paint();
  }

  /** The sample at a place of the canvas. */
  sampleAt(x) {
    const { left, right } = this.sides();
    const share = Math.min(Math.max((x - left) / (right - left), 0), 1);
    return Math.round(share * (this.pair.gap.length - 1));
  }

  sides() {
    return { left: 40, right: this.width - 8 };
  }

  draw() {
    if (!this.pair) return;
    const { pair, dt, height } = this;
    const { left, right } = this.sides();
    const last = (pair.gap.length - 1) * dt;
    const time = Array.from(pair.gap, (_, t) => t * dt);
    const total = PANELS.reduce((sum, [, , share]) => sum + share, 0);
    const room = height - 22 - 10 * PANELS.length;
    let top = 4;
    PANELS.forEach(([name, label, share], index) => {
      const bottom = top + (room * share) / total;
      const box = { left, right, top, bottom };
      const lastPanel = index === PANELS.length - 1;
      const scale = this.axes(box, [0, Math.max(last, dt)], this.limits(name), { xLabels: lastPanel });
      this.shade(box, scale);
      this.context.save();
      this.context.beginPath();
      this.context.rect(left, top, right - left, bottom - top);
      this.context.clip();
      const xs = time.map(scale.x);
      if (name === "speed") this.line(xs, Array.from(pair.leader, scale.y), "grey", 1.5, [5, 3]);
      if (this.fan) this.drawFan(this.fan[name], scale);
      this.line(xs, Array.from(pair[name], scale.y), "ink", 1.6);
      this.cursor(box, scale, name);
      this.context.restore();
      this.text(label, left + 5, top + 12, { colour: "ink" });
      top = bottom + 10;
    });
  }

  limits(name) {
    const { pair } = this;
    let [low, high] = extentOf(pair[name]);
    if (name === "speed") {
      const [least, most] = extentOf(pair.leader);
      [low, high] = [Math.min(low, least), Math.max(high, most)];
    }
    if (name === "acceleration") [low, high] = [Math.min(low, -1), Math.max(high, 1)];
    else if (name === "gap") low = Math.max(0, low - 0.35 * (high - low) - 2);
    else [low, high] = [Math.max(0, low - 1), high + 1];
    return padded(low, name === "gap" ? high + 0.35 * (high - low) : high);
  }

  /** What the model has read. */
  shade({ left, top, bottom }, { x }) {
    const stop = x((this.seen - 1) * this.dt);
    this.context.fillStyle = this.colour("blue-wash");
    this.context.globalAlpha = 0.5;
    this.context.fillRect(left, top, stop - left, bottom - top);
    this.context.globalAlpha = 1;
  }

  drawFan([low, lower, middle, upper, high], { x, y }) {
    const xs = Array.from(low, (_, k) => x((this.fan.start + k) * this.dt));
    this.band(xs, Array.from(low, y), Array.from(high, y), "blue", 0.22);
    this.band(xs, Array.from(lower, y), Array.from(upper, y), "blue", 0.32);
    this.line(xs, Array.from(middle, y), "blue", 2);
  }

  cursor({ top, bottom }, { x, y }, name) {
    const at = x(this.moment * this.dt);
    this.line([at, at], [top, bottom], "orange", 1.5);
    this.context.fillStyle = this.colour("orange");
    this.context.beginPath();
    this.context.arc(at, y(this.pair[name][this.moment]), 4, 0, 2 * Math.PI);
    this.context.fill();
  }
}
