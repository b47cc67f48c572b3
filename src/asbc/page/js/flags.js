// Reasons to be careful with a driver's posterior: asbc.calibration.flags and posterior.novelty.

const BOUND_MARGIN = 0.01;
const BOUND_SHARE = 0.1;
const LEAKY = 0.05;

/** How far a context is from simulated ones: the mean distance to the nearest of them. */
class Novelty {
  constructor({ threshold, neighbours }, tensors) {
    Object.assign(this, { threshold, neighbours });
    this.reference = tensors["novelty.reference"];
    this.centre = tensors["novelty.centre"];
    this.scale = tensors["novelty.scale"];
  }

  distance(context) {
    const dim = context.length;
    const point = context.map((value, k) => (value - this.centre[k]) / this.scale[k]);
    const distances = new Float64Array(this.reference.length / dim);
    for (let i = 0; i < distances.length; i++) {
      let sum = 0;
      for (let k = 0; k < dim; k++) sum += (point[k] - this.reference[i * dim + k]) ** 2;
      distances[i] = Math.sqrt(sum);
    }
    distances.sort();
    let mean = 0;
    for (let i = 0; i < this.neighbours; i++) mean += distances[i] / this.neighbours;
    return mean;
  }
}

/** Bounds that a posterior leans against, e.g. "v0:low b:high". */
function atBound(theta, prior) {
  const draws = theta.length / prior.dim;
  const found = [];
  prior.marginals.forEach(({ name }, i) => {
    const margin = (prior.high[i] / prior.low[i]) ** BOUND_MARGIN;
    let low = 0;
    let high = 0;
    for (let at = i; at < theta.length; at += prior.dim) {
      if (theta[at] <= prior.low[i] * margin) low++;
      if (theta[at] >= prior.high[i] / margin) high++;
    }
    if (low / draws > BOUND_SHARE) found.push(`${name}:low`);
    if (high / draws > BOUND_SHARE) found.push(`${name}:high`);
  });
  return found.join(" ");
}

/** A driver's flags as values; `flagged` if anything asks for care. */
function flagsOf(theta, leakRate, context, prior, novelty) {
  const flags = {
    leak_rate: leakRate,
    at_bound: atBound(theta, prior),
    novelty: null,
    unlike_training: false,
  };
  if (novelty) {
    flags.novelty = novelty.distance(context);
    flags.unlike_training = flags.novelty > novelty.threshold;
  }
  flags.flagged = leakRate > LEAKY || flags.at_bound !== "" || flags.unlike_training;
  return flags;
}
