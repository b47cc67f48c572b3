// What is known of a driver, as the segments that the posterior reads: asbc.data.history.

/**
 * Drivers of pairs: a pair each, or, for a model that reads several segments, a follower each.
 *
 * @returns {{drivers: Object[], short: Map<string, string>}} drivers, and why others are left out.
 */
function makeDrivers(pairs, pool, dt) {
  const short = new Map();
  if (!pool) return { drivers: pairs.map((pair) => ({ id: pair.id, pairs: [pair], clock: true })), short };
  const found = new Map();
  for (const pair of pairs) {
    if (!found.has(pair.follower)) found.set(pair.follower, []);
    found.get(pair.follower).push(pair);
  }
  const drivers = [];
  for (const [id, own] of found) {
    const longest = Math.max(...own.map((pair) => pair.gap.length));
    if (longest >= pool.shortest) drivers.push({ id, ...inOrderDriven(own, dt) });
    else {
      short.set(
        id,
        `recorded for ${formatG(longest * dt)} s at a time at the most, but a segment has ` +
          `${formatG(pool.shortest * dt)} s or more; leave this driver out`,
      );
    }
  }
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const key = ({ id, pairs: [{ recording }] }) => [recording, id.slice(recording.length + 1)];
  drivers.sort((a, b) => order(key(a)[0], key(b)[0]) || order(key(a)[1], key(b)[1]));
  return { drivers, short };
}

/** A driver's pairs by time, if their times can be of one clock: no two overlap. Else by name. */
function inOrderDriven(pairs, dt) {
  const byTime = [...pairs].sort((a, b) => a.start - b.start);
  const apart = byTime.slice(1).map((pair, i) => {
    const before = byTime[i];
    return pair.start - (before.start + (before.gap.length - 1) * dt);
  });
  if (apart.every((gap) => gap >= dt / 2)) return { pairs: byTime, clock: true };
  const natural = (name) => name.split(/(\d+)/).map((part, i) => (i % 2 ? Number(part) : part));
  const compare = (a, b) => {
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
      if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
    }
    return a.length - b.length;
  };
  return { pairs: [...pairs].sort((a, b) => compare(natural(a.id), natural(b.id))), clock: false };
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
 * a pool, everything there is, the newest first. Ages are from the latest sample; without a common
 * clock those of other pairs are unknown.
 */
function segmentsOf(driver, model, dt) {
  if (!model.pool) {
    const length = model.context_steps;
    return [{ states: statesOf(driver.pairs[0], 0, length), length, age: 0 }];
  }
  const { steps, shortest, max_segments: most } = model.pool;
  const found = [];
  for (const pair of [...driver.pairs].reverse()) {
    for (const [start, length] of cutSegments(pair.gap.length, steps, shortest))
      found.push({ pair, start, length });
    if (found.length >= most) break;
  }
  const [newest] = found;
  return found.slice(0, most).map(({ pair, start, length }) => {
    const between = pair === newest.pair ? 0 : driver.clock ? newest.pair.start - pair.start : NaN;
    const age = between + (newest.start + newest.length - start - length) * dt;
    return { pair, start, states: statesOf(pair, start, length), length, age };
  });
}
