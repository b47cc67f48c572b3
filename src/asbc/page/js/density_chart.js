// One parameter: its posterior as a density, the prior behind it.

const GRID = 96;

/** A smoothed density of values on a grid over [low, high], reflected at the ends. */
function smoothDensity(values, low, high, size = GRID) {
  const density = new Float64Array(size);
  const spread = moments(values).sd || (high - low) / 50;
  const sorted = Float64Array.from(values).sort();
  const quartiles = (quantile(sorted, 0.75) - quantile(sorted, 0.25)) / 1.349;
  const width = Math.max(
    0.9 * Math.min(spread, quartiles || spread) * values.length ** -0.2,
    (high - low) / 150,
  );
  const step = (high - low) / (size - 1);
  const reach = Math.ceil((4 * width) / step);
  const add = (value) => {
    const centre = (value - low) / step;
    const first = Math.max(0, Math.floor(centre) - reach);
    const last = Math.min(size - 1, Math.ceil(centre) + reach);
    for (let k = first; k <= last; k++) density[k] += Math.exp(-0.5 * (((k - centre) * step) / width) ** 2);
  };
  for (const value of values) {
    add(value);
    if (value - low < 4 * width) add(2 * low - value);
    if (high - value < 4 * width) add(2 * high - value);
  }
  const scale = 1 / (values.length * width * Math.sqrt(2 * Math.PI));
  return density.map((value) => value * scale);
}

/** The values of one parameter among draws (n, dim). */
function columnOf(theta, dim, i) {
  const column = new Float64Array(theta.length / dim);
  for (let at = i, k = 0; at < theta.length; at += dim, k++) column[k] = theta[at];
  return column;
}

/** Posterior and prior in a box of a chart. */
function drawDensity(chart, box, values, prior, i, { ticks = true, colour = "blue" } = {}) {
  const { left, right, top, bottom } = box;
  const [low, high] = [prior.low[i], prior.high[i]];
  const density = smoothDensity(values, low, high);
  const xs = Array.from(density, (_, k) => left + (k / (GRID - 1)) * (right - left));
  const before = xs.map((_, k) => prior.density(i, low + (k / (GRID - 1)) * (high - low)));
  const most = Math.max(...density, ...before) * 1.05;
  const height = (value) => bottom - (value / most) * (bottom - top);
  const ground = xs.map(() => bottom);
  chart.band(xs, ground, Array.from(density, height), colour, 0.35);
  chart.line(xs, before.map(height), "grey", 1.5, [4, 3]);
  chart.line(xs, Array.from(density, height), colour, 2);
  chart.line([left, right], [bottom, bottom], "line", 1);
  if (!ticks) return;
  chart.font(11);
  const [first, last] = [three(low), three(high)];
  chart.text(first, left, bottom + 13);
  chart.text(last, right, bottom + 13, { align: "right" });
}

/** A chart of one parameter. */
class DensityChart extends Chart {
  constructor(canvas, prior, i, options = {}) {
    super(canvas);
    Object.assign(this, { prior, i, options, values: null });
  }

  show(values) {
    this.values = values;
    this.paint();
  }

  draw() {
    if (!this.values) return;
    const room = this.options.ticks === false ? 6 : 18;
    const edge = this.options.edge ?? 1;
    const box = { left: edge, right: this.width - edge, top: 4, bottom: this.height - room };
    drawDensity(this, box, this.values, this.prior, this.i, this.options);
  }
}
