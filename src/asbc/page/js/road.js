// Traffic behind a leader, one time step after the other, and a picture of it.

const VEHICLE = 5; // m
const VIEW = 140; // m of road that are shown at least
const HARDEST = 5; // m/s^2 that a leader drawn by hand changes its speed by

/** A leader and the drivers behind it, each following the vehicle ahead. */
class Traffic {
  /**
   * @param simulator law, residual and kinematics.
   * @param {number[][]} drivers theta of each.
   * @param {Float64Array} leader speeds.
   * @param {{gap: number, speed: number}} start of every driver.
   * @param {(index: number) => RandomStream} randomOf a driver.
   */
  constructor(simulator, drivers, leader, start, randomOf) {
    Object.assign(this, { simulator, leader, step: 0, position: 0, crashed: false });
    this.followers = drivers.map((theta, i) => ({
      theta,
      ...start,
      residual: simulator.residualOf(theta),
      random: randomOf(i),
      history: [start.speed],
      gaps: [start.gap],
    }));
  }

  /** Give a driver other parameters; its residual begins anew. */
  change(index, theta) {
    const follower = this.followers[index];
    follower.theta = theta;
    follower.residual = this.simulator.residualOf(theta);
  }

  get ended() {
    return this.crashed || this.step >= this.leader.length - 1;
  }

  /** One time step. */
  advance(withResidual) {
    const { simulator, leader } = this;
    let [now, next] = [leader[this.step], leader[this.step + 1]];
    this.position += simulator.move.leader(now, next, simulator.dt);
    for (const follower of this.followers) {
      const noise = follower.residual.next(follower.random);
      const before = follower.speed;
      const { theta, gap, speed } = follower;
      Object.assign(follower, simulator.advance(theta, gap, speed, now, next, withResidual ? noise : 0));
      follower.history.push(follower.speed);
      follower.gaps.push(follower.gap);
      if (follower.gap <= 0) this.crashed = true;
      [now, next] = [before, follower.speed];
    }
    this.step++;
  }

  /** Positions of the rear ends, the leader's first. */
  positions() {
    const found = [this.position];
    for (const { gap } of this.followers) found.push(found[found.length - 1] - gap - VEHICLE);
    return found;
  }
}

/** Keep the changes of a speed profile within what a vehicle can do, in place. */
function limitChanges(speeds, dt) {
  for (let t = 1; t < speeds.length; t++) {
    const most = HARDEST * dt;
    speeds[t] = Math.max(0, Math.min(Math.max(speeds[t], speeds[t - 1] - most), speeds[t - 1] + most));
  }
  return speeds;
}

/** Vehicles on a road, seen from above; the view follows them. */
class RoadChart extends Chart {
  constructor(canvas) {
    super(canvas);
    this.traffic = null;
  }

  show(traffic) {
    this.traffic = traffic;
    this.paint();
  }

  draw() {
    if (!this.traffic) return;
    const { context, width, height } = this;
    const positions = this.traffic.positions();
    const front = positions[0] + VEHICLE + 12;
    const length = Math.max(VIEW, front - positions[positions.length - 1] + 12);
    const x = (metres) => width - ((front - metres) / length) * width;
    const middle = height * 0.52;
    const lane = Math.min(46, height * 0.45);
    context.fillStyle = this.colour("faint");
    context.fillRect(0, middle - lane / 2, width, lane);
    this.marks(x, front, length, middle, lane);
    positions.forEach((rear, i) =>
      this.vehicle(x(rear), x(rear + VEHICLE), middle, i === 0 ? "grey" : i === 1 ? "blue" : "green"),
    );
    this.font(12);
    this.text("leader", x(positions[0] + VEHICLE / 2), middle - lane / 2 - 6, { align: "center" });
    const [first] = this.traffic.followers;
    const [from, to] = [x(positions[1] + VEHICLE), x(positions[0])];
    if (to - from > 46) {
      this.text(`${first.gap.toFixed(1)} m`, (from + to) / 2, middle, {
        align: "center",
        base: "middle",
        colour: "ink",
      });
    }
  }

  /** Posts every 20 m, so that one sees the road move. */
  marks(x, front, length, middle, lane) {
    const { context } = this;
    for (let post = Math.ceil((front - length) / 20) * 20; post < front; post += 20) {
      context.fillStyle = this.colour("line");
      context.fillRect(x(post) - 1, middle + lane / 2, 2, 7);
      if (post % 100 === 0) {
        this.font(11);
        this.text(`${post} m`, x(post), middle + lane / 2 + 20, { align: "center" });
      }
    }
  }

  vehicle(rear, front, middle, colour) {
    const { context } = this;
    const wide = Math.max(front - rear, 7);
    context.fillStyle = this.colour(colour);
    context.beginPath();
    context.roundRect(rear, middle - 8, wide, 16, 4);
    context.fill();
    context.fillStyle = this.colour("paper");
    context.globalAlpha = 0.7;
    context.fillRect(rear + wide * 0.66, middle - 6, Math.max(2, wide * 0.13), 12); // the windscreen
    context.globalAlpha = 1;
  }
}

/** Speeds of leader and followers over time. */
class SpeedChart extends Chart {
  constructor(canvas, dt) {
    super(canvas);
    Object.assign(this, { dt, traffic: null, cursor: null });
  }

  show(traffic, cursor) {
    Object.assign(this, { traffic, cursor });
    this.paint();
  }

  box() {
    return { left: 36, right: this.width - 8, top: 6, bottom: this.height - 20 };
  }

  limits() {
    const [, most] = extentOf(this.traffic.leader);
    return [0, Math.max(15, Math.min(45, Math.ceil(most / 5) * 5 + 5))];
  }

  /** Sample and speed at a place of the canvas. */
  at(x, y) {
    const { left, right, top, bottom } = this.box();
    const share = Math.min(Math.max((x - left) / (right - left), 0), 1);
    const [low, high] = this.limits();
    const height = Math.min(Math.max((bottom - y) / (bottom - top), 0), 1);
    return {
      sample: Math.round(share * (this.traffic.leader.length - 1)),
      speed: low + height * (high - low),
    };
  }

  draw() {
    if (!this.traffic) return;
    const { traffic, dt } = this;
    const last = (traffic.leader.length - 1) * dt;
    const { x, y } = this.axes(this.box(), [0, last], this.limits());
    const xs = Array.from(traffic.leader, (_, t) => x(t * dt));
    this.line(xs, Array.from(traffic.leader, y), "grey", 2, [5, 3]);
    traffic.followers.forEach(({ history }, i) => {
      this.context.globalAlpha = i ? 0.65 : 1;
      this.line(xs.slice(0, history.length), history.map(y), i ? "green" : "blue", i ? 1.2 : 2.2);
    });
    this.context.globalAlpha = 1;
    const now = x((this.cursor ?? traffic.step) * dt);
    const { top, bottom } = this.box();
    this.line([now, now], [top, bottom], "orange", 1.5);
    this.text("speed (m/s)", this.box().left + 5, top + 12, { colour: "ink" });
  }
}
