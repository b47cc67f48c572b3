// One driver: flags in words, the trajectory with its fan, marginals and pairs.

const FAN_DRAWS = 200;

/** What a driver's flags say. */
function flagWords(flags, prior) {
  const words = [];
  if (flags.unlike_training) {
    words.push(
      "Unlike what the model was trained on: farther from the simulated drivers than 99% of them, " +
        "so nobody has checked this posterior.",
    );
  }
  if (flags.leak_rate > LEAKY) {
    const share = (100 * flags.leak_rate).toFixed(0);
    words.push(`${share}% of the draws fell outside the prior's range and were drawn again.`);
  }
  for (const lean of flags.at_bound.split(" ").filter(Boolean)) {
    const [name, side] = lean.split(":");
    const marginal = prior.marginals.find((m) => m.name === name);
    const end = side === "low" ? marginal.low : marginal.high;
    const bound = `${side === "low" ? "lower" : "upper"} bound of ${three(end)} ${unitOf(marginal)}`;
    words.push(
      `${symbolOf(name)} (${meaningOf(marginal)}) leans against its ${bound}: the truth may lie beyond.`,
    );
  }
  return words;
}

/** The panel of one driver. */
class DriverView {
  constructor(assistant, model, prior, seedOf) {
    Object.assign(this, { assistant, model, prior, seedOf, index: -1, driver: null, which: 0 });
    this.trajectory = new TrajectoryChart(byId("trajectory"), model.dt);
    this.corner = new CornerChart(byId("corner"), prior, "blue");
    this.marginals = prior.marginals.map((marginal, i) => this.marginal(marginal, i));
    byId("horizon").textContent = `${three(model.horizon * model.dt)} s`;
    fillLegend("trajectory-legend", [
      ["recorded", "ink"],
      ["leader", "grey", "dashed"],
      ["read by the model", "blue-wash", "wash"],
      ...(model.simulator ? [["predicted: median, 50%, 95%", "blue", "wash"]] : []),
    ]);
    fillLegend("marginal-legend", [
      ["posterior", "blue"],
      ["prior", "grey", "dashed"],
    ]);
    this.ask = latestOnly((moment) => this.predict(moment));
    this.listen();
  }

  marginal(marginal, i) {
    const canvas = element("canvas");
    const value = element("span", { className: "value" });
    const range = element("small");
    byId("marginals").append(
      element(
        "div",
        { className: "marginal" },
        element("div", {}, element("b", {}, symbolOf(marginal.name)), ` ${meaningOf(marginal)}`),
        canvas,
        value,
        range,
      ),
    );
    canvas.setAttribute("role", "img");
    return { chart: new DensityChart(canvas, this.prior, i), canvas, value, range };
  }

  listen() {
    const canvas = byId("trajectory");
    const slider = byId("moment");
    const follow = (event) => {
      if (!this.driver) return;
      this.move(this.trajectory.sampleAt(event.clientX - canvas.getBoundingClientRect().left));
    };
    canvas.addEventListener("pointermove", follow);
    canvas.addEventListener("pointerdown", follow);
    slider.addEventListener("input", () => {
      this.trajectory.scroll(Number(slider.value));
      this.move(Number(slider.value));
    });
    byId("pair").addEventListener("change", () => this.choosePair(Number(byId("pair").value)));
  }

  /** Show the driver at `index`. */
  async show(index) {
    this.index = index;
    const driver = await this.assistant.ask("driver", { index });
    if (index !== this.index) return;
    this.driver = driver;
    byId("driver-title").textContent = `Driver ${driver.id}`;
    const words = flagWords(driver.flags, this.prior);
    byId("flags").replaceChildren(
      ...(words.length
        ? words.map((text) => element("li", {}, text))
        : [element("li", { className: "fine" }, "Nothing asks for special care.")]),
    );
    this.prior.marginals.forEach((marginal, i) => {
      const { chart, canvas, value, range } = this.marginals[i];
      const { q05, q50, q95 } = driver.summary[i];
      chart.show(columnOf(driver.theta, this.prior.dim, i));
      value.textContent = `${three(q50)} ${unitOf(marginal)}`;
      range.textContent = `90%: ${three(q05)} to ${three(q95)}`;
      canvas.setAttribute("aria-label", `Density of ${marginal.name}: median ${three(q50)}`);
    });
    this.corner.show(driver.theta);
    const choices = driver.pairs.map((pair, i) => element("option", { value: String(i) }, pair.id));
    byId("pair").replaceChildren(...choices);
    byId("pair-choice").hidden = driver.pairs.length < 2;
    this.choosePair(0);
  }

  choosePair(which) {
    this.which = which;
    const pair = this.driver.pairs[which];
    const seen = this.driver.seen[which];
    byId("moment").max = String(pair.gap.length - 1);
    this.trajectory.show(pair, seen);
    const last = pair.gap.length - 1;
    // The first moment of which the model has not read what comes.
    const [first, length] = seen[0] ?? [0, 0];
    this.move(Math.max(0, Math.min(first + length, last - this.model.horizon)));
  }

  /** Go to a sample: the cursor at once, the fan when it is computed. */
  move(sample) {
    byId("moment").value = String(sample);
    byId("moment-text").textContent = `${(sample * this.model.dt).toFixed(1)} s`;
    this.trajectory.predict(sample, this.trajectory.fan);
    if (this.model.simulator) this.ask(sample);
    else byId("fan-text").textContent = this.model.no_predictions;
  }

  async predict(sample) {
    const { index, which } = this;
    const seed = this.seedOf();
    const fan = await this.assistant.ask("fan", {
      index,
      pair: which,
      start: sample,
      draws: FAN_DRAWS,
      seed,
    });
    if (index !== this.index || which !== this.which) return;
    this.trajectory.predict(Number(byId("moment").value), fan);
    byId("fan-text").textContent = this.reading(fan);
  }

  /** What the fan says at its end. */
  reading(fan) {
    const { dt } = this.model;
    const end = fan.gap[0].length - 1;
    if (end < 1) return "The recording ends here.";
    const pair = this.driver.pairs[this.which];
    const at = (name, k) => three(fan[name][k][end]);
    const recorded = fan.start + end;
    return (
      `In ${three(end * dt)} s the gap is expected at ${at("gap", 2)} m (95%: ${at("gap", 0)} to ${at("gap", 4)}), ` +
      `recorded ${three(pair.gap[recorded])} m; the speed at ${at("speed", 2)} m/s ` +
      `(${at("speed", 0)} to ${at("speed", 4)}), recorded ${three(pair.speed[recorded])} m/s.`
    );
  }

  /** Draw what a hidden panel could not. */
  refresh() {
    for (const chart of [this.trajectory, this.corner, ...this.marginals.map((m) => m.chart)]) chart.resize();
  }
}
