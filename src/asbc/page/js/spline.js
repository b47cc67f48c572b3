// Monotone rational-quadratic splines (Durkan et al. 2019), as asbc.posterior.kernels.spline.

/** The splines of one layer; beyond [-bound, bound] the map is the identity. */
class SplineElement {
  constructor({ bins, bound, scale, least_width, least_height, least_slope }) {
    Object.assign(this, { bins, bound, scale });
    this.leastSlope = least_slope;
    this.leastSizes = [least_width, least_height];
    this.knots = [new Float64Array(bins + 1), new Float64Array(bins + 1)];
    this.shares = new Float64Array(bins);
  }

  /** x that is mapped to y; params: widths and heights (bins each), and inner slopes. */
  inverse(y, params) {
    const { bins, bound } = this;
    if (!(Math.abs(y) <= bound)) return y;
    this.place(0, params);
    this.place(1, params);
    const [across, up] = this.knots;
    let piece = 0;
    while (piece < bins - 1 && y >= up[piece + 1]) piece++;
    const width = across[piece + 1] - across[piece];
    const height = up[piece + 1] - up[piece];
    const first = this.slope(params, piece);
    const second = this.slope(params, piece + 1);
    const slope = height / width;
    const over = y - up[piece];
    const bend = over * (first + second - 2 * slope);
    const a = bend + height * (slope - first);
    const b = height * first - bend;
    const c = slope * over;
    const root = Math.sqrt(Math.max(b * b + 4 * a * c, 0)); // not negative, but for rounding
    return across[piece] + ((2 * c) / (b + root)) * width;
  }

  /** The ends of all pieces in one direction: each has its least share of the box, and more. */
  place(direction, params) {
    const { bins, bound, shares } = this;
    const knots = this.knots[direction];
    const least = this.leastSizes[direction];
    for (let k = 0; k < bins; k++) shares[k] = params[direction * bins + k] * this.scale;
    softmaxInPlace(shares, bins);
    let used = 0;
    knots[0] = -bound;
    for (let k = 0; k < bins - 1; k++) {
      used += shares[k];
      knots[k + 1] = 2 * bound * (least * (k + 1) + (1 - least * bins) * used) - bound;
    }
    knots[bins] = bound;
  }

  /** The slope at a knot; 1 at the bounds. */
  slope(params, knot) {
    if (knot === 0 || knot === this.bins) return 1;
    return softplus(params[2 * this.bins + knot - 1]) + this.leastSlope;
  }
}
