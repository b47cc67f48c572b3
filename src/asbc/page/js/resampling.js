// Pairs at the model's time step: every k-th sample where that fits, else interpolated; what was
// done is counted (asbc.data.resampling and source).

/**
 * Drivers from sound groups of a table, and what was left out or changed: reason -> count.
 *
 * Values are rounded to float32, as the command keeps them.
 */
function makePairs(table, groups, { dt, shortest }) {
  const done = new Map();
  const count = (text) => done.set(text, (done.get(text) ?? 0) + 1);
  const columns = NUMBER_COLUMNS.filter((name) => name !== "time" && table.numbers[name]);
  const pairs = [];
  let short = 0;
  for (const group of groups) {
    const step = timeStep(table, group.rows);
    const fits = !Number.isFinite(step) || dividesStep(step, dt);
    const factor = fits && Number.isFinite(step) ? roundHalfEven(dt / step) : 1;
    if (!fits || factor > 1) {
      count(`pairs of ${formatG(step, 3)} s ${fits ? "thinned" : "interpolated"} to ${formatG(dt)} s`);
    }
    const series = fits
      ? thinned(table, group.rows, columns, factor)
      : interpolated(table, group.rows, columns, dt);
    if (series.gap.length < shortest) short++;
    else pairs.push(asPair(table, group, series, dt));
  }
  if (short) done.set(`segments shorter than ${formatG(shortest * dt)} s`, short);
  return { pairs, drops: done };
}

function asPair(table, group, series, dt) {
  const round = (values) => Float64Array.from(values, Math.fround);
  const speed = series.speed;
  const last = speed.length - 1;
  // The simulator's own convention, v[t + 1] = v[t] + a[t] dt; the last repeats the one before.
  const difference = Float64Array.from(speed, (_, t) => {
    const k = Math.min(t, last - 1);
    return (speed[k + 1] - speed[k]) / dt;
  });
  const { follower_id: follower, follower_class: classes } = table.ids;
  return {
    id: group.name,
    follower: `${group.recording}/${textAt(follower, group.rows[0])}`,
    recording: group.recording,
    followerClass: (classes && textAt(classes, group.rows[0])) ?? "unknown",
    start: table.numbers.time[group.rows[0]],
    gap: round(series.gap),
    speed: round(speed),
    leader: round(series.leader_speed),
    acceleration: round(series.acceleration ?? difference),
  };
}

function thinned(table, rows, columns, factor) {
  const kept = rows.filter((_, i) => i % factor === 0);
  const series = {};
  for (const name of columns) series[name] = kept.map((row) => table.numbers[name][row]);
  return series;
}

function interpolated(table, rows, columns, dt) {
  const recorded = rows.map((row) => table.numbers.time[row]);
  const last = recorded[recorded.length - 1];
  const size = Math.trunc((last - recorded[0]) / dt + 1e-6) + 1;
  const time = Array.from({ length: size }, (_, i) => Math.min(recorded[0] + i * dt, last));
  const series = {};
  for (const name of columns) {
    series[name] = pchip(
      recorded,
      rows.map((row) => table.numbers[name][row]),
      time,
    );
  }
  return series;
}

/** Monotone cubic interpolation (Fritsch and Carlson), as scipy's PchipInterpolator. */
function pchip(x, y, wanted) {
  const n = x.length;
  const h = Array.from({ length: n - 1 }, (_, i) => x[i + 1] - x[i]);
  const slope = h.map((width, i) => (y[i + 1] - y[i]) / width);
  const d = new Float64Array(n);
  for (let i = 1; i < n - 1; i++) {
    if (slope[i - 1] * slope[i] <= 0) continue; // a turning point stays one
    const w1 = 2 * h[i] + h[i - 1];
    const w2 = h[i] + 2 * h[i - 1];
    d[i] = (w1 + w2) / (w1 / slope[i - 1] + w2 / slope[i]);
  }
  d[0] = n > 2 ? endSlope(h[0], h[1], slope[0], slope[1]) : slope[0];
  d[n - 1] = n > 2 ? endSlope(h[n - 2], h[n - 3], slope[n - 2], slope[n - 3]) : slope[0];
  let k = 0;
  return wanted.map((t) => {
    while (k < n - 2 && t >= x[k + 1]) k++;
    const s = (t - x[k]) / h[k];
    const [a, b] = [(1 + 2 * s) * (1 - s) ** 2, s * (1 - s) ** 2];
    const [c, e] = [s * s * (3 - 2 * s), s * s * (s - 1)];
    return a * y[k] + b * h[k] * d[k] + c * y[k + 1] + e * h[k] * d[k + 1];
  });
}

/** The slope at an end: three-point, but of the sign of the first difference and not too steep. */
function endSlope(h0, h1, m0, m1) {
  const d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1);
  if (Math.sign(d) !== Math.sign(m0)) return 0;
  if (Math.sign(m0) !== Math.sign(m1) && Math.abs(d) > 3 * Math.abs(m0)) return 3 * m0;
  return d;
}
