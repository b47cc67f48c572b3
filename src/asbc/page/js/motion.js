// The motion of all pairs in one place, as asbc.data.plausibility looks at it.

/** The columns of pairs one after the other, and where each begins. */
class Motion {
  constructor(table, groups) {
    const count = groups.reduce((sum, group) => sum + group.rows.length, 0);
    this.rows = new Int32Array(count);
    this.starts = new Int32Array(groups.length);
    this.lengths = new Int32Array(groups.length);
    this.steps = new Float64Array(groups.length);
    this.step = new Float64Array(count);
    let at = 0;
    groups.forEach((group, p) => {
      this.starts[p] = at;
      this.lengths[p] = group.rows.length;
      this.steps[p] = group.rows.length > 1 ? timeStep(table, group.rows) : 1;
      for (const row of group.rows) {
        this.step[at] = this.steps[p];
        this.rows[at++] = row;
      }
    });
    const gather = (column) => Float64Array.from(this.rows, (row) => column[row]);
    this.gap = gather(table.numbers.gap);
    this.speed = gather(table.numbers.speed);
    this.leader_speed = gather(table.numbers.leader_speed);
    this.acceleration = table.numbers.acceleration ? gather(table.numbers.acceleration) : null;
    this.moved = new Float64Array(count);
    // Clipped: after a speed of 1e300 no sum would tell a metre any more.
    const opening = (i) => Math.min(Math.max(this.leader_speed[i] - this.speed[i], -1e6), 1e6);
    for (let i = 1; i < count; i++) {
      this.moved[i] = this.moved[i - 1] + ((opening(i) + opening(i - 1)) / 2) * this.step[i];
    }
  }

  /** The pair of a place among the rows. */
  pairOf(at) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** From each row's predecessor within its pair; 0 at a pair's first row. */
  change(values) {
    const change = new Float64Array(values.length);
    for (let i = 1; i < values.length; i++) change[i] = values[i] - values[i - 1];
    for (const start of this.starts) change[start] = 0;
    return change;
  }

  /** The first place of each pair at which something holds. */
  firstPerPair(bad) {
    const found = [];
    for (let p = 0; p < this.starts.length; p++) {
      const stop = this.starts[p] + this.lengths[p];
      for (let i = this.starts[p]; i < stop; i++) {
        if (bad(i)) {
          found.push(i);
          break;
        }
      }
    }
    return found;
  }

  /** A fault at a place; null: of the whole table. */
  fault(at, what, why, remedy, unit = null) {
    return { at, row: at === null ? null : this.rows[at], what, why, remedy, unit };
  }
}
