// All pairs of parameters: draws below the diagonal, densities on it, correlations above it.

const SHOWN_DRAWS = 1500;

/** A pair plot. */
class CornerChart extends Chart {
  constructor(canvas, prior, colour) {
    super(canvas);
    Object.assign(this, { prior, colourName: colour, theta: null });
  }

  /** @param {Float32Array} theta draws (n, dim). */
  show(theta) {
    this.theta = theta;
    const { prior } = this;
    this.columns = prior.marginals.map((_, i) => columnOf(theta, prior.dim, i));
    this.correlations = this.columns.map((a) => this.columns.map((b) => correlation(a, b)));
    this.canvas.setAttribute("aria-label", this.words());
    this.paint();
  }

  /** The strongest correlations, for those who cannot see the chart. */
  words() {
    const found = [];
    this.prior.marginals.forEach(({ name }, i) => {
      for (let j = 0; j < i; j++) {
        found.push([this.correlations[i][j], `${this.prior.marginals[j].name} and ${name}`]);
      }
    });
    found.sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
    const told = found.slice(0, 3).map(([value, names]) => `${names} ${value.toFixed(2)}`);
    return `Pair plot; strongest correlations: ${told.join(", ")}`;
  }

  draw() {
    if (!this.theta) return;
    const { prior, width, height } = this;
    const n = prior.dim;
    const [left, bottom] = [34, 34];
    const cell = { width: (width - left - 4) / n, height: (height - bottom - 16) / n };
    for (let row = 0; row < n; row++) {
      for (let column = 0; column < n; column++) {
        const box = {
          left: left + column * cell.width + 3,
          right: left + (column + 1) * cell.width - 3,
          top: 16 + row * cell.height + 3,
          bottom: 16 + (row + 1) * cell.height - 3,
        };
        this.frame(box);
        if (row === column)
          drawDensity(this, box, this.columns[row], prior, row, { ticks: false, colour: this.colourName });
        else if (row > column) this.scatter(box, row, column);
        else this.correlation(box, this.correlations[row][column]);
      }
    }
    this.labels(left, bottom, cell);
  }

  frame({ left, right, top, bottom }) {
    this.context.strokeStyle = this.colour("faint");
    this.context.lineWidth = 1;
    this.context.strokeRect(left, top, right - left, bottom - top);
  }

  scatter({ left, right, top, bottom }, row, column) {
    const { prior, context } = this;
    const [xs, ys] = [this.columns[column], this.columns[row]];
    const every = Math.max(1, Math.floor(xs.length / SHOWN_DRAWS));
    const x = (v) =>
      left + ((v - prior.low[column]) / (prior.high[column] - prior.low[column])) * (right - left);
    const y = (v) => bottom - ((v - prior.low[row]) / (prior.high[row] - prior.low[row])) * (bottom - top);
    context.fillStyle = this.colour(this.colourName);
    context.globalAlpha = Math.min(0.6, 420 / (xs.length / every));
    const size = right - left > 60 ? 1.8 : 1.3;
    for (let i = 0; i < xs.length; i += every)
      context.fillRect(x(xs[i]) - size / 2, y(ys[i]) - size / 2, size, size);
    context.globalAlpha = 1;
  }

  correlation({ left, right, top, bottom }, value) {
    const { context } = this;
    context.globalAlpha = 0.75 * Math.abs(value);
    context.fillStyle = this.colour(value < 0 ? "orange" : "blue");
    context.fillRect(left, top, right - left, bottom - top);
    context.globalAlpha = 1;
    this.font(Math.min(15, (right - left) / 3.6), Math.abs(value) > 0.3 ? "600" : "");
    const text = value.toFixed(2).replace("-0.00", "0.00").replace("-", "−");
    this.text(text, (left + right) / 2, (top + bottom) / 2, {
      colour: "ink",
      align: "center",
      base: "middle",
    });
  }

  labels(left, bottom, cell) {
    const { prior, context, height } = this;
    this.font(12);
    prior.marginals.forEach((marginal, i) => {
      const middle = left + (i + 0.5) * cell.width;
      const label = `${symbolOf(marginal.name)}${unitOf(marginal) && cell.width > 55 ? ` (${unitOf(marginal)})` : ""}`;
      this.text(label, middle, 12, { align: "center", colour: "ink" });
      context.save();
      context.translate(11, 16 + (i + 0.5) * cell.height);
      context.rotate(-Math.PI / 2);
      this.text(cell.height > 55 ? label : symbolOf(marginal.name), 0, 0, {
        align: "center",
        colour: "ink",
        base: "middle",
      });
      context.restore();
      if (cell.width < 48) return;
      this.font(10);
      const base = height - bottom + 14;
      this.text(three(marginal.low), left + i * cell.width + 3, base);
      this.text(three(marginal.high), left + (i + 1) * cell.width - 3, base, { align: "right" });
      this.font(12);
    });
  }
}
