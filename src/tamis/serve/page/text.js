// Document text with its marks. Documents are strangers' writing: they are only ever text nodes.
import { el } from "./dom.js";

const FOUND = 1;
const EVIDENCE = 2;
const BEST = 4;
const START = 8; // the first character of a word of the query

/** For every character as Python counts them, where it begins as JavaScript does (an emoji takes two). */
function places(text) {
  if (!/[\ud800-\udfff]/.test(text)) return (place) => Math.min(place, text.length);
  const starts = [];
  let at = 0;
  for (const character of text) {
    starts.push(at);
    at += character.length;
  }
  return (place) => starts[place] ?? text.length;
}

/** The ranges that reach into start..end, as places from there on. */
export const within = (ranges, start, end) =>
  ranges
    .filter((range) => range[0] < end && range[1] > start)
    .map(([from, to, ...rest]) => [from - start, to - start, ...rest]);

/** One byte a character: whether it is of a word of the query, of the evidence, of its best passage (unless
 *  that is elsewhere). Ranges may begin before the text and end behind it. */
export function marks(text, highlights, evidence, hasBest = true) {
  const flags = new Uint8Array(text.length);
  const place = places(text);
  const set = (start, end, flag) => {
    const last = place(end);
    for (let at = place(Math.max(0, start)); at < last; at++) flags[at] |= flag;
  };
  const best = hasBest ? bestOf(evidence) : null;
  for (const each of evidence ?? []) set(each.start, each.end, each === best ? EVIDENCE | BEST : EVIDENCE);
  for (const [start, end] of highlights ?? []) {
    set(start, end, FOUND);
    if (start >= 0 && end > start) flags[place(start)] |= START;
  }
  return flags;
}

/** The passage with the highest score, if there is any. */
export const bestOf = (evidence) =>
  (evidence ?? []).reduce((best, each) => (best && best.score >= each.score ? best : each), undefined);

/** Characters start..end of a text as nodes: words of the query in <mark>, evidence in a <span>. Words are
 *  numbered from `number` on, if it is given. */
export function marked(text, flags, start = 0, end = text.length, number = null) {
  const nodes = [];
  for (let from = start; from < end;) {
    let to = from + 1;
    while (to < end && flags[to] === (flags[from] & ~START)) to++;
    const piece = text.slice(from, to);
    const flag = flags[from];
    const kind = flag & BEST ? "evidence best" : flag & EVIDENCE ? "evidence" : null;
    const match = flag & START && number !== null ? number++ : null;
    if (flag & FOUND) nodes.push(el("mark", { class: kind, "data-match": match }, piece));
    else nodes.push(kind ? el("span", { class: kind }, piece) : piece);
    from = to;
  }
  return nodes;
}

/** About `width` characters: from the best passage on, else where most words of the query stand together. */
export function extract(text, flags, width) {
  if (text.length <= width) return [0, text.length];
  let start = flags.findIndex((flag) => flag & BEST);
  if (start < 0) start = densest(flags, width);
  start = Math.max(0, Math.min(start, text.length - width));
  let end = Math.min(text.length, start + width);
  // whole words, unless there are none
  if (start > 0) start = Math.max(start, text.indexOf(" ", start - 1) + 1);
  const space = text.lastIndexOf(" ", end);
  if (end < text.length && space > start) end = space;
  return [start, end];
}

function densest(flags, width) {
  let [inside, best, start] = [0, 0, 0];
  for (let at = 0; at < flags.length; at++) {
    inside += flags[at] & FOUND;
    if (at >= width) inside -= flags[at - width] & FOUND;
    if (inside > best) {
      best = inside;
      start = Math.max(0, at - Math.floor(width * 0.7));
    }
  }
  return start;
}
