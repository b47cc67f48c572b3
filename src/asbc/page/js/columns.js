// Which column of a file is which, and in which unit: matched by name, and asked where unsure.

const ID_COLUMNS = ["recording", "pair_id", "follower_id"];
const NUMERIC_COLUMNS = ["time", "gap", "speed", "leader_speed"];
const OPTIONAL_COLUMNS = ["acceleration", "follower_class", "leader_id"];
const NEEDED_COLUMNS = [...ID_COLUMNS, ...NUMERIC_COLUMNS];
const TEXT_COLUMNS = [...ID_COLUMNS, "follower_class", "leader_id"];
const NUMBER_COLUMNS = [...NUMERIC_COLUMNS, "acceleration"];

// Names that others use, in lower case, without units, blanks and underscores.
const SYNONYMS = {
  recording: ["rec", "recordingid", "scene", "session", "trip", "run", "dataset", "location"],
  pair_id: [
    "pair",
    "pairid",
    "id",
    "segment",
    "segmentid",
    "trajectory",
    "trajectoryid",
    "trajid",
    "track",
    "trackid",
    "case",
    "event",
  ],
  follower_id: [
    "follower",
    "driver",
    "driverid",
    "vehicle",
    "vehicleid",
    "vehid",
    "ego",
    "egoid",
    "followerid",
    "fvid",
    "subject",
  ],
  time: ["t", "timestamp", "seconds", "sec", "times", "globaltime"],
  gap: [
    "s",
    "spacing",
    "distance",
    "netgap",
    "headwaydistance",
    "spaceheadway",
    "spacegap",
    "bumpergap",
    "clearance",
    "range",
    "dist",
  ],
  speed: [
    "v",
    "velocity",
    "followerspeed",
    "egospeed",
    "vfollower",
    "followervelocity",
    "ownspeed",
    "vf",
    "vfol",
    "speedfollower",
    "fvspeed",
    "vego",
    "subjectspeed",
  ],
  leader_speed: [
    "vl",
    "vlead",
    "vleader",
    "leaderspeed",
    "leadspeed",
    "leadervelocity",
    "leadvelocity",
    "precedingspeed",
    "frontspeed",
    "lvspeed",
    "speedleader",
    "speedlead",
    "vl",
  ],
  acceleration: ["a", "acc", "accel", "followeracceleration", "afollower"],
  follower_class: ["class", "vehicleclass", "type", "vehicletype"],
  leader_id: ["leader", "lead", "leadid", "precedingid", "preceding", "lvid"],
};

/** Units of a column, the SI unit first: its label and what to multiply by. */
const UNITS = {
  time: [
    ["s", 1],
    ["ms", 1e-3],
    ["µs", 1e-6],
    ["ns", 1e-9],
  ],
  gap: [
    ["m", 1],
    ["ft", 1 / 3.28084],
    ["cm", 0.01],
    ["mm", 0.001],
  ],
  speed: [
    ["m/s", 1],
    ["km/h", 1 / 3.6],
    ["mph", 1 / 2.23694],
    ["ft/s", 1 / 3.28084],
    ["cm/s", 0.01],
  ],
  acceleration: [
    ["m/s²", 1],
    ["ft/s²", 1 / 3.28084],
    ["g", 9.80665],
  ],
};
UNITS.leader_speed = UNITS.speed;

// How a unit may be written at the end of a name.
const UNIT_ENDINGS = [
  [/(km\/?h|kmh|kph|km_h)$/, "km/h"],
  [/(mph|mi\/h)$/, "mph"],
  [/(ft\/?s2?|fps)$/, "ft/s"],
  [/(cm\/s|cmps)$/, "cm/s"],
  [/(m\/s|mps|ms-1)$/, "m/s"],
  [/(^|[_ ([])(ft|feet)$/, "ft"],
  [/(^|[_ ([])cm$/, "cm"],
  [/(^|[_ ([])mm$/, "mm"],
  [/(^|[_ ([])(us|µs)$/, "µs"],
  [/(^|[_ ([])ns$/, "ns"],
  [/(^|[_ ([])(ms|millis|milliseconds)$/, "ms"],
];

/** What a name is without unit, case, blanks and underscores, and the unit that it names. */
function plainName(name) {
  let text = name
    .trim()
    .toLowerCase()
    .replace(/[\])]+$/, "");
  let unit = null;
  for (const [ending, label] of UNIT_ENDINGS) {
    if (ending.test(text)) {
      unit = label;
      text = text.replace(ending, "");
      break;
    }
  }
  return { plain: text.replace(/([_ ([])(m|s|sec)$/, "").replace(/[^a-z0-9]/g, ""), unit };
}

/**
 * A proposal for every column, and whether the user has to be asked.
 *
 * A name as the command wants it, in any case, is certain; a synonym or a unit that a name gives is
 * asked for. A missing recording may be one recording, a missing follower the pair's own.
 *
 * @param {string[]} header
 * @returns {{columns: Object, units: Object, unsure: boolean, missing: string[]}} `columns` has an
 *   index, or null.
 */
function matchColumns(header) {
  const columns = {};
  const units = {};
  let unsure = false;
  const plain = header.map(plainName);
  const taken = new Set();
  const wanted = [...NEEDED_COLUMNS, ...OPTIONAL_COLUMNS];
  const take = (name, test) => {
    if (columns[name] !== undefined) return false;
    const found = header.findIndex((given, i) => !taken.has(i) && test(given, i));
    if (found < 0) return false;
    columns[name] = found;
    taken.add(found);
    return true;
  };
  for (const name of wanted) take(name, (given) => given === name);
  for (const name of wanted) take(name, (given) => given.trim().toLowerCase() === name);
  for (const name of wanted) {
    const known = [name.replace(/_/g, ""), ...SYNONYMS[name]];
    if (take(name, (_, i) => known.includes(plain[i].plain))) unsure = true;
  }
  for (const name of NUMBER_COLUMNS) {
    const unit = columns[name] === undefined ? null : plain[columns[name]].unit;
    const exact = columns[name] !== undefined && header[columns[name]] === name;
    const known = UNITS[name].find(([label]) => label === unit);
    units[name] = !exact && known ? known[0] : UNITS[name][0][0];
    if (units[name] !== UNITS[name][0][0]) unsure = true;
  }
  for (const name of wanted) if (columns[name] === undefined) columns[name] = null;
  const missing = NEEDED_COLUMNS.filter((name) => columns[name] === null);
  return { columns, units, unsure, missing };
}

/** What the command says of a file without these columns. */
function missingMessage(file, missing, header) {
  return (
    `pairs: ${file}: missing column ${missing.join(", ")}; a pairs table needs ` +
    `${NEEDED_COLUMNS.join(", ")} (found ${header.join(", ")})`
  );
}

/** Bring a table to SI units, in place. */
function convertUnits(table, units) {
  for (const [name, unit] of Object.entries(units)) {
    const column = table.numbers[name];
    if (!column) continue;
    const factor = UNITS[name].find(([label]) => label === unit)[1];
    if (factor !== 1) for (let i = 0; i < column.length; i++) column[i] *= factor;
  }
}
