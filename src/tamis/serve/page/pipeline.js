// Pipelines as data, so far as the controls need it: the stages in a row, what each keeps, and its options.
// The server's parser has the last word; this one only finds where stages and options begin and end.

/** The parts of `text` between separators that stand outside parentheses and quotes; null if unbalanced. */
function split(text, separator) {
  const parts = [];
  let depth = 0;
  let start = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') {
      do at += text[at] === "\\" ? 2 : 1;
      while (at < text.length && text[at] !== '"');
      if (at >= text.length) return null;
    } else if (character === "(") depth++;
    else if (character === ")") depth--;
    else if (depth === 0 && text.startsWith(separator, at)) {
      parts.push(text.slice(start, at).trim());
      start = at + separator.length;
      at = start - 1;
    }
    if (depth < 0) return null;
  }
  if (depth) return null;
  parts.push(text.slice(start).trim());
  return parts;
}

function parseStage(text) {
  const [call, ...cuts] = split(text, "%") ?? [];
  const found = /^([a-z_][a-z0-9_]*)(?:\(([^]*)\))?$/.exec(call ?? "");
  if (!found || !cuts.every((cut) => /^[1-9][0-9]*$/.test(cut))) return null;
  const inside = found[2]?.trim() ? split(found[2], ",") : [];
  if (!inside) return null;
  const keep = cuts.length ? Math.min(...cuts.map(Number)) : null;
  return { name: found[1], inside, keep };
}

/** `bm25(k1=1) % 100 >> mono` as [{name, inside, keep}, ...], or null where it is beyond the controls. */
export function parse(text) {
  const stages = split(text, ">>")?.map(parseStage);
  return stages?.every(Boolean) ? stages : null;
}

export const print = (stages) =>
  stages
    .map(
      ({ name, inside, keep }) =>
        name + (inside.length ? `(${inside.join(", ")})` : "") + (keep ? ` % ${keep}` : ""),
    )
    .join(" >> ");

const named = (name) => new RegExp(`^${name}\\s*=\\s*`);

export function option(stage, name) {
  const given = stage.inside.find((each) => named(name).test(each))?.replace(named(name), "");
  if (!given?.startsWith('"')) return given;
  try {
    return JSON.parse(given);
  } catch {
    return given;
  }
}

/** The stage with an option set, or back at its default (null). */
export function withOption(stage, name, value) {
  const inside = stage.inside.filter((each) => !named(name).test(each));
  if (value !== null)
    inside.push(`${name}=${/^[a-z_][\w.+-]*$/i.test(value) ? value : JSON.stringify(value)}`);
  return { ...stage, inside };
}
