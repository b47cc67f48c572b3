// Residual accelerations: none, independent, or a Matern-5/2 process with white noise, which can
// be continued from residuals that were observed (asbc.simulator.residuals, matern, state_space).

/** The residuals of one driver from now on; `next` draws one. */
class NoResidual {
  next() {
    return 0;
  }
}

/** Independent N(0, sigma^2). */
class GaussianResidual {
  constructor(settings, [sigma]) {
    this.sigma = sigma;
  }

  next(random) {
    return this.sigma * random.normal();
  }
}

/** The Matern-5/2 process as a state (f, f'/lam, f''/lam^2), lam = sqrt(5) / ell. */
class MaternResidual {
  /**
   * @param settings the nugget.
   * @param hyper sigma and ell.
   * @param dt time step (s).
   * @param prefix residuals observed just before, oldest first, and their relative noise.
   */
  constructor({ nugget }, [sigma, ell], dt, prefix = null) {
    this.sigma = sigma;
    this.white = Math.sqrt(nugget);
    this.step = maternTransition(ell, dt);
    this.factor = cholesky3(this.step.noise);
    let belief = maternStationary();
    if (prefix) belief = filterPrefix(belief, this.step, prefix, sigma, nugget);
    this.start = belief;
    this.state = null;
  }

  next(random) {
    if (this.state === null) {
      this.state = addNoise(this.start.mean, cholesky3(this.start.covariance), random);
    } else {
      this.state = addNoise(multiply3(this.step.matrix, this.state), this.factor, random);
    }
    return this.sigma * (this.state[0] + this.white * random.normal());
  }
}

const RESIDUALS = { none: NoResidual, gaussian: GaussianResidual, matern: MaternResidual };

/** The process's stationary distribution, of unit variance. */
function maternStationary() {
  const third = 1 / 3;
  return {
    mean: [0, 0, 0],
    covariance: [
      [1, 0, -third],
      [0, third, 0],
      [-third, 0, 1],
    ],
  };
}

/** The exact discretisation of one time step: s' = matrix s + N(0, noise). */
function maternTransition(ell, dt) {
  const x = (Math.sqrt(5) * dt) / ell;
  const half = (x * x) / 2;
  const decay = Math.exp(-x);
  const matrix = [
    [1 + x + half, x + 2 * half, half],
    [-half, 1 + x - 2 * half, x - half],
    [half - x, 2 * half - 3 * x, 1 - 2 * x + half],
  ].map((row) => row.map((value) => value * decay));
  return { matrix, noise: maternNoise(x) };
}

/** 16/3 int_0^x g g^T ds; from the highest integral down, so that nothing cancels. */
function maternNoise(x) {
  const edge = Math.exp(-2 * x);
  const i4 = 0.75 * lowerGamma5(2 * x);
  const i3 = (2 * i4 + x ** 4 * edge) / 4;
  const i2 = (2 * i3 + x ** 3 * edge) / 3;
  const i1 = (2 * i2 + x ** 2 * edge) / 2;
  const i0 = 2 * i1 + x * edge;
  const q12 = i3 / 2 - i4 / 4;
  const q13 = i2 / 2 - i3 + i4 / 4;
  const q23 = i1 - 2.5 * i2 + 1.5 * i3 - i4 / 4;
  return [
    [i4 / 4, q12, q13],
    [q12, i2 - i3 + i4 / 4, q23],
    [q13, q23, i0 - 4 * i1 + 5 * i2 - 2 * i3 + i4 / 4],
  ].map((row) => row.map((value) => (value * 16) / 3));
}

/** The regularised lower incomplete gamma function P(5, y), by its series. */
function lowerGamma5(y) {
  let term = 1;
  let sum = 1;
  for (let n = 1; n < 500 && term > 1e-17 * sum; n++) {
    term *= y / (5 + n);
    sum += term;
  }
  return Math.min(1, ((y ** 5 * Math.exp(-y)) / 120) * sum);
}

/** The belief about the first state after the prefix: a Kalman filter. */
function filterPrefix(belief, step, prefix, sigma, nugget) {
  let { mean, covariance } = belief;
  for (const residual of prefix.residuals) {
    const variance = covariance[0][0] + nugget + prefix.noise;
    const innovation = residual / sigma - mean[0];
    const gain = covariance.map((row) => row[0] / variance);
    mean = mean.map((value, i) => value + gain[i] * innovation);
    covariance = covariance.map((row, i) => row.map((value, j) => value - gain[i] * covariance[0][j]));
    mean = multiply3(step.matrix, mean);
    covariance = propagate3(step, covariance);
  }
  return { mean, covariance };
}

/** matrix covariance matrix^T + noise. */
function propagate3({ matrix, noise }, covariance) {
  const half = matrix.map((row) =>
    [0, 1, 2].map((j) => row[0] * covariance[0][j] + row[1] * covariance[1][j] + row[2] * covariance[2][j]),
  );
  return half.map((row, i) =>
    [0, 1, 2].map((j) => row[0] * matrix[j][0] + row[1] * matrix[j][1] + row[2] * matrix[j][2] + noise[i][j]),
  );
}

/** The lower Cholesky factor; a pivot that is 0 but for rounding makes its column vanish. */
function cholesky3(covariance) {
  const factor = [
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 0],
  ];
  for (let j = 0; j < 3; j++) {
    const floor = Math.max(1e-12 * covariance[j][j], 1e-30);
    let pivot = covariance[j][j];
    for (let k = 0; k < j; k++) pivot -= factor[j][k] ** 2;
    const root = Math.sqrt(Math.max(pivot, floor));
    for (let i = j; i < 3; i++) {
      let value = covariance[i][j];
      for (let k = 0; k < j; k++) value -= factor[i][k] * factor[j][k];
      factor[i][j] = value / root;
    }
  }
  return factor;
}

/** A 3 x 3 matrix times a vector. */
function multiply3(matrix, vector) {
  return matrix.map((row) => row[0] * vector[0] + row[1] * vector[1] + row[2] * vector[2]);
}

/** mean + factor z with standard normal z. */
function addNoise(mean, factor, random) {
  const z = [random.normal(), random.normal(), random.normal()];
  return mean.map((value, i) => value + factor[i][0] * z[0] + factor[i][1] * z[1] + factor[i][2] * z[2]);
}
