// Elements, words for parameters, and questions to the worker. Text goes in as text, never as HTML.

/** The element of an id. */
function byId(id) {
  return document.getElementById(id);
}

/** A new element; properties by name, children as elements or text. */
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

const SYMBOLS = {
  v0: "v₀",
  s0: "s₀",
  T: "T",
  a_max: "a",
  b: "b",
  sigma: "σ",
  ell: "ℓ",
  tau: "τ",
  beta: "β",
  gamma: "γ",
};
const MEANINGS = {
  v0: "desired speed",
  s0: "gap at standstill",
  T: "time headway",
  a_max: "acceleration",
  b: "comfortable braking",
  sigma: "size of the residual",
  ell: "memory of the residual",
};

/** How a parameter is written. */
function symbolOf(name) {
  return SYMBOLS[name] ?? name;
}

/** What a parameter is, in words. */
function meaningOf({ name, unit }) {
  if (name === "sigma" && unit === "1") return "imperfection";
  return MEANINGS[name] ?? name;
}

/** A unit as it is printed; "" for none. */
function unitOf({ unit }) {
  return unit === "1" ? "" : unit.replace("^2", "²");
}

/** A value with three digits. */
function three(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
}

/** A legend: [label, colour variable, kind of line] each. */
function fillLegend(id, entries) {
  byId(id).replaceChildren(
    ...entries.map(([label, colour, kind]) => {
      const line = element("i", { className: kind ?? "" });
      line.style.color = `var(--${colour})`;
      return element("span", {}, line, label);
    }),
  );
}

/** The worker, made of the text in this page, as a function from questions to promised answers. */
class Assistant {
  constructor() {
    const text = JSON.parse(byId("data-worker").textContent);
    const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    this.worker = new Worker(address);
    URL.revokeObjectURL(address);
    this.waiting = new Map();
    this.count = 0;
    this.worker.onmessage = ({ data }) => this.receive(data);
  }

  receive({ id, answer, error, progress }) {
    const { resolve, reject, report } = this.waiting.get(id);
    if (progress) {
      report(progress);
      return;
    }
    this.waiting.delete(id);
    if (error) reject(Object.assign(new Error(error.message), error));
    else resolve(answer);
  }

  /** Ask for something; `report` hears of progress. */
  ask(ask, content = {}, report = () => {}) {
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, report });
      this.worker.postMessage({ id, ask, ...content });
    });
  }
}

/** A function that runs one question at a time, and of those meanwhile only the last. */
function latestOnly(work) {
  let running = false;
  let next = null;
  return async (...given) => {
    next = given;
    if (running) return;
    running = true;
    while (next) {
      const now = next;
      next = null;
      await work(...now);
    }
    running = false;
  };
}
