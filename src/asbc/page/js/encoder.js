// From a trajectory of any length to one context vector: asbc.posterior.encoder without dropout.
//
// A trajectory is encoded by itself, so a segment shorter than the context needs no mask.

const SMALL_JERK = 0.1;
const SMALL_SNAP = 0.2;

/** The encoder's inputs, (steps, size) row by row, from states (samples, 3); float32 as there. */
function makeFeatures(settings, states) {
  const samples = states.length / 3;
  if (settings.kind === "states") return Float64Array.from(states);
  const { dt, differences } = settings;
  const size = differences ? 8 : 6;
  const steps = samples - 1;
  const inputs = new Float64Array(steps * size);
  const own = new Float64Array(steps);
  const leader = (t) => Math.fround(states[3 * t + 1] - states[3 * t + 2]);
  for (let t = 0; t < steps; t++) {
    own[t] = Math.fround(Math.fround(states[3 * t + 4] - states[3 * t + 1]) / dt);
    const row = t * size;
    for (let k = 0; k < 3; k++) inputs[row + k] = states[3 * t + k];
    inputs[row + 3] = own[t];
    inputs[row + 4] = (leader(t + 1) - leader(t)) / dt;
    inputs[row + 5] = Math.log(Math.max(states[3 * t], 0.1));
    if (!differences) continue;
    // Zero where there are not enough steps before.
    const jerk = t < 1 ? 0 : (own[t] - own[t - 1]) / dt;
    const snap = t < 2 ? 0 : (own[t] - own[t - 1] - (own[t - 1] - own[t - 2])) / dt ** 2;
    inputs[row + 6] = Math.asinh(jerk / SMALL_JERK);
    inputs[row + 7] = Math.asinh(snap / SMALL_SNAP);
  }
  return inputs;
}

/** Layer normalisation of one row in place. */
function normaliseRow(values, at, size, weight, bias) {
  let mean = 0;
  for (let k = 0; k < size; k++) mean += values[at + k];
  mean /= size;
  let variance = 0;
  for (let k = 0; k < size; k++) variance += (values[at + k] - mean) ** 2;
  const scale = 1 / Math.sqrt(variance / size + 1e-5);
  for (let k = 0; k < size; k++) {
    values[at + k] = (values[at + k] - mean) * scale * weight[k] + bias[k];
  }
}

/** The Local-Global Transformer. */
class Encoder {
  /**
   * @param settings features, dim, layers, heads, window, hidden.
   * @param tensors the posterior's, by name.
   */
  constructor(settings, tensors) {
    Object.assign(this, settings);
    this.tensors = tensors;
    this.mean = tensors.input_mean;
    this.std = tensors.input_std;
  }

  /** Weights of a part of the network, by name. */
  part(name) {
    return (leaf) => this.tensors[`encoder.${name}.${leaf}`];
  }

  /** The context vector of states (samples, 3). */
  encode(states) {
    const { dim, layers } = this;
    const inputs = makeFeatures(this.features, states);
    const size = this.mean.length;
    const steps = inputs.length / size;
    for (let i = 0; i < inputs.length; i++) {
      inputs[i] = (inputs[i] - this.mean[i % size]) / this.std[i % size];
    }
    let tokens = new Float64Array(steps * dim);
    const project = this.tensors["encoder.input_projection.weight"];
    for (let t = 0; t < steps; t++) {
      linear(project, null, inputs, tokens, t * size, t * dim, [dim, size]);
    }
    let cls = Float64Array.from(this.tensors["encoder.cls"]);
    for (let layer = 0; layer < layers; layer++) {
      const gathered = this.attendToAll(this.part(`global_attention.${layer}`), cls, tokens);
      cls = this.update(this.part(`global_update.${layer}`), cls, gathered);
      if (layer === layers - 1) break;
      const nearby = this.attendNearby(this.part(`local_attention.${layer}`), tokens);
      tokens = this.update(this.part(`local_update.${layer}`), tokens, nearby);
    }
    return cls;
  }

  /** Rows of `values` through a layer. */
  through(weight, bias, values) {
    const { dim } = this;
    const out = new Float64Array(values.length);
    for (let at = 0; at < values.length; at += dim) {
      linear(weight, bias, values, out, at, at, [dim, dim]);
    }
    return out;
  }

  /** What each step gathers from the steps at most `window` away. */
  attendNearby(part, tokens) {
    const { dim, heads, window } = this;
    const steps = tokens.length / dim;
    const width = dim / heads;
    const query = this.through(part("query.weight"), part("query.bias"), tokens);
    const key = this.through(part("key.weight"), null, tokens);
    const value = this.through(part("value.weight"), null, tokens);
    const bias = part("position_bias");
    const pooled = new Float64Array(tokens.length);
    const scores = new Float64Array(2 * window + 1);
    for (let t = 0; t < steps; t++) {
      const first = Math.max(0, t - window);
      const last = Math.min(steps - 1, t + window);
      for (let head = 0; head < heads; head++) {
        const own = t * dim + head * width;
        for (let s = first; s <= last; s++) {
          const other = s * dim + head * width;
          let dot = 0;
          for (let k = 0; k < width; k++) dot += query[own + k] * key[other + k];
          const offset = s - t + window;
          scores[s - first] = dot / Math.sqrt(width) + bias[head * (2 * window + 1) + offset];
        }
        softmaxInPlace(scores, last - first + 1);
        for (let s = first; s <= last; s++) {
          const other = s * dim + head * width;
          for (let k = 0; k < width; k++) pooled[own + k] += scores[s - first] * value[other + k];
        }
      }
    }
    return this.through(part("output.weight"), part("output.bias"), pooled);
  }

  /** What [CLS] gathers from all steps. */
  attendToAll(part, cls, tokens) {
    const { dim, heads } = this;
    const steps = tokens.length / dim;
    const width = dim / heads;
    const query = this.through(part("query.weight"), part("query.bias"), cls);
    const key = this.through(part("key.weight"), null, tokens);
    const value = this.through(part("value.weight"), null, tokens);
    const bias = part("position_bias");
    const buckets = bias.length / heads;
    const pooled = new Float64Array(dim);
    const scores = new Float64Array(steps);
    for (let head = 0; head < heads; head++) {
      for (let t = 0; t < steps; t++) {
        let dot = 0;
        for (let k = 0; k < width; k++) {
          dot += query[head * width + k] * key[t * dim + head * width + k];
        }
        scores[t] = dot / Math.sqrt(width) + bias[head * buckets + this.bucket(t)];
      }
      softmaxInPlace(scores, steps);
      for (let t = 0; t < steps; t++) {
        for (let k = 0; k < width; k++) {
          pooled[head * width + k] += scores[t] * value[t * dim + head * width + k];
        }
      }
    }
    return this.through(part("output.weight"), part("output.bias"), pooled);
  }

  /** The bucket of a distance from [CLS]: each its own at first, then logarithmic. */
  bucket(distance) {
    const { exact, count, farthest } = this.buckets;
    if (distance < exact) return distance;
    const share = Math.fround(Math.log(Math.fround(distance / exact))) / Math.log(farthest / exact);
    return Math.min(exact + Math.trunc(share * (count - exact)), count - 1);
  }

  /** norm(y + W2 gelu(W1 y + b1) + b2) with y = norm(state + gathered), row by row. */
  update(part, state, gathered) {
    const { dim, hidden } = this;
    const out = new Float64Array(state.length);
    const inner = new Float64Array(hidden);
    for (let at = 0; at < state.length; at += dim) {
      for (let k = 0; k < dim; k++) out[at + k] = state[at + k] + gathered[at + k];
      normaliseRow(out, at, dim, part("attention_norm.weight"), part("attention_norm.bias"));
      linear(part("expand.weight"), part("expand.bias"), out, inner, at, 0, [hidden, dim]);
      for (let k = 0; k < hidden; k++) inner[k] *= 0.5 + 0.5 * erf(inner[k] / Math.SQRT2);
      const more = linear(part("contract.weight"), part("contract.bias"), inner, new Float64Array(dim));
      for (let k = 0; k < dim; k++) out[at + k] += more[k];
      normaliseRow(out, at, dim, part("output_norm.weight"), part("output_norm.bias"));
    }
    return out;
  }
}

/** The softmax of the first `count` values, in place. */
function softmaxInPlace(values, count) {
  let largest = -Infinity;
  for (let i = 0; i < count; i++) largest = Math.max(largest, values[i]);
  let sum = 0;
  for (let i = 0; i < count; i++) sum += values[i] = Math.exp(values[i] - largest);
  for (let i = 0; i < count; i++) values[i] /= sum;
}
