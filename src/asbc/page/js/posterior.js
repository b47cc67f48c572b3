// The density q(theta | trajectory) of one driver, and draws from it: asbc.posterior.posterior.

const MAX_TRIES = 20;

/** Encoder, flow and transform with their standardisation. */
class Posterior {
  /**
   * @param model what asbc.page.description says of the network.
   * @param tensors by name.
   */
  constructor(model, tensors) {
    this.prior = new Prior(model.prior);
    this.dim = this.prior.dim;
    this.encoder = new Encoder(model.encoder, tensors);
    this.pool = model.pool ? new SegmentPool(model.pool, tensors) : null;
    this.flow = new Flow(model.flow, tensors);
    this.transform = new TRANSFORMS[model.transform.kind](model.transform, this.prior);
    this.mean = tensors.u_mean;
    this.std = tensors.u_std;
    this.widening = tensors.widening;
  }

  /**
   * The context vector of a driver.
   *
   * @param {{states: Float64Array, length: number, age: number}[]} segments gap, speed and approach
   *   rate of each, (samples, 3); one, unless the model has a pool.
   */
  context(segments) {
    const contexts = segments.map(({ states }) => this.encoder.encode(states));
    return this.pool ? this.pool.join(contexts, segments) : contexts[0];
  }

  /** Draws (n, dim) that base noise (n, dim) maps to. */
  fromNoise(noise, context) {
    const { dim } = this;
    const theta = this.flow.inverse(noise, context, dim);
    for (let at = 0; at < theta.length; at++) {
      const i = at % dim;
      const u = theta[at] * this.std[i] + this.mean[i];
      theta[at] = this.transform.forward(i, u) * this.widening[i];
    }
    return theta;
  }

  /** Whether a draw is inside the support, and not on its edge by overflow. */
  usable(theta) {
    return this.prior.contains(theta) && this.transform.resolves(theta);
  }

  /**
   * n draws inside the prior's support, (n, dim), and the share that had to be drawn again.
   *
   * What is outside after MAX_TRIES becomes one of the accepted draws; where there is none, all
   * are the prior's, and a leak rate of 1 shows it.
   */
  sample(context, n, random) {
    const { dim } = this;
    const theta = this.fromNoise(random.normals(n * dim), context);
    const row = (i) => theta.subarray(i * dim, (i + 1) * dim);
    let pending = [];
    for (let i = 0; i < n; i++) if (!this.usable(row(i))) pending.push(i);
    const leakRate = pending.length / n;
    const rejected = new Set(pending);
    for (let attempt = 0; attempt < MAX_TRIES && pending.length; attempt++) {
      const fresh = this.fromNoise(random.normals(pending.length * dim), context);
      pending = pending.filter((i, k) => {
        const draw = fresh.subarray(k * dim, (k + 1) * dim);
        if (!this.usable(draw)) return true;
        row(i).set(draw);
        rejected.delete(i);
        return false;
      });
    }
    this.fallBack(theta, rejected, n, random);
    return { theta: Float32Array.from(theta), leakRate };
  }

  fallBack(theta, rejected, n, random) {
    const { dim } = this;
    const accepted = [];
    for (let i = 0; i < n; i++) if (!rejected.has(i)) accepted.push(i);
    for (const i of rejected) {
      const from = accepted.length ? accepted[random.integer(accepted.length)] : -1;
      for (let k = 0; k < dim; k++) {
        theta[i * dim + k] = from < 0 ? this.prior.quantile(k, random.uniform()) : theta[from * dim + k];
      }
    }
  }
}
