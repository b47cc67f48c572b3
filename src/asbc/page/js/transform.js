// The prior of theta, and the maps from unconstrained u to theta: asbc.simulator.prior and
// asbc.posterior.transform.

const SMALLEST_TAIL = 1e-7;
const BOX_MARGIN = 1e-6;

/** Independent truncated log-normals. */
class Prior {
  /** @param marginals name, unit, centre, log_scale, low and high of each. */
  constructor(marginals) {
    this.marginals = marginals;
    this.dim = marginals.length;
    this.low = Float64Array.from(marginals, (m) => Math.fround(m.low));
    this.high = Float64Array.from(marginals, (m) => Math.fround(m.high));
    this.below = Float64Array.from(marginals, (_, i) => this.standardCdf(i, this.low[i]));
    this.mass = Float64Array.from(marginals, (_, i) => this.standardCdf(i, this.high[i]) - this.below[i]);
  }

  /** The distribution function before truncation. */
  standardCdf(i, theta) {
    const { centre, log_scale } = this.marginals[i];
    return normalCdf((Math.log(theta) - Math.log(centre)) / log_scale);
  }

  /** The share of the prior below a value. */
  cdf(i, theta) {
    return (this.standardCdf(i, theta) - this.below[i]) / this.mass[i];
  }

  /** The value with a share u of the prior below it. */
  quantile(i, u) {
    const { centre, log_scale } = this.marginals[i];
    const z = normalQuantile(this.below[i] + u * this.mass[i]);
    return Math.min(Math.max(Math.exp(Math.log(centre) + log_scale * z), this.low[i]), this.high[i]);
  }

  /** The density; 0 outside the support. */
  density(i, theta) {
    if (theta < this.low[i] || theta > this.high[i]) return 0;
    const { centre, log_scale } = this.marginals[i];
    const z = (Math.log(theta) - Math.log(centre)) / log_scale;
    return Math.exp(-0.5 * z * z) / (theta * log_scale * Math.sqrt(2 * Math.PI) * this.mass[i]);
  }

  /** Whether theta (dim,) lies in the support, bounds included. */
  contains(theta) {
    for (let i = 0; i < this.dim; i++) {
      const value = Math.fround(theta[i]);
      if (!(value >= this.low[i] && value <= this.high[i])) return false;
    }
    return true;
  }
}

/** theta = softplus(u) + epsilon: the paper's. */
class SoftplusTransform {
  constructor({ epsilon }) {
    this.epsilon = epsilon;
  }

  forward(_, u) {
    return softplus(u) + this.epsilon;
  }

  resolves(theta) {
    return theta.every((value) => value > this.epsilon);
  }
}

/** A scaled logit onto the prior's box. */
class BoundedTransform {
  constructor(_, prior) {
    this.prior = prior;
  }

  forward(i, u) {
    const { low, high } = this.prior;
    return Math.min(Math.max(low[i] + (high[i] - low[i]) * sigmoid(u), low[i]), high[i]);
  }

  resolves(theta) {
    const { low, high } = this.prior;
    return theta.every((value, i) => {
      const share = (value - low[i]) / (high[i] - low[i]);
      return share > BOX_MARGIN && share < 1 - BOX_MARGIN;
    });
  }
}

/** The map under which the prior of u is standard normal. */
class PriorNormalTransform {
  constructor(_, prior) {
    this.prior = prior;
  }

  forward(i, u) {
    return this.prior.quantile(i, normalCdf(u));
  }

  resolves(theta) {
    return theta.every((value, i) => {
      const share = this.prior.cdf(i, value);
      return share > SMALLEST_TAIL && share < 1 - SMALLEST_TAIL;
    });
  }
}

const TRANSFORMS = {
  softplus: SoftplusTransform,
  bounded: BoundedTransform,
  prior: PriorNormalTransform,
};
