// A recorded trajectory with the fan of predictions from one moment on.

const PANELS = [
  ["gap", "gap (m)", 1.15],
  ["speed", "speed (m/s)", 1.15],
  ["acceleration", "acceleration (m/s²)", 0.8],
];

const LONGEST_VIEW = 120; // s shown at once: in more than this a fan of 10 s is a speck

/** Gap, speeds and acceleration over time; of a long recording, the part around the moment. */
class TrajectoryChart extends Chart {
  constructor(canvas, dt) {
    super(canvas);
    Object.assign(this, { dt, pair: null, fan: null, seen: [], moment: 0, first: 0 });
  }

  /** Samples that are shown. */
  get count() {
    return Math.min(this.pair.gap.length, Math.round(LONGEST_VIEW / this.dt) + 1);
  }

  /** Move the part that is shown, if the moment would lie at its edge or outside. */
  scroll(moment) {
    const ahead = moment - this.first;
    if (ahead > 0.2 * this.count && ahead < 0.7 * this.count) return;
    const wanted = moment - Math.round(this.count / 3);
    this.first = Math.max(0, Math.min(wanted, this.pair.gap.length - this.count));
  }

  /** @param pair the recorded series. @param seen first sample and length of what the model has read. */
  show(pair, seen) {
    Object.assign(this, { pair, seen, fan: null, moment: 0, first: 0 });
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
    return this.first + Math.round(share * (this.count - 1));
  }

  sides() {
    return { left: 40, right: this.width - 8 };
  }

  draw() {
    if (!this.pair) return;
    const { pair, dt, height } = this;
    const { left, right } = this.sides();
    const [first, stop] = [this.first, this.first + this.count];
    const range = [first * dt, (stop - 1) * dt];
    const time = Array.from({ length: this.count }, (_, t) => (first + t) * dt);
    const shown = (values) => values.subarray(first, stop);
    const total = PANELS.reduce((sum, [, , share]) => sum + share, 0);
    const room = height - 22 - 10 * PANELS.length;
    let top = 4;
    PANELS.forEach(([name, label, share], index) => {
      const bottom = top + (room * share) / total;
      const box = { left, right, top, bottom };
      const lastPanel = index === PANELS.length - 1;
      const scale = this.axes(box, range, this.limits(name, shown), { xLabels: lastPanel });
      this.shade(box, scale);
      this.context.save();
      this.context.beginPath();
      this.context.rect(left, top, right - left, bottom - top);
      this.context.clip();
      const xs = time.map(scale.x);
      if (name === "speed") this.line(xs, Array.from(shown(pair.leader), scale.y), "grey", 1.5, [5, 3]);
      if (this.fan) this.drawFan(this.fan[name], scale);
      this.line(xs, Array.from(shown(pair[name]), scale.y), "ink", 1.6);
      this.cursor(box, scale, name);
      this.context.restore();
      this.text(label, left + 5, top + 12, { colour: "ink" });
      top = bottom + 10;
    });
  }

  limits(name, shown) {
    const { pair } = this;
    let [low, high] = extentOf(shown(pair[name]));
    if (name === "speed") {
      const [least, most] = extentOf(shown(pair.leader));
      [low, high] = [Math.min(low, least), Math.max(high, most)];
    }
    if (name === "acceleration") [low, high] = [Math.min(low, -1), Math.max(high, 1)];
    else if (name === "gap")
      [low, high] = [Math.max(0, low - 0.4 * (high - low) - 2), high + 0.6 * (high - low) + 2];
    else [low, high] = [Math.max(0, low - 1), high + 1];
    return padded(low, high);
  }

  /** What the model has read. */
  shade({ left, right, top, bottom }, { x }) {
    this.context.fillStyle = this.colour("blue-wash");
    this.context.globalAlpha = 0.5;
    for (const [first, length] of this.seen) {
      const from = Math.max(x(first * this.dt), left);
      const to = Math.min(x((first + length - 1) * this.dt), right);
      if (to > from) this.context.fillRect(from, top, to - from, bottom - top);
    }
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
