// All drivers: the population, a table that sorts, and files to download.

const FIRST_ROWS = 200;

/** The panel of all drivers. */
class PopulationView {
  constructor(assistant, model, prior, seedOf, choose) {
    Object.assign(this, {
      assistant,
      model,
      prior,
      seedOf,
      choose,
      rows: [],
      sort: { key: null, down: false },
      all: false,
    });
    this.chart = new CornerChart(byId("population"), prior, "green");
    for (const button of document.querySelectorAll("[data-file]")) {
      button.addEventListener("click", () => this.download(button));
    }
    document.querySelector('[data-file="sumo"]').hidden = !model.sumo;
    byId("more").addEventListener("click", () => {
      this.all = true;
      this.fill();
    });
  }

  async show(rows, name) {
    Object.assign(this, { rows, name, all: false, sort: { key: null, down: false } });
    this.fill();
    const { theta } = await this.assistant.ask("population");
    this.chart.show(theta);
  }

  /** Columns of the table: title, value to sort by, and what is shown. */
  columns() {
    const parameters = this.prior.marginals.map((marginal, i) => ({
      key: marginal.name,
      title: `${symbolOf(marginal.name)}${unitOf(marginal) ? ` (${unitOf(marginal)})` : ""}`,
      value: (row) => row.summary[i].q50,
      cell: (row) => {
        const { q05, q50, q95 } = row.summary[i];
        return [three(q50), element("small", {}, ` ${three(q05)}–${three(q95)}`)];
      },
    }));
    return [
      { key: "id", title: "driver", value: (row) => row.id, cell: (row) => [this.link(row)] },
      { key: "duration", title: "s", value: (row) => row.duration, cell: (row) => [three(row.duration)] },
      {
        key: "flags",
        title: "care",
        value: (row) => this.careWords(row).length,
        cell: (row) => [this.careWords(row)],
      },
      ...parameters,
    ];
  }

  careWords({ flags }) {
    const words = [];
    if (flags.unlike_training) words.push("unlike training");
    if (flags.leak_rate > LEAKY) words.push("leaks");
    if (flags.at_bound) words.push(flags.at_bound);
    return words.join(", ");
  }

  link(row) {
    const button = element("button", { type: "button", title: row.id }, row.id);
    button.addEventListener("click", () => this.choose(this.rows.indexOf(row)));
    return button;
  }

  fill() {
    const columns = this.columns();
    const { key, down } = this.sort;
    const by = columns.find((column) => column.key === key);
    const rows = [...this.rows];
    if (by) {
      rows.sort((a, b) => (by.value(a) < by.value(b) ? -1 : by.value(a) > by.value(b) ? 1 : 0));
      if (down) rows.reverse();
    }
    const shown = this.all ? rows : rows.slice(0, FIRST_ROWS);
    const head = columns.map((column) => {
      const button = element("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.sortBy(column.key));
      const cell = element("th", { scope: "col" }, button);
      if (column.key === key) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      return cell;
    });
    byId("table").replaceChildren(
      element("thead", {}, element("tr", {}, ...head)),
      element(
        "tbody",
        {},
        ...shown.map((row) =>
          element(
            "tr",
            { className: row.flags.flagged ? "flagged" : "" },
            ...columns.map((column) => element("td", {}, ...column.cell(row))),
          ),
        ),
      ),
    );
    byId("more").hidden = shown.length === rows.length;
    byId("more").textContent = `Show all ${rows.length} drivers`;
  }

  sortBy(key) {
    this.sort = { key, down: this.sort.key === key && !this.sort.down };
    this.fill();
  }

  async download(button) {
    const kind = button.dataset.file;
    const names = { draws: "draws.csv", summary: "summary.csv", sumo: "drivers.add.xml" };
    button.disabled = true;
    const content = await this.assistant.ask("file", { kind, seed: this.seedOf() });
    const link = element("a", { href: URL.createObjectURL(content), download: names[kind] });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    button.disabled = false;
  }

  refresh() {
    this.chart.resize();
  }
}
