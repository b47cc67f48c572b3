// The residual-augmented car-following model: asbc.simulator.simulator, laws and kinematics.

const SMALLEST_GAP = 0.1;

const LAWS = {
  // a_max [1 - (v/v0)^delta - (s*/s)^2]; in SUMO the dynamic part of s* never falls below 0.
  idm({ delta, clamped }, [v0, s0, headway, aMax, b], gap, speed, approach) {
    let dynamic = speed * (headway + (0.5 * approach) / Math.sqrt(aMax * b));
    if (clamped) dynamic = Math.max(dynamic, 0);
    return aMax - aMax * ((speed / v0) ** delta + ((s0 + dynamic) / gap) ** 2);
  },

  // (V(s) - v) / tau - gamma (v - v_leader).
  fvd(_, [v0, tau, width, beta, gamma], gap, speed, approach) {
    const offset = Math.tanh(beta);
    const optimal = (v0 * (Math.tanh(gap / width - beta) + offset)) / (1 + offset);
    return (optimal - speed) / tau - gamma * approach;
  },
};

// Distance travelled in a step while the speed goes from v to w: of the leader, of the follower.
const KINEMATICS = {
  paper: { leader: (v, w, dt) => v * dt, follower: (v, w, dt) => ((v + w) * dt) / 2 },
  leader_acceleration: {
    leader: (v, w, dt) => ((v + w) * dt) / 2,
    follower: (v, w, dt) => ((v + w) * dt) / 2,
  },
  sumo: { leader: (v, w, dt) => w * dt, follower: (v, w, dt) => w * dt },
};

/** Law, residual and kinematics of a model. */
class Simulator {
  /** @param settings law, residual, kinematics, dt and acceleration bounds. */
  constructor(settings) {
    Object.assign(this, settings);
    this.move = KINEMATICS[settings.kinematics];
    this.lawSize = settings.law.parameters.length;
  }

  /** What the law does in a state. */
  lawAcceleration(theta, gap, speed, approach) {
    return LAWS[this.law.kind](this.law, theta, Math.max(gap, SMALLEST_GAP), speed, approach);
  }

  /** The residual process of a driver, continued from a prefix if there is one. */
  residualOf(theta, prefix = null) {
    const hyper = Array.from(theta).slice(this.lawSize);
    return new RESIDUALS[this.residual.kind](this.residual, hyper, this.dt, prefix);
  }

  /** The acceleration with its residual, within the bounds and not below standstill. */
  acceleration(theta, gap, speed, leader, residual) {
    const [lowest, highest] = this.bounds;
    const wanted = this.lawAcceleration(theta, gap, speed, speed - leader) + residual;
    return Math.min(Math.max(wanted, lowest), highest);
  }

  /** The state one step later: gap, speed and the acceleration that was applied. */
  advance(theta, gap, speed, leader, nextLeader, residual) {
    const { dt } = this;
    const acceleration = this.acceleration(theta, gap, speed, leader, residual);
    const next = Math.max(speed + acceleration * dt, 0);
    const opened = this.move.leader(leader, nextLeader, dt) - this.move.follower(speed, next, dt);
    return { gap: gap + opened, speed: next, acceleration: Math.max(acceleration, -speed / dt) };
  }

  /**
   * A drive behind a leader; each series has as many samples as the leader.
   *
   * @param theta of the driver.
   * @param {ArrayLike<number>} leader speeds.
   * @param {(step: number) => number} residual at each step.
   */
  rollout(theta, leader, gap, speed, residual) {
    const steps = leader.length;
    const gaps = new Float64Array(steps);
    const speeds = new Float64Array(steps);
    const accelerations = new Float64Array(steps);
    for (let t = 0; t < steps; t++) {
      gaps[t] = gap;
      speeds[t] = speed;
      const ahead = leader[Math.min(t + 1, steps - 1)];
      const next = this.advance(theta, gap, speed, leader[t], ahead, residual(t));
      accelerations[t] = next.acceleration;
      ({ gap, speed } = next);
    }
    return { gap: gaps, speed: speeds, acceleration: accelerations };
  }

  /** Residuals of the samples before `start` of a pair: what a prediction continues from. */
  prefix(theta, pair, start, { steps, noise }) {
    const residuals = [];
    for (let t = Math.max(0, start - steps); t < start; t++) {
      const { gap, speed, leader, acceleration } = pair;
      const law = this.lawAcceleration(theta, gap[t], speed[t], speed[t] - leader[t]);
      residuals.push(acceleration[t] - law);
    }
    return { residuals, noise };
  }
}
