// Small helpers to make elements. Text only ever becomes a text node: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element. A function among the attributes listens to the event of that name. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Calls `action` once the calls have stopped for `ms`. */
export function settled(action, ms) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), ms);
  };
}

export const whole = (number) => number.toLocaleString("en");

export function milliseconds(ms) {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 100 ? `${whole(Math.round(ms))} ms` : `${ms.toFixed(1)} ms`;
}

export function score(value) {
  if (value !== 0 && Math.abs(value) < 0.0001) return value.toExponential(1);
  return Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(4);
}

export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
