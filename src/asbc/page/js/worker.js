// The worker: reads, checks and calibrates, so that the page itself never waits.
//
// A message is {id, ask, ...}; the answer is {id, answer} or {id, error}. Reports on the way are
// {id, progress}. Long work lets other messages in between.

const SUMO_DRIVERS = 300;
const LEAST_SAMPLES = 2; // of a pair with which anything can be done
const POPULATION_DRAWS = 4000; // pooled draws that the page shows
const SLICE = 40; // ms of work between two looks at the messages
const FAN = [0.025, 0.25, 0.5, 0.75, 0.975];

const state = {
  model: null,
  posterior: null,
  novelty: null,
  simulator: null,
  file: null,
  results: [],
  job: 0,
};

/** The end of work that nobody waits for any more. */
class Superseded extends Error {}

/** Let other messages in, if some time has passed. */
function breather() {
  let last = performance.now();
  const channel = new MessageChannel();
  return async () => {
    if (performance.now() - last < SLICE) return;
    await new Promise((resolve) => {
      channel.port1.onmessage = resolve;
      channel.port2.postMessage(0);
    });
    last = performance.now();
  };
}

const ANSWERS = {
  /** Build the model. */
  async model({ model, tensors }) {
    const read = await readTensors(model.tensors, tensors);
    state.model = model;
    state.posterior = new Posterior(model, read);
    state.novelty = model.novelty ? new Novelty(model.novelty, read) : null;
    state.simulator = model.simulator ? new Simulator(model.simulator) : null;
  },

  /** The columns of a file, and how they match. */
  async header({ file }) {
    if (!/\.csv$/i.test(file.name)) {
      const ending = /\.[^.]*$/.exec(file.name)?.[0] ?? "";
      throw new InputError(
        `pairs: ${file.name}: unknown ending '${ending}'; expected .csv (asbc calibrate reads .parquet too)`,
      );
    }
    const header = await readHeader(file);
    const match = matchColumns(header);
    const message = match.missing.length ? missingMessage(file.name, match.missing, header) : null;
    return { header, message, ...match };
  },

  /** Read and check a file; drivers that cannot be used are named, and left out if so wanted. */
  async read({ file, header, columns, units, skip }, report) {
    const places = {};
    for (const [name, place] of Object.entries(columns)) {
      if (typeof place === "number") places[name] = place;
    }
    const job = ++state.job;
    const pause = breather();
    const table = await readTable(file, header, places, async (share) => {
      report({ reading: share });
      await pause();
      if (job !== state.job) throw new Superseded(); // another file was opened meanwhile
    });
    standIn(table, columns);
    convertUnits(table, units);
    const source = `pairs: ${file.name}`;
    report({ checking: true });
    const { groups, bad, unit } = soundPairs(table, source, state.model.dt);
    if (bad.size && !skip) return refusal(bad, groups.length, unit);
    const { dt, context_steps: steps, pool } = state.model;
    // Of a driver with several pairs, one of them must be long enough.
    const { pairs, drops } = makePairs(table, groups, { dt, shortest: pool ? LEAST_SAMPLES : steps });
    const { drivers, short } = makeDrivers(pairs, pool, dt);
    if (short.size && !skip) return refusal(short, drivers.length);
    for (const [name, reason] of short) bad.set(name, reason);
    if (!drivers.length && bad.size) throw new InputError(bad.values().next().value);
    if (!drivers.length) {
      const reasons = [...drops].map(([reason, count]) => `${count} ${reason}`).join("; ") || "nothing";
      throw new InputError(
        `${source}: no usable pair (dropped: ${reasons}); lower data.min_duration or add data`,
      );
    }
    state.drivers = drivers;
    return { drivers: drivers.length, rows: table.length, drops: [...drops], skipped: [...bad] };
  },

  /** A posterior for every driver that was read. */
  async calibrate({ draws, seed }, report) {
    const job = ++state.job;
    state.results = [];
    const pause = breather();
    const begin = performance.now();
    const { drivers } = state;
    for (const driver of drivers) {
      state.results.push(calibrateDriver(driver, draws, seed));
      report({ calibrated: state.results.length, of: drivers.length });
      await pause();
      if (job !== state.job) throw new Superseded();
    }
    const rows = state.results.map(({ id, summary, flags, driver }) => ({
      id,
      summary,
      flags,
      followerClass: driver.pairs[0].followerClass,
      duration: driver.pairs.reduce((sum, pair) => sum + pair.gap.length, 0) * state.model.dt,
    }));
    return { rows, seconds: (performance.now() - begin) / 1000 };
  },

  /** Draws and recorded series of one driver. */
  async driver({ index }) {
    const { id, theta, summary, flags, driver } = state.results[index];
    return { id, theta, summary, flags, pairs: driver.pairs, seen: seenStretches(driver) };
  },

  /** A fan of predictions from one sample on: quantiles of gap, speed and acceleration by step. */
  async fan({ index, pair: which, start, draws, seed }) {
    const { theta, driver } = state.results[index];
    return predictFan(driver.pairs[which], theta, start, draws, seed);
  },

  /** Pooled draws of all drivers, the same number of each. */
  async population() {
    const { dim } = state.posterior;
    const each = Math.max(1, Math.floor(POPULATION_DRAWS / state.results.length));
    const every = Math.max(1, Math.ceil(state.results.length / POPULATION_DRAWS));
    const chosen = state.results.filter((_, i) => i % every === 0);
    const size = Math.min(each, chosen[0].theta.length / dim) * dim;
    const theta = new Float32Array(chosen.length * size);
    chosen.forEach((result, i) => theta.set(result.theta.subarray(0, size), i * size));
    return { theta, drivers: chosen.length };
  },

  /** A file to download, as pieces of text. */
  async file({ kind, seed }) {
    const { prior } = state.posterior;
    if (kind === "draws") return new Blob(drawsCsv(state.results, prior, idColumn()), { type: "text/csv" });
    if (kind === "summary")
      return new Blob(summaryCsv(state.results, prior, idColumn()), { type: "text/csv" });
    const random = new RandomStream(seed, "population");
    const drivers = Array.from({ length: SUMO_DRIVERS }, () => drawFromAll(random));
    return new Blob([sumoXml(drivers, prior, state.model.sumo)], { type: "application/xml" });
  },

  /** New drivers from the population: whole rows, so correlations are kept. */
  async draw({ count, key }) {
    const random = new RandomStream(...key);
    return Array.from({ length: count }, () => Array.from(drawFromAll(random)));
  },
};

/** The first of the drivers that cannot be used, in the command's words, and all of them. */
function refusal(bad, sound, unit = null) {
  const [name, reason] = bad.entries().next().value;
  return { bad: [...bad], message: `driver ${name}: ${reason}`, sound, unit };
}

/** Columns that the file lacks and the user has explained: one recording, a driver per pair. */
function standIn(table, columns) {
  if (columns.recording === "one") {
    table.ids.recording = { names: ["recording"], codes: new Int32Array(table.length) };
  }
  if (columns.follower_id === "pair") table.ids.follower_id = table.ids.pair_id;
}

/** What tables call whom a posterior belongs to. */
function idColumn() {
  return state.model.pool ? "follower" : "pair_id";
}

function calibrateDriver(driver, draws, seed) {
  const { posterior, novelty, model } = state;
  const context = posterior.context(segmentsOf(driver, model, model.dt));
  const random = new RandomStream(seed, "posterior", driver.id);
  const { theta, leakRate } = posterior.sample(context, draws, random);
  const flags = flagsOf(theta, leakRate, context, posterior.prior, novelty);
  return { id: driver.id, driver, theta, flags, summary: summarise(theta, posterior.dim) };
}

/** Mean, standard deviation and quantiles of each parameter. */
function summarise(theta, dim) {
  return Array.from({ length: dim }, (_, i) => {
    const column = new Float64Array(theta.length / dim);
    for (let at = i, k = 0; at < theta.length; at += dim, k++) column[k] = theta[at];
    column.sort();
    const [q05, q50, q95] = [0.05, 0.5, 0.95].map((level) => quantile(column, level));
    return { ...moments(column), q05, q50, q95 };
  });
}

/** The stretches of each pair that a driver's posterior has read: first sample and length. */
function seenStretches(driver) {
  const segments = segmentsOf(driver, state.model, state.model.dt);
  return driver.pairs.map((pair) =>
    segments
      .filter((segment) => (segment.pair ?? driver.pairs[0]) === pair)
      .map(({ start = 0, length }) => [start, length]),
  );
}

function drawFromAll(random) {
  const { dim } = state.posterior;
  const { theta } = state.results[random.integer(state.results.length)];
  const row = random.integer(theta.length / dim);
  return theta.subarray(row * dim, (row + 1) * dim);
}

/** Predictions from the state at `start`, behind the recorded leader, with continued residuals. */
function predictFan(pair, theta, start, draws, seed) {
  const { simulator, model, posterior } = state;
  const stop = Math.min(start + model.horizon + 1, pair.gap.length);
  const leader = pair.leader.subarray(start, stop);
  const count = Math.min(draws, theta.length / posterior.dim);
  const random = new RandomStream(seed, "rollout", pair.id, start);
  const drives = [];
  for (let i = 0; i < count; i++) {
    const own = theta.subarray(i * posterior.dim, (i + 1) * posterior.dim);
    const residual = simulator.residualOf(own, simulator.prefix(own, pair, start, model.prefix));
    drives.push(
      simulator.rollout(own, leader, pair.gap[start], pair.speed[start], () => residual.next(random)),
    );
  }
  const fan = { start };
  for (const name of ["gap", "speed", "acceleration"]) {
    fan[name] = FAN.map(() => new Float64Array(leader.length));
    const column = new Float64Array(count);
    for (let t = 0; t < leader.length; t++) {
      for (let i = 0; i < count; i++) column[i] = drives[i][name][t];
      column.sort();
      FAN.forEach((level, k) => (fan[name][k][t] = quantile(column, level)));
    }
  }
  return fan;
}

self.onmessage = async ({ data: { id, ask, ...rest } }) => {
  let reported = 0;
  const report = (progress) => {
    const now = performance.now();
    if (now - reported < 50) return;
    reported = now;
    self.postMessage({ id, progress });
  };
  try {
    self.postMessage({ id, answer: await ANSWERS[ask](rest, report) });
  } catch (error) {
    if (error instanceof Superseded) {
      self.postMessage({ id, answer: null });
      return;
    }
    const known = error instanceof InputError;
    const message = known ? error.message : `${error.name}: ${error.message}`;
    self.postMessage({ id, error: { message, known, unit: error.unit ?? null } });
  }
};
