// Keyed randomness: a stream of numbers is a function of its key alone, on every machine.
//
// The key's text is hashed to 128 bits (four chains of multiplications, as MurmurHash mixes), which
// seed sfc32, a small generator that passes PractRand. It is not numpy's: the same seed gives the
// same draws on every page, and others than the command's.

/** The 128-bit hash of a text, as four unsigned integers. */
function hash128(text) {
  const state = [1779033703, 3144134277, 1013904242, 2773480762];
  const factors = [597399067, 2869860233, 951274213, 2716044179];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    for (let k = 0; k < 4; k++) {
      state[k] = state[(k + 1) % 4] ^ Math.imul(state[k] ^ code, factors[k]);
    }
  }
  for (let k = 0; k < 4; k++) {
    state[k] = Math.imul(state[(k + 2) % 4] ^ (state[k] >>> (18 + k)), factors[k]);
  }
  return state.map((value) => value >>> 0);
}

/** A stream of random numbers; `key` is any list of texts and numbers. */
class RandomStream {
  constructor(...key) {
    [this.a, this.b, this.c, this.d] = hash128(JSON.stringify(key));
    for (let i = 0; i < 16; i++) this.bits();
  }

  /** 32 random bits (sfc32). */
  bits() {
    const sum = (((this.a + this.b) | 0) + this.d) | 0;
    this.d = (this.d + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (this.c << 21) | (this.c >>> 11);
    this.c = (this.c + sum) | 0;
    return sum >>> 0;
  }

  /** Uniform in (0, 1), never an end of it. */
  uniform() {
    return (this.bits() + 0.5) / 4294967296;
  }

  /** Standard normal, by the inverse distribution function: one uniform each. */
  normal() {
    return normalQuantile(this.uniform());
  }

  /** An integer from 0 to below `count`. */
  integer(count) {
    return Math.floor(this.uniform() * count);
  }

  /** Standard normal numbers in an array. */
  normals(count) {
    const values = new Float64Array(count);
    for (let i = 0; i < count; i++) values[i] = this.normal();
    return values;
  }
}
