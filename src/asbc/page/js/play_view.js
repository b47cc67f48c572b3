// Play: drivers live behind a leader, recorded or drawn by hand, with sliders for theta.

const HAND_SECONDS = 60;
const MOST_SECONDS = 180; // of a recorded leader
const TEN = 10;

/** The panel where drivers drive. */
class PlayView {
  constructor(assistant, model, prior, seedOf) {
    Object.assign(this, {
      assistant,
      model,
      prior,
      seedOf,
      driver: null,
      index: -1,
      theta: null,
      running: false,
      drawn: 0,
      cursor: null,
    });
    byId("play-note").hidden = Boolean(model.simulator);
    byId("play-note").textContent = model.no_predictions;
    byId("play-body").hidden = !model.simulator;
    if (!model.simulator) return;
    this.simulator = new Simulator(model.simulator);
    this.road = new RoadChart(byId("road"));
    this.speeds = new SpeedChart(byId("speeds"), model.dt);
    this.sliders = prior.marginals.map((marginal, i) => this.slider(marginal, i));
    this.hand = null;
    this.listen();
  }

  slider(marginal, i) {
    const canvas = element("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const input = element("input", {
      type: "range",
      min: "0",
      max: "1000",
      step: "1",
      id: `theta-${marginal.name}`,
    });
    const value = element("span");
    const name = element(
      "label",
      { htmlFor: input.id },
      element("b", {}, symbolOf(marginal.name)),
      ` ${meaningOf(marginal)}`,
    );
    byId("sliders").append(
      element(
        "div",
        { className: "slider" },
        element("div", { className: "name" }, name, value),
        element("div", { className: "track" }, canvas, input),
      ),
    );
    input.addEventListener("input", () => this.slide(i, Number(input.value) / 1000));
    return { chart: new DensityChart(canvas, this.prior, i, { ticks: false, edge: 8 }), input, value };
  }

  listen() {
    byId("run").addEventListener("click", () => this.toggle());
    byId("restart").addEventListener("click", () => this.restart());
    for (const id of ["who", "leader"]) byId(id).addEventListener("change", () => this.restart());
    byId("take-median").addEventListener("click", () => this.take(this.driver.summary.map((s) => s.q50)));
    byId("take-draw").addEventListener("click", () => this.takeDraw());
    const pad = byId("speeds");
    pad.addEventListener("pointerdown", (event) => {
      if (!this.byHand()) return;
      pad.setPointerCapture(event.pointerId);
      this.last = null;
      this.sketch(event);
    });
    pad.addEventListener("pointermove", (event) => {
      if (this.byHand() && event.buttons) this.sketch(event);
    });
    pad.addEventListener("pointerup", () => this.finishSketch());
    pad.addEventListener("keydown", (event) => this.steer(event));
    byId("panel-play").addEventListener("keydown", (event) => {
      if (event.key === " " && !/^(BUTTON|SELECT|INPUT)$/.test(event.target.tagName)) {
        event.preventDefault();
        this.toggle();
      }
    });
  }

  byHand() {
    return byId("leader").value === "hand";
  }

  /** Another driver was chosen. */
  async show(index) {
    if (!this.model.simulator) return;
    this.index = index;
    const driver = await this.assistant.ask("driver", { index });
    if (index !== this.index) return;
    this.driver = driver;
    this.sliders.forEach(({ chart }, i) => chart.show(columnOf(driver.theta, this.prior.dim, i)));
    this.theta = driver.summary.map((s) => s.q50);
    this.hand = null;
    await this.restart();
  }

  /** Begin again, with what is chosen now. */
  async restart() {
    this.pause();
    const ten = byId("who").value === "ten";
    const key = [this.seedOf(), "play", this.driver.id, this.drawn];
    const drivers = ten ? await this.assistant.ask("draw", { count: TEN, key }) : [this.theta];
    const pair = this.driver.pairs[0];
    const leader = this.byHand()
      ? this.handProfile(pair)
      : pair.leader.subarray(0, Math.round(MOST_SECONDS / this.model.dt));
    const start = { gap: pair.gap[0], speed: pair.speed[0] };
    const randomOf = (i) => new RandomStream(...key, "residual", i);
    this.traffic = new Traffic(this.simulator, drivers, leader, start, randomOf);
    this.cursor = null;
    for (const { input } of this.sliders) input.disabled = ten;
    byId("take-median").disabled = byId("take-draw").disabled = ten;
    const whose = ten
      ? [
          ["the first of ten", "blue"],
          ["the others", "green"],
        ]
      : [["the driver", "blue"]];
    fillLegend("play-legend", [["leader", "grey", "dashed"], ...whose]);
    byId("pad-title").textContent = this.byHand() ? "Draw the leader's speed here" : "Speeds";
    byId("pad-hint").textContent = this.byHand()
      ? "Drag to draw. With the keyboard: ← → move, ↑ ↓ change the leader's speed from there on."
      : "The leader drives as it was recorded.";
    byId("speeds").style.touchAction = this.byHand() ? "none" : "";
    this.setSliders();
    this.render();
  }

  /** A minute of the recorded leader's mean speed, to draw on. */
  handProfile(pair) {
    if (!this.hand) {
      const steps = Math.round(HAND_SECONDS / this.model.dt) + 1;
      this.hand = new Float64Array(steps).fill(moments(pair.leader).mean);
      for (let t = 0; t < steps; t++) {
        this.hand[t] = Math.max(0, this.hand[t] + (t ? 3 * Math.sin((t * this.model.dt) / 6) : 0));
      }
      this.hand[0] = pair.leader[0];
      limitChanges(this.hand, this.model.dt);
    }
    return this.hand;
  }

  sketch(event) {
    const { left, top } = byId("speeds").getBoundingClientRect();
    const point = this.speeds.at(event.clientX - left, event.clientY - top);
    const from = this.last ?? point;
    const step = Math.sign(point.sample - from.sample) || 1;
    for (let t = from.sample; t !== point.sample + step; t += step) {
      const share = point.sample === from.sample ? 1 : (t - from.sample) / (point.sample - from.sample);
      this.hand[t] = from.speed + share * (point.speed - from.speed);
    }
    this.last = point;
    this.render();
  }

  finishSketch() {
    if (!this.byHand() || !this.last) return;
    this.last = null;
    limitChanges(this.hand, this.model.dt);
    this.render();
  }

  /** The arrow keys drive the leader that is drawn by hand. */
  steer(event) {
    if (!this.byHand()) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const second = Math.round(1 / this.model.dt);
    const last = this.hand.length - 1;
    const at = this.running ? this.traffic.step : (this.cursor ?? this.traffic.step);
    this.cursor = this.running ? null : Math.min(Math.max(at + move[0] * second, 0), last);
    if (move[1]) {
      for (let t = (this.cursor ?? at) + 1; t <= last; t++)
        this.hand[t] = Math.max(0, this.hand[t] + move[1]);
      limitChanges(this.hand, this.model.dt);
    }
    this.render();
  }

  slide(i, share) {
    const { low, high } = this.prior;
    this.theta = [...this.theta];
    this.theta[i] = low[i] + share * (high[i] - low[i]);
    this.traffic.change(0, this.theta);
    this.setSliders();
    this.render();
  }

  take(theta) {
    this.theta = theta;
    this.traffic.change(0, theta);
    this.setSliders();
    this.render();
  }

  takeDraw() {
    const { dim } = this.prior;
    const random = new RandomStream(this.seedOf(), "draw", this.driver.id, ++this.drawn);
    const row = random.integer(this.driver.theta.length / dim);
    this.take(Array.from(this.driver.theta.subarray(row * dim, (row + 1) * dim)));
  }

  setSliders() {
    this.prior.marginals.forEach((marginal, i) => {
      const { input, value } = this.sliders[i];
      const { low, high } = this.prior;
      input.value = String(Math.round((1000 * (this.theta[i] - low[i])) / (high[i] - low[i])));
      value.textContent = `${three(this.theta[i])} ${unitOf(marginal)}`;
      input.setAttribute("aria-valuetext", value.textContent);
    });
  }

  async toggle() {
    if (this.running) return this.pause();
    if (this.traffic.ended) {
      if (byId("who").value === "ten") this.drawn++;
      await this.restart();
    }
    this.running = true;
    this.cursor = null;
    byId("run").textContent = "❚❚ Pause";
    let owed = 0;
    let before = performance.now();
    const frame = (now) => {
      if (!this.running) return;
      owed += Math.min(now - before, 250) * Number(byId("pace").value);
      before = now;
      for (; owed >= 1000 * this.model.dt && !this.traffic.ended; owed -= 1000 * this.model.dt) {
        this.traffic.advance(byId("residual").checked);
      }
      this.render();
      if (this.traffic.ended) this.pause();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  pause() {
    this.running = false;
    byId("run").textContent = "▶ Play";
  }

  render() {
    const { traffic } = this;
    const [first] = traffic.followers;
    const time = (traffic.step * this.model.dt).toFixed(1);
    const what = traffic.crashed
      ? "collision"
      : `gap ${first.gap.toFixed(1)} m, speed ${first.speed.toFixed(1)} m/s`;
    byId("road-text").textContent = `${time} s: ${what}`;
    this.road.show(traffic);
    this.speeds.show(traffic, this.cursor);
  }

  refresh() {
    if (!this.model.simulator) return;
    for (const chart of [this.road, this.speeds, ...this.sliders.map((s) => s.chart)]) chart.resize();
  }
}
