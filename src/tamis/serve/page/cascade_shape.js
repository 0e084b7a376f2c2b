// The geometry of the bump chart: plain functions of numbers.

const STEP = 21; // pixels from one shown rank to the next
const DEEP = 130; // pixels for all ranks below

/** Every candidate with its rank in each stage (0: not kept): those that came furthest first, by rank. */
export function places(rankings) {
  const lines = new Map();
  rankings.forEach((ranking, at) => {
    for (const { id, rank } of ranking) {
      if (!lines.has(id)) lines.set(id, { id, ranks: new Array(rankings.length).fill(0) });
      lines.get(id).ranks[at] = rank;
    }
  });
  const last = (line) => line.ranks.findLastIndex(Boolean);
  const ordered = [...lines.values()].sort((one, other) => {
    const at = last(one);
    return last(other) - at || one.ranks[at] - other.ranks[at];
  });
  return ordered.map((line, number) => ({ ...line, number }));
}

/** From a rank to a height. The first `shown` have equal steps, so that they can be labelled; the others
 *  share what is left by the logarithm: the difference between 20 and 30 matters more than 920 and 930. */
export function scale(shown, deepest, top) {
  const step = shown > 10 ? 18 : STEP;
  const end = top + (shown - 1) * step;
  const squeezed = (rank) => Math.log1p((rank - shown) / 8) / Math.log1p((deepest - shown) / 8);
  const room = Math.min(DEEP, (deepest - shown) * step);
  return (rank) => (rank <= shown ? top + (rank - 1) * step : end + step / 2 + squeezed(rank) * room);
}

/** A curve that leaves and arrives level. */
export function bend([x0, y0], [x1, y1]) {
  const middle = (x0 + x1) / 2;
  const [from, to] = [y0.toFixed(1), y1.toFixed(1)];
  return `M${x0} ${from}C${middle} ${from} ${middle} ${to} ${x1} ${to}`;
}

/** How far the curve of `bend` has come in height (0..1) after a part of its width: its x is
 *  1.5 t (1 - t) + t^3, which has no short inverse, so t is found by halving. */
export function risen(part) {
  let [low, high] = [0, 1];
  for (let round = 0; round < 20; round++) {
    const t = (low + high) / 2;
    if (1.5 * t * (1 - t) + t ** 3 < part) low = t;
    else high = t;
  }
  return low * low * (3 - 2 * low);
}

/** A text that is no wider than `room`, with an ellipsis where it is cut; `width` measures one. */
export function fit(text, room, width) {
  if (width(text) <= room) return text;
  const characters = [...text.slice(0, 200)]; // an emoji is one, of two units
  const cut = (count) => `${characters.slice(0, count).join("").trimEnd()}…`;
  let [low, high] = [0, characters.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (width(cut(middle)) <= room) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}

const REACH = 14; // pixels within which a line can be pointed at

/** The id of the line nearest to a point, or "". */
export function nearest(lines, x, y, px, py) {
  const after = x.findIndex((column) => column >= px);
  const to = after < 0 ? x.length - 1 : after;
  const from = after < 0 ? to : Math.max(0, to - 1);
  const rise = to === from ? 1 : risen((px - x[from]) / (x[to] - x[from]));
  let [best, distance] = ["", REACH];
  for (const { id, ranks } of lines) {
    const start = ranks[from] || (px > x[to] - REACH ? ranks[to] : 0);
    const end = ranks[to] || (px < x[from] + REACH ? start : 0);
    if (!start || !end) continue;
    const away = Math.abs(y(start) + (y(end) - y(start)) * rise - py);
    if (away < distance) [best, distance] = [id, away];
  }
  return best;
}
