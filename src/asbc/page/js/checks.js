// The checks of a pairs table, in the command's words: asbc.data.table and sound_pairs.

const TIME_TOLERANCE = 0.01;
const COARSEST = 0.5; // s: samples farther apart say too little of what happened between them

/** Rows by pair, pairs in the order in which they come; those without a name are one, "nan". */
function groupRows(table) {
  const { recording, pair_id: pair } = table.ids;
  const groups = new Map();
  for (let row = 0; row < table.length; row++) {
    const named = recording.codes[row] >= 0 && pair.codes[row] >= 0;
    const key = named ? recording.codes[row] * pair.names.length + pair.codes[row] : -1;
    let group = groups.get(key);
    if (!group) {
      const own = { recording: textAt(recording, row), pair: textAt(pair, row), rows: [] };
      group = { ...own, name: named ? `${own.recording}/${own.pair}` : "nan" };
      groups.set(key, group);
    }
    group.rows.push(row);
  }
  return [...groups.values()];
}

/** A cell of a text column; null: empty. */
function textAt(column, row) {
  return column.codes[row] < 0 ? null : column.names[column.codes[row]];
}

/** A row for messages: line, pair and time. */
function describeRow(table, row) {
  const { recording, pair_id: pair } = table.ids;
  const time = formatG(table.numbers.time[row]);
  return (
    `line ${table.lines[row]} (recording ${textAt(recording, row)}, pair ` +
    `${textAt(pair, row)}, time ${time})`
  );
}

/** What is wrong with the format of a pair's cells; null: nothing. */
function cellDefect(table, rows, source) {
  for (const name of [...ID_COLUMNS, "leader_id"]) {
    const column = table.ids[name];
    if (name === "leader_id") {
      const wrong = numberDefect(table, rows, source);
      if (wrong) return wrong;
    }
    if (!column) continue;
    const row = rows.find((i) => column.codes[i] < 0);
    if (row !== undefined) {
      return `${source}: ${name} is empty at line ${table.lines[row]}; every row needs one (a truncated file?)`;
    }
  }
  return null;
}

function numberDefect(table, rows, source) {
  for (const name of NUMBER_COLUMNS) {
    const column = table.numbers[name];
    if (!column) continue;
    const row = rows.find((i) => !Number.isFinite(column[i]));
    if (row !== undefined) {
      const shown = table.notes.get(row)?.[name] ?? formatG(column[row]);
      return (
        `${source}: ${name} is ${shown} at line ${table.lines[row]}, expected a finite number; ` +
        "fill or remove it (a truncated file?)"
      );
    }
  }
  return null;
}

const VALUE_RULES = [
  ["gap", (v) => v <= 0, "positive: net distance, leader's rear to follower's front"],
  ["speed", (v) => v < 0, ">= 0: flip the sign for traffic that drives to -x"],
  ["leader_speed", (v) => v < 0, ">= 0: flip the sign for traffic to -x"],
];

/** What is wrong with a pair's values, ids and times, rows in the order of time. */
function valueDefect(table, rows, source) {
  for (const [name, invalid, remedy] of VALUE_RULES) {
    const column = table.numbers[name];
    const row = rows.find((i) => invalid(column[i]));
    if (row !== undefined) {
      return (
        `${source}: ${name} is ${formatG(column[row])} at ${describeRow(table, row)}, expected ` +
        `${remedy}; mend or remove the pair`
      );
    }
  }
  for (const name of ["follower_id", "leader_id"]) {
    const column = table.ids[name];
    if (!column) continue;
    const row = rows.find((i) => column.codes[i] !== column.codes[rows[0]]);
    if (row !== undefined) {
      return (
        `${source}: ${name} changes from ${textAt(column, rows[0])} to ${textAt(column, row)} at ` +
        `${describeRow(table, row)}; give each leader-follower segment its own pair_id`
      );
    }
  }
  return timeDefect(table, rows, source);
}

/** The mean time step of a pair; NaN of one row. */
function timeStep(table, rows) {
  const { time } = table.numbers;
  return (time[rows[rows.length - 1]] - time[rows[0]]) / (rows.length - 1);
}

function timeDefect(table, rows, source) {
  const { time } = table.numbers;
  const step = timeStep(table, rows);
  const change = rows.map((row, i) => (i ? time[row] - time[rows[i - 1]] : NaN));
  const repeated = rows.findIndex((_, i) => i > 0 && !(change[i] > TIME_TOLERANCE * step));
  if (repeated >= 0) {
    return (
      `${source}: duplicate (pair, time) at ${describeRow(table, rows[repeated])}; each pair_id ` +
      "holds one leader and one follower, each time once"
    );
  }
  if (rows.some((_, i) => i > 0 && !(Math.abs(change[i] - step) <= TIME_TOLERANCE * step))) {
    // The odd step is the one farthest from the pair's usual step.
    const usual = median(change.slice(1));
    let odd = 1;
    for (let i = 2; i < rows.length; i++) {
      if (Math.abs(change[i] - usual) > Math.abs(change[odd] - usual)) odd = i;
    }
    return (
      `${source}: non-constant time step, ${formatG(change[odd])} s before ` +
      `${describeRow(table, rows[odd])} but ${formatG(usual)} s elsewhere; resample the pair or ` +
      "give the parts different pair_ids"
    );
  }
  return null;
}

/** Whether `dt` is a whole multiple of a step, up to the rounding of time stamps. */
function dividesStep(step, dt) {
  const factor = roundHalfEven(dt / step);
  return factor >= 1 && Math.abs(factor * step - dt) <= TIME_TOLERANCE * step;
}

/** As numpy rounds. */
function roundHalfEven(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 === 0 ? below : below + 1;
}

function stepDefect(table, group, source, dt) {
  const step = timeStep(table, group.rows);
  if (!Number.isFinite(step)) return null; // one row: too short to keep anyway
  if (!(step > COARSEST * (1 + TIME_TOLERANCE)) || dividesStep(step, dt)) return null;
  return (
    `${source}: recording ${group.recording}, pair ${group.pair}: the recorded time step is ` +
    `${formatG(step)} s, too coarse for data.dt=${formatG(dt)} s; expected at most ` +
    `${formatG(COARSEST)} s`
  );
}

/** Rows in the order of time, stably. */
function sortByTime(table, rows) {
  const { time } = table.numbers;
  for (let i = 1; i < rows.length; i++) {
    if (time[rows[i]] < time[rows[i - 1]]) return rows.sort((a, b) => time[a] - time[b]);
  }
  return rows;
}

/**
 * The pairs that can be used, in the order of their names, and what is wrong with each other pair.
 *
 * @returns {{groups: Object[], bad: Map<string, string>, unit: ?Object}} and a unit that would mend them all.
 * @throws {TableError} if something is wrong with the table as a whole.
 */
function soundPairs(table, source, dt) {
  if (table.length === 0) {
    throw new TableError(`${source}: no rows; a pairs table needs at least one pair`);
  }
  const bad = new Map();
  const readable = [];
  let coarse = 0;
  for (const group of groupRows(table)) {
    let wrong = cellDefect(table, group.rows, source);
    if (!wrong) {
      sortByTime(table, group.rows);
      wrong = valueDefect(table, group.rows, source);
      if (!wrong) {
        wrong = stepDefect(table, group, source, dt);
        if (wrong) coarse = timeStep(table, group.rows);
      }
    }
    if (wrong) bad.set(group.name, wrong);
    else readable.push(group);
  }
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  readable.sort((a, b) => order(a.recording, b.recording) || order(a.pair, b.pair));
  // Steps of minutes in all of a table are milliseconds.
  const unit = readable.length || coarse <= MAX_TIME_STEP ? null : timeUnit(coarse);
  if (readable.length === 0) return { groups: [], bad, unit: unit && { time: unit[2] } };
  const motion = new Motion(table, readable);
  for (const fault of motionFaults(motion, null)) {
    if (fault.row === null) throw new TableError(faultMessage(table, fault, source), fault.unit);
  }
  const unsound = new Set();
  for (const fault of motionFaults(motion, usualSteps(motion))) {
    const group = readable[motion.pairOf(fault.at)];
    unsound.add(group);
    if (!bad.has(group.name)) bad.set(group.name, faultMessage(table, fault, source));
  }
  return { groups: readable.filter((group) => !unsound.has(group)), bad, unit: null };
}

/** The command's sentence about a fault. */
function faultMessage(table, { row, what, why, remedy }, source) {
  const where = row === null ? "" : ` at ${describeRow(table, row)}`;
  return `${source}: ${what}${where}, ${why}; ${remedy}`;
}
