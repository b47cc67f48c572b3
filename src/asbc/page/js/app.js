// The page as a whole: a file comes in, questions are asked, views are filled.

const model = JSON.parse(byId("data-model").textContent);
const prior = new Prior(model.prior);
const assistant = new Assistant();
const seedOf = () => Number(byId("seed").value) || 0;
const ready = assistant.ask("model", { model, tensors: byId("data-tensors").textContent });
const driverView = new DriverView(assistant, model, prior, seedOf);
const playView = new PlayView(assistant, model, prior, seedOf);
const populationView = new PopulationView(assistant, model, prior, seedOf, (index) => {
  select(index);
  openTab("driver");
});
const views = { driver: driverView, population: populationView, play: playView };
let rows = [];
let current = { tab: "driver", index: 0, file: null, found: null };

describeModel();
listen();

/** What the model is, in words. */
function describeModel() {
  const { card } = model;
  const lines = Object.entries(card.lines).map(([name, text]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, text)),
  );
  const limits = card.limits.map((text) => element("p", { className: "hint" }, text));
  const kind = model.predictive
    ? [element("p", {}, "Trained to predict recorded drivers: its draws are no posterior of the simulator.")]
    : [];
  byId("card-body").append(element("b", {}, card.title), ...kind, element("dl", {}, ...lines), ...limits);
  const least = model.pool ? model.pool.shortest : model.context_steps;
  const more = model.pool ? " at a time, and all there is" : "";
  byId("shortest").textContent = `${formatG(least * model.dt)} s of a driver${more}`;
  byId("version").textContent = model.version;
}

function listen() {
  const input = byId("file");
  input.addEventListener("change", () => input.files.length && openFile(input.files[0]));
  byId("example").addEventListener("click", () => openExample());
  byId("again").addEventListener("click", () => {
    input.value = "";
    input.click();
  });
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      byId("drop").classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files.length) openFile(event.dataTransfer.files[0]);
    });
  }
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => openTab(tab.id.replace("tab-", "")));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = tabs[(i + move + tabs.length) % tabs.length];
      next.focus();
      next.click();
    });
  });
  byId("drivers").addEventListener("change", () => select(Number(byId("drivers").value)));
  byId("search").addEventListener("input", fillList);
  const narrow = matchMedia("(max-width: 760px)");
  const resize = () => (byId("drivers").size = narrow.matches ? 1 : 14);
  narrow.addEventListener("change", resize);
  resize();
  for (const id of ["draws", "seed"]) byId(id).addEventListener("change", () => rows.length && calibrate());
  document.addEventListener("click", (event) => {
    for (const details of document.querySelectorAll("header details[open]")) {
      if (!details.contains(event.target)) details.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape")
      for (const details of document.querySelectorAll("header details[open]")) details.open = false;
  });
}

function openExample() {
  const text = JSON.parse(byId("data-example").textContent);
  return openFile(new File([text], "example.csv", { type: "text/csv" }));
}

/** Show one of the page's states: start, progress or results. */
function showOnly(part) {
  for (const id of ["start", "progress", "results"]) byId(id).hidden = id !== part;
  byId("again").hidden = part !== "results";
  document.body.dataset.state = part;
}

function report({ reading, checking, calibrated, of }) {
  const bar = byId("progress-bar");
  const text = byId("progress-text");
  if (checking) text.textContent = "Checking that it moves as traffic does";
  else if (reading !== undefined) text.textContent = `Reading: ${(100 * reading).toFixed(0)}%`;
  else text.textContent = `${calibrated} of ${of} drivers calibrated`;
  if (checking) bar.removeAttribute("value");
  else bar.value = reading ?? calibrated / of;
}

/** A file: columns first, then its rows. */
async function openFile(file) {
  byId("message").hidden = true;
  byId("progress-text").textContent = `Opening ${file.name}`;
  byId("progress-bar").value = 0;
  showOnly("progress");
  try {
    await ready;
    const found = await assistant.ask("header", { file });
    current = { ...current, file, found };
    if (!found.missing.length && !found.unsure) return await readFile(found.columns, found.units);
    showOnly("start");
    if (found.message && found.missing.some((name) => !STAND_INS[name]))
      say(found.message, [["Choose the columns", chooseColumns]]);
    await chooseColumns();
  } catch (error) {
    fail(error);
  }
}

/** Ask for columns and units, beginning with what is known. */
async function chooseColumns() {
  const { file, found } = current;
  const text =
    found.message ??
    `The names in ${file.name} are not quite those of a pairs table. Please check them and the units.`;
  const chosen = await askForColumns(found, text);
  if (!chosen) return;
  Object.assign(found, chosen);
  await readFile(chosen.columns, chosen.units);
}

async function readFile(columns, units, skip = false) {
  byId("message").hidden = true;
  showOnly("progress");
  const { file, found } = current;
  try {
    const read = await assistant.ask("read", { file, header: found.header, columns, units, skip }, report);
    if (!read) return; // another file was opened meanwhile
    if (read.bad) {
      refuse(read, columns, units);
      return;
    }
    current.read = read;
    await calibrate();
  } catch (error) {
    fail(error, columns, units);
  }
}

/** Drivers that cannot be used: left out, or put right by a unit. */
function refuse({ bad, message, sound, unit }, columns, units) {
  showOnly("start");
  const whom = bad.length === 1 ? "this driver" : `these ${bad.length} drivers`;
  const actions = [...mendActions(unit, columns, units), ["Columns and units", chooseColumns]];
  if (sound) actions.unshift([`Leave out ${whom} and go on`, () => readFile(columns, units, true)]);
  const others = bad.slice(0, MOST_NAMED).map(([name, reason]) => `${name}: ${reason}`);
  say(message, actions, bad.length > 1 ? others : []);
}

/** A mistake in the words of the command, with what would mend it. */
function fail(error, columns, units) {
  showOnly("start");
  if (!error.known) {
    say(`${error.message}. This is a mistake of the page, not of the file; please report it.`);
    return;
  }
  const actions = columns ? [["Columns and units", chooseColumns]] : [];
  say(error.message, [...mendActions(error.unit, columns, units), ...actions]);
}

/** What to do about a unit that was probably meant, or columns that were exchanged. */
function mendActions(unit, columns, units) {
  if (!unit) return [];
  const { swap, ...named } = unit;
  const swapped = { ...columns, speed: columns.leader_speed, leader_speed: columns.speed };
  const next = { columns: swap ? swapped : columns, units: { ...units, ...named } };
  const words = `Read ${Object.keys(named).join(" and ")} in ${Object.values(named)[0]}`;
  const act = () => {
    Object.assign(current.found, next);
    readFile(next.columns, next.units);
  };
  return [[swap ? "Swap the two columns" : words, act]];
}

async function calibrate() {
  showOnly("progress");
  try {
    const draws = Math.min(Math.max(Number(byId("draws").value) || 500, 2), 5000);
    const done = await assistant.ask("calibrate", { draws, seed: seedOf() }, report);
    if (!done) return;
    rows = done.rows;
    byId("outcome").textContent = outcomeWords(current.file.name, current.read, rows, done.seconds);
    showOnly("results");
    byId("search").value = "";
    current.index = 0;
    fillList();
    const population = populationView.show(rows);
    await select(0);
    await population;
    openTab(current.tab);
    document.body.dataset.done = String(Number(document.body.dataset.done ?? 0) + 1);
  } catch (error) {
    fail(error);
  }
}

function fillList() {
  const wanted = byId("search").value.trim().toLowerCase();
  const options = [];
  rows.forEach((row, i) => {
    if (!row.id.toLowerCase().includes(wanted)) return;
    options.push(
      element(
        "option",
        { value: String(i), selected: i === current.index },
        `${row.flags.flagged ? "⚠ " : ""}${row.id}`,
      ),
    );
  });
  byId("drivers").replaceChildren(...options);
}

async function select(index) {
  current.index = index;
  byId("drivers").value = String(index);
  await Promise.all([driverView.show(index), playView.show(index)]);
}

function openTab(name) {
  current.tab = name;
  for (const tab of document.querySelectorAll('[role="tab"]')) {
    const own = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(own));
    tab.tabIndex = own ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !own;
  }
  if (name !== "play") playView.pause();
  byId("list").hidden = name === "population";
  document.querySelector(".with-list").classList.toggle("alone", name === "population");
  views[name].refresh();
}
