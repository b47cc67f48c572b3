// Whether pairs move as road vehicles do, when read in metres and seconds: asbc.data.plausibility.

const MAX_TIME_STEP = 5;
const MAX_SPEED = 80;
const MAX_GAP = 2000;
const MAX_ACCELERATION = 15;
const SPEED_JITTER = 3;
const GAP_JITTER = 10;
const JITTER_FACTOR = 8;
const MANY_ROWS = 10;
const MANY_SHARE = 0.1;
const WINDOW = 3;
const MOVED = 2;
const MIN_WINDOWS = 8;
const MAX_SLOPE = 2;
const CLEAR = 0.5;
const AGREED = 0.9;
const MAX_MISMATCH = 6;
const SAME_UNIT = 1.4;
const SPEEDS_LOOK = "speed and leader_speed look like";
// The slope that a unit gives, what is said of it, and the unit to choose on this page.
const PROBABLE_UNITS = [
  [1 / 3.6, `${SPEEDS_LOOK} km/h`, "divide both by 3.6", { speed: "km/h", leader_speed: "km/h" }],
  [1 / 2.23694, `${SPEEDS_LOOK} mph`, "divide both by 2.237", { speed: "mph", leader_speed: "mph" }],
  [
    1 / 3.28084,
    `${SPEEDS_LOOK} km/h or ft/s`,
    "divide both by 3.6 or 3.281",
    { speed: "km/h", leader_speed: "km/h" },
  ],
  [1 / 100, `${SPEEDS_LOOK} cm/s`, "divide both by 100", { speed: "cm/s", leader_speed: "cm/s" }],
  [3.28084, "gap looks like feet", "divide it by 3.281", { gap: "ft" }],
  [100, "gap looks like cm", "divide it by 100", { gap: "cm" }],
  [1000, "gap looks like mm", "divide it by 1000", { gap: "mm" }],
];
const TIME_UNITS = [
  ["ms", 1e3, "ms"],
  ["microseconds", 1e6, "µs"],
  ["ns", 1e9, "ns"],
];
const SI_REMEDY = "give time in s (not in frames), gap in m and both speeds in m/s";
const MEND = "mend the row or remove its pair";
const NEW_LEADER = "mend the row, or give each leader its own pair_id";
const BRAKES = `more than a road vehicle can brake or accelerate (${MAX_ACCELERATION} m/s^2)`;

/** What no road vehicle does, worst kind first; `usual` null: this is the whole table. */
function* motionFaults(motion, usual) {
  const whole = usual === null;
  yield* longSteps(motion, whole);
  yield* contradictions(motion, whole);
  yield* outOfRange(motion, whole);
  yield* jumps(motion, usual ?? usualSteps(motion));
}

/** The unit in which a step is short enough for car following. */
function timeUnit(step) {
  return TIME_UNITS.find(([, factor]) => step / factor <= MAX_TIME_STEP);
}

function* longSteps(motion, whole) {
  const long = [...motion.steps.keys()].filter((p) => motion.steps[p] > MAX_TIME_STEP);
  const every = whole && 2 * long.length > motion.steps.length;
  for (const p of long) {
    const step = motion.steps[p];
    const unit = timeUnit(step);
    yield motion.fault(
      every ? null : motion.starts[p],
      `the time step is ${formatG(step)} s`,
      "too long for car following" + (unit ? `: time looks like ${unit[0]}` : ""),
      unit ? `divide time by ${formatG(unit[1])}` : "give time in s",
      unit ? { time: unit[2] } : null,
    );
    if (every) return;
  }
}

/** What the gap and the speeds say of windows of WINDOW seconds that overlap by half. */
function motionWindows(motion) {
  const pair = [];
  const gap = [];
  const speeds = [];
  for (let p = 0; p < motion.starts.length; p++) {
    const longest = Math.max(motion.lengths[p] - 1, 1);
    const wanted = roundHalfEven(WINDOW / Math.max(motion.steps[p], 1e-9));
    const size = Math.min(Math.max(wanted, 1), longest);
    const stride = Math.max(Math.floor(size / 2), 1);
    for (let first = 0; first + size <= motion.lengths[p] - 1; first += stride) {
      const a = motion.starts[p] + first;
      pair.push(p);
      gap.push(motion.gap[a + size] - motion.gap[a]);
      speeds.push(motion.moved[a + size] - motion.moved[a]);
    }
  }
  return { pair, gap, speeds };
}

/** The upper median; NaN of nothing. */
function upperMedian(values) {
  if (values.length === 0) return NaN;
  return Float64Array.from(values).sort()[Math.floor(values.length / 2)];
}

/** How the two witnesses agree in some windows. */
function judgeWindows(gap, speeds) {
  const places = [...gap.keys()];
  const both = places.filter((i) => Math.min(Math.abs(gap[i]), Math.abs(speeds[i])) >= MOVED);
  const either = places.filter((i) => Math.max(Math.abs(gap[i]), Math.abs(speeds[i])) >= MOVED);
  const slope = upperMedian(both.map((i) => gap[i] / speeds[i]));
  const misfit = upperMedian(both.map((i) => Math.abs(gap[i] - slope * speeds[i])));
  const spread = misfit / upperMedian(both.map((i) => Math.abs(gap[i])));
  const mismatch = upperMedian(either.map((i) => Math.abs(gap[i] - speeds[i])));
  const signed = both.filter((i) => Math.sign(gap[i]) === Math.sign(slope * speeds[i])).length;
  const clear = both.length >= MIN_WINDOWS && signed >= AGREED * both.length && spread <= CLEAR;
  return {
    slope,
    wrong: clear && !nearOne(slope),
    mismatch,
    apart: either.length >= MIN_WINDOWS && mismatch > MAX_MISMATCH,
  };
}

/** Gaps that do not change as the speeds say: of the table jointly, else of single pairs. */
function* contradictions(motion, whole) {
  const windows = motionWindows(motion);
  const table = judgeWindows(windows.gap, windows.speeds);
  if (whole && (table.wrong || table.apart)) {
    yield contradiction(motion, table, null);
    return;
  }
  for (let p = 0, from = 0; p < motion.starts.length; p++) {
    let to = from;
    while (to < windows.pair.length && windows.pair[to] === p) to++;
    const verdict = judgeWindows(windows.gap.slice(from, to), windows.speeds.slice(from, to));
    if (verdict.wrong || verdict.apart) yield contradiction(motion, verdict, p);
    from = to;
  }
}

function contradiction(motion, verdict, pair) {
  const from = pair === null ? 0 : motion.starts[pair];
  const to = pair === null ? motion.rows.length : from + motion.lengths[pair];
  const speed = median(motion.speed.subarray(from, to));
  const leader = median(motion.leader_speed.subarray(from, to));
  const { slope } = verdict;
  const at = pair === null ? null : from;
  const changes = `as the gap changes by ${formatG(slope, 3)} times leader_speed - speed`;
  if (!verdict.wrong && Math.min(speed, leader) > 1 && !nearOne(speed / leader)) {
    const what = `speed is ${formatG(speed / leader, 2)} times leader_speed`;
    return motion.fault(at, what, "so that they look like two units", "give both in m/s");
  }
  if (nearOne(-slope)) {
    const what = "speed and leader_speed look exchanged";
    return motion.fault(at, what, changes, "swap the two columns", { swap: true });
  }
  const unit = probableUnit(slope);
  if (unit) return motion.fault(at, unit[1], changes, unit[2], unit[3]);
  const what = "gap, time and speeds do not fit together";
  if (verdict.wrong) return motion.fault(at, what, changes, SI_REMEDY);
  const differ = `as gap and speeds differ by ${formatG(verdict.mismatch, 2)} m in ${WINDOW} s`;
  return motion.fault(at, what, differ, `${SI_REMEDY}, and the speed of the vehicle that the gap is to`);
}

/** Whether a ratio can be that of equal units. */
function nearOne(slope) {
  return slope >= 1 / MAX_SLOPE && slope <= MAX_SLOPE;
}

/** The unit that gives about this slope. */
function probableUnit(slope) {
  if (nearOne(slope) || !(slope > 0)) return null;
  const off = (unit) => Math.abs(Math.log(slope / unit[0]));
  const unit = PROBABLE_UNITS.reduce((best, other) => (off(other) < off(best) ? other : best));
  const ratio = slope / unit[0];
  return ratio > 1 / SAME_UNIT && ratio < SAME_UNIT ? unit : null;
}

/** Values that no road vehicle has: strays by row, many of them as another unit. */
function* outOfRange(motion, whole) {
  const drives = `more than a road vehicle drives (${MAX_SPEED} m/s)`;
  const kmh = { speed: "km/h", leader_speed: "km/h" };
  const rules = [
    ["speed", () => MAX_SPEED, drives, "speeds look like km/h: divide both by 3.6", kmh],
    ["leader_speed", () => MAX_SPEED, drives, "speeds look like km/h: divide both by 3.6", kmh],
    [
      "gap",
      () => MAX_GAP,
      `farther than anybody follows (${MAX_GAP} m)`,
      "gaps look like cm or mm: give them in m",
      { gap: "cm" },
    ],
    [
      "acceleration",
      (i) => MAX_ACCELERATION + SPEED_JITTER / motion.step[i],
      BRAKES,
      "give it in m/s^2",
      null,
    ],
  ];
  for (const [name, limit, why, unitRemedy, unit] of rules) {
    const values = motion[name];
    if (!values) continue;
    const bad = (i) => Math.abs(values[i]) > limit(i);
    let count = 0;
    for (let i = 0; i < values.length; i++) if (bad(i)) count++;
    if (whole && count > Math.max(MANY_ROWS, MANY_SHARE * values.length)) {
      const share = ((100 * count) / values.length).toFixed(0);
      yield motion.fault(null, `${name} is out of range in ${share}% of all rows`, why, unitRemedy, unit);
      continue;
    }
    for (const at of motion.firstPerPair(bad)) {
      const also = why === drives && values[at] < 3.6 * MAX_SPEED;
      const remedy = MEND + (also ? ", or divide both speeds by 3.6 if they are in km/h" : "");
      yield motion.fault(at, `${name} is ${formatG(values[at])}`, why, remedy);
    }
  }
}

/** The change of a column from row to row, beyond what the speeds explain of a gap's. */
function stepSizes(motion, name) {
  const change = motion.change(motion[name]);
  if (name === "gap") {
    const moved = motion.change(motion.moved);
    for (let i = 0; i < change.length; i++) change[i] -= moved[i];
  }
  return change;
}

/** How far speeds and gaps usually are from their neighbour's, by column. */
function usualSteps(motion) {
  const usual = {};
  for (const name of ["speed", "leader_speed", "gap"]) {
    usual[name] = median(stepSizes(motion, name).map(Math.abs));
  }
  return usual;
}

/** Steps between neighbouring rows that neither motion nor jitter explains. */
function* jumps(motion, usual) {
  const rules = [
    ["speed", "m/s", MAX_ACCELERATION, SPEED_JITTER, BRAKES, MEND],
    ["leader_speed", "m/s", MAX_ACCELERATION, SPEED_JITTER, BRAKES, MEND],
    ["gap", "m", 0, GAP_JITTER, "which the speeds do not explain", NEW_LEADER],
  ];
  for (const [name, unit, motor, jitter, why, remedy] of rules) {
    const change = stepSizes(motion, name);
    const allowed = Math.max(jitter, JITTER_FACTOR * usual[name]);
    const bad = (i) => Math.abs(change[i]) > motor * motion.step[i] + allowed;
    for (const at of motion.firstPerPair(bad)) {
      const within = `within ${formatG(motion.step[at], 3)} s`;
      const what = `${name} jumps by ${formatG(change[at], 3)} ${unit} ${within}`;
      yield motion.fault(strayEnd(motion, bad, at), what, why, remedy);
    }
  }
}

/** Which end of a step is astray: a pair's first row has no step of its own to show it. */
function strayEnd(motion, bad, at) {
  const pair = motion.pairOf(at);
  const start = motion.starts[pair];
  const stop = start + motion.lengths[pair];
  return at === start + 1 && at + 1 < stop && !bad(at + 1) ? start : at;
}
