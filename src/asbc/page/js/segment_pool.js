// From the contexts of a driver's segments to one context: asbc.posterior.segment_pool.

const AGE_SCALE = 15;
const MANY = 4;

/** x / (1 + e^-x), in place. */
function siluInPlace(values) {
  for (let i = 0; i < values.length; i++) values[i] *= sigmoid(values[i]);
  return values;
}

/** Attention over segments, and a correction that knows how many they are. */
class SegmentPool {
  /**
   * @param settings steps of the longest segment, hidden, and whether ages count.
   * @param tensors the posterior's, by name.
   */
  constructor(settings, tensors) {
    Object.assign(this, settings);
    this.weight = (name) => tensors[`pool.${name}.weight`];
    this.bias = (name) => tensors[`pool.${name}.bias`];
  }

  /**
   * The driver's context; the only segment's own where there is one.
   *
   * @param {Float64Array[]} contexts of its segments.
   * @param {{length: number, age: number}[]} segments samples, and seconds since; NaN: unknown.
   */
  join(contexts, segments) {
    const dim = contexts[0].length;
    const hidden = contexts.map((context, j) => {
      const input = new Float64Array([...context, ...this.features(segments[j])]);
      return siluInPlace(
        linear(this.weight("embed"), this.bias("embed"), input, new Float64Array(this.hidden)),
      );
    });
    const shares = segments.map(({ length }) => length / this.steps);
    const weights = Float64Array.from(contexts, (_, j) => {
      const score = linear(this.weight("score"), null, hidden[j], new Float64Array(1))[0];
      return Math.log(shares[j]) + score;
    });
    softmaxInPlace(weights, weights.length);
    const summary = new Float64Array(dim + 2 * this.hidden + 2);
    let squares = 0;
    contexts.forEach((context, j) => {
      for (let k = 0; k < dim; k++) summary[k] += weights[j] * context[k];
      for (let k = 0; k < this.hidden; k++) {
        summary[dim + k] += weights[j] * hidden[j][k];
        summary[dim + this.hidden + k] += hidden[j][k] / MANY;
      }
      squares += weights[j] ** 2;
    });
    summary[summary.length - 2] = Math.log(contexts.length);
    summary[summary.length - 1] = Math.log(shares.reduce((a, b) => a + b, 0));
    const mixed = siluInPlace(
      linear(this.weight("mix"), this.bias("mix"), summary, new Float64Array(this.hidden)),
    );
    const joined = linear(this.weight("correct"), this.bias("correct"), mixed, new Float64Array(dim));
    for (let k = 0; k < dim; k++) joined[k] = summary[k] + (1 - squares) * joined[k];
    return joined;
  }

  /** Length, age, and whether the age is unknown, all of order one. */
  features({ length, age }) {
    const unknown = Number.isNaN(age);
    const old = this.age && !unknown ? Math.log1p(age / AGE_SCALE) : 0;
    return [Math.log(length / this.steps), old, this.age && unknown ? 1 : 0];
  }
}
