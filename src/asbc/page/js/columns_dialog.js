// A question: which column is which, and in which unit.

const STAND_INS = {
  recording: ["one", "(all rows are one recording)"],
  follower_id: ["pair", "(each pair is a driver)"],
};

/**
 * Ask for columns and units; null if the user gave up.
 *
 * @param {{header: string[], columns: Object, units: Object, message: ?string}} found
 */
function askForColumns(found, text) {
  const dialog = byId("columns");
  const rows = [...NEEDED_COLUMNS, ...OPTIONAL_COLUMNS].map((name) => columnRow(name, found));
  const use = element("button", { className: "primary", type: "submit", value: "use" }, "Use these");
  const enough = () => {
    use.disabled = rows.some(({ name, column }) => NEEDED_COLUMNS.includes(name) && column.value === "");
  };
  for (const { column } of rows) column.addEventListener("change", enough);
  enough();
  byId("columns-form").replaceChildren(
    element("h2", {}, "Which column is which?"),
    element("p", {}, text),
    element("div", { className: "rows" }, ...rows.map((row) => row.line)),
    element("div", { className: "buttons" }, element("button", { type: "submit", value: "" }, "Cancel"), use),
  );
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      if (dialog.returnValue !== "use") return resolve(null);
      const columns = {};
      const units = {};
      for (const { name, column, unit } of rows) {
        const value = column.value;
        columns[name] = value === "" ? null : /^\d+$/.test(value) ? Number(value) : value;
        if (unit) units[name] = unit.value;
      }
      resolve({ columns, units });
    };
  });
}

function columnRow(name, { header, columns, units }) {
  const needed = NEEDED_COLUMNS.includes(name);
  const column = element(
    "select",
    { id: `column-${name}` },
    element("option", { value: "" }, needed ? "choose…" : "none"),
  );
  if (STAND_INS[name]) {
    const [value, label] = STAND_INS[name];
    column.append(element("option", { value }, label));
  }
  header.forEach((given, i) => column.append(element("option", { value: String(i) }, given)));
  column.value = columns[name] === null ? (STAND_INS[name]?.[0] ?? "") : String(columns[name]);
  let unit = null;
  if (UNITS[name]) {
    unit = element(
      "select",
      { id: `unit-${name}` },
      ...UNITS[name].map(([label]) => element("option", { value: label }, label)),
    );
    unit.setAttribute("aria-label", `Unit of ${name}`);
    unit.value = units[name];
  }
  const label = element("label", { htmlFor: column.id }, name);
  const line = element("div", { className: "row" }, label, column, ...(unit ? [unit] : []));
  return { name, line, column, unit };
}
