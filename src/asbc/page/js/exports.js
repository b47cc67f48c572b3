// Files to download: draws and summary as asbc.calibration.export.tables has them, drivers as SUMO
// vehicle types as asbc.calibration.export.sumo writes them.

const SCHEMA = "http://sumo.dlr.de/xsd/additional_file.xsd";
const SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance";
// v_des = min(maxSpeed, lane limit * speedFactor): with this factor no realistic limit binds.
const UNLIMITED = "10";

/** A cell of a CSV file, in quotes where it needs them. */
function csvCell(value) {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Nine digits: what a float32 needs to survive. */
function nineDigits(value) {
  return formatG(value, 9);
}

/** A row per driver and draw, as pieces of text. */
function drawsCsv(results, prior, idColumn) {
  const parts = [`${[idColumn, "draw", ...prior.marginals.map((m) => m.name)].join(",")}\n`];
  for (const { id, theta } of results) {
    const name = csvCell(id);
    const lines = [];
    for (let at = 0, draw = 0; at < theta.length; at += prior.dim, draw++) {
      const values = Array.from(theta.subarray(at, at + prior.dim), nineDigits);
      lines.push(`${name},${draw},${values.join(",")}\n`);
    }
    parts.push(lines.join(""));
  }
  return parts;
}

/** A row per driver and parameter. */
function summaryCsv(results, prior, idColumn) {
  const parts = [`${idColumn},parameter,unit,mean,sd,q05,q50,q95\n`];
  for (const { id, summary } of results) {
    prior.marginals.forEach(({ name, unit }, i) => {
      const { mean, sd, q05, q50, q95 } = summary[i];
      const cells = [id, name, unit, ...[mean, sd, q05, q50, q95].map(nineDigits)];
      parts.push(`${cells.map(csvCell).join(",")}\n`);
    });
  }
  return parts;
}

/** New drivers, whole rows of the pooled draws, as an additional file for SUMO. */
function sumoXml(drivers, prior, types) {
  const names = prior.marginals.map((m) => m.name);
  const known = Object.keys(types.attributes);
  const residual = names.filter((name) => !known.includes(name));
  const lost = residual.length
    ? ` Without an equivalent in SUMO, kept as comments: ${residual.join(", ")}.`
    : "";
  const lines = [
    "<?xml version='1.0' encoding='utf-8'?>",
    `<additional xmlns:xsi="${SCHEMA_INSTANCE}" xsi:noNamespaceSchemaLocation="${SCHEMA}">`,
    `    <!-- Drivers drawn jointly from calibrated posteriors, one vType each.${lost} Run SUMO with ` +
      `step-length ${formatG(types.step_length)}. Change types in this file, not at run time: SUMO ` +
      "computes sqrt(accel * decel) once. -->",
    `    <vTypeDistribution id="${types.distribution}">`,
  ];
  const digits = String(drivers.length - 1).length;
  drivers.forEach((theta, index) => {
    const driver = Object.fromEntries(names.map((name, i) => [name, theta[i]]));
    if (residual.length) {
      const values = residual.map((name) => `${name}=${nineDigits(driver[name])}`);
      lines.push(`        <!-- residual, not in SUMO: ${values.join(" ")} -->`);
    }
    const id = `${types.distribution}.${String(index).padStart(digits, "0")}`;
    const text = Object.entries(typeAttributes(id, driver, types)).map(([k, v]) => `${k}="${v}"`);
    lines.push(`        <vType ${text.join(" ")} />`);
  });
  lines.push("    </vTypeDistribution>", "</additional>");
  return lines.join("\n");
}

function typeAttributes(id, driver, types) {
  const own = {};
  for (const [name, attribute] of Object.entries(types.attributes)) {
    const sign = attribute.startsWith("-") ? -1 : 1;
    own[attribute.replace(/^-/, "")] = nineDigits(sign * driver[name]);
  }
  if (types.emergency_decel) {
    own.emergencyDecel = nineDigits(Math.max(types.emergency_decel, driver.b));
  }
  const fixed = Object.entries(types.fixed).map(([name, value]) => [name, nineDigits(value)]);
  return {
    id,
    vClass: types.vehicle_class,
    length: nineDigits(types.length),
    carFollowModel: types.model,
    ...own,
    ...Object.fromEntries(fixed),
    speedFactor: UNLIMITED,
    speedDev: "0", // the heterogeneity is in the types already
  };
}
