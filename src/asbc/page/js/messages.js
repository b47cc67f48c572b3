// What the page says: mistakes with what can be done about them, and what was done.

const MOST_NAMED = 20; // drivers that a message lists

/** Say something that the user must know, with buttons for what can be done about it. */
function say(text, actions = [], more = []) {
  const buttons = actions.map(([label, act], i) => {
    const button = element("button", { type: "button", className: i ? "" : "primary" }, label);
    button.addEventListener("click", () => {
      byId("message").hidden = true;
      act();
    });
    return button;
  });
  byId("message").replaceChildren(
    element("p", { className: "text" }, text),
    ...(more.length ? [element("ol", {}, ...more.map((line) => element("li", {}, line)))] : []),
    ...(buttons.length ? [element("div", { className: "buttons" }, ...buttons)] : []),
  );
  byId("message").hidden = false;
  byId("message").scrollIntoView({ block: "nearest" });
}

/** What was done, as the command's summary says it. */
function outcomeWords(name, { drops, skipped, drivers }, rows, seconds) {
  const parts = [
    `${name}: ${drivers} drivers calibrated in ${seconds.toFixed(1)} s`,
    flaggedWords(rows),
    ...drops.map(([reason, count]) => `left out or changed: ${count} ${reason}`),
    ...(skipped.length ? [`skipped: ${skipped.length} that could not be read`] : []),
  ];
  return `${parts.join(" · ")}.`;
}

/** How many drivers ask for care, and why. */
function flaggedWords(rows) {
  const count = (test) => rows.filter(({ flags }) => test(flags)).length;
  const flagged = count((flags) => flags.flagged);
  if (!flagged) return "no driver is flagged";
  const reasons = [
    [count((flags) => flags.unlike_training), "unlike the training simulations"],
    [count((flags) => flags.leak_rate > LEAKY), "leaking out of the prior"],
    [count((flags) => flags.at_bound), "at a bound"],
  ];
  const told = reasons.filter(([number]) => number).map(([number, words]) => `${number} ${words}`);
  return `${flagged} flagged (${told.join(", ")})`;
}
