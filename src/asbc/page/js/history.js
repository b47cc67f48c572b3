// What is known of a driver, as the segments that the posterior reads: asbc.data.history.

/** Drivers of pairs: a pair each, or, for a model that reads several segments, a follower each. */
function makeDrivers(pairs, pool) {
  if (!pool) return pairs.map((pair) => ({ id: pair.id, pairs: [pair] }));
  const drivers = new Map();
  for (const pair of pairs) {
    if (!drivers.has(pair.follower)) drivers.set(pair.follower, { id: pair.follower, pairs: [] });
    drivers.get(pair.follower).pairs.push(pair);
  }
  return [...drivers.values()];
}

/** Start and length of the segments of samples 0 .. end - 1, the newest first. */
function cutSegments(end, steps, shortest) {
  const pieces = [];
  let stop = end;
  for (; stop >= steps; stop -= steps) pieces.push([stop - steps, steps]);
  if (stop >= shortest) pieces.push([0, stop]);
  return pieces;
}

/** Gap, speed and approach rate of some samples of a pair, (length, 3), float32 as in Python. */
function statesOf(pair, start, length) {
  const states = new Float64Array(3 * length);
  for (let t = 0; t < length; t++) {
    states[3 * t] = pair.gap[start + t];
    states[3 * t + 1] = pair.speed[start + t];
    states[3 * t + 2] = Math.fround(pair.speed[start + t] - pair.leader[start + t]);
  }
  return states;
}

/**
 * The segments behind a driver's posterior: the first of the context's length, or, for a model with
 * a pool, everything there is, the newest first.
 */
function segmentsOf(driver, model, dt) {
  if (!model.pool) {
    return [{ states: statesOf(driver.pairs[0], 0, model.context_steps), length: model.context_steps, age: 0 }];
  }
  const { steps, shortest, max_segments: most } = model.pool;
  const found = [];
  const drives = [...driver.pairs].reverse();
  for (const pair of drives) {
    const last = pair.gap.length;
    for (const [start, length] of cutSegments(last, steps, shortest)) {
      const newest = found.length === 0 || found[0].pair === pair;
      const age = newest ? (last - start - length) * dt : NaN;
      found.push({ pair, states: statesOf(pair, start, length), length, age });
    }
    if (found.length >= most) break;
  }
  return found.slice(0, most);
}
