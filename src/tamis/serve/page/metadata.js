// What a document has beside its title and text. It is strangers' writing: a link leads to the web or nowhere.
import { el } from "./dom.js";

const LONGEST = 300; // characters of a value
const FEW = 6; // values that are shown at once

/** The address, if it is one of the web: `javascript:` and others are not followed. */
function webAddress(value) {
  if (typeof value !== "string" || !URL.canParse(value)) return null;
  return ["http:", "https:"].includes(new URL(value).protocol) ? value : null;
}

const link = (address) =>
  el(
    "a",
    { href: address, target: "_blank", rel: "noopener noreferrer", class: "source" },
    shortened(address),
    " ↗",
  );

function shortened(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > LONGEST ? `${[...text.slice(0, LONGEST)].join("").trimEnd()}…` : text;
}

const BRIEF = 4; // fields in a line of a list of results,
const WORDS = 40; // and characters of a value there

/** The first fields in one line; none where there is nothing short. An address is left to the document. */
export function brief(metadata) {
  const entries = Object.entries(metadata ?? {}).filter(
    ([name, value]) => name !== "url" && value !== null && value !== "" && plain(value) !== "",
  );
  if (!entries.length) return null;
  const fact = ([name, value]) => el("span", {}, `${name} `, el("b", {}, cut(plain(value))));
  return el("p", { class: "known" }, ...entries.slice(0, BRIEF).map(fact));
}

/** A value as words: of a list what is in it, of an object nothing. */
function plain(value) {
  if (Array.isArray(value)) return value.map(plain).filter(Boolean).join(", ");
  return typeof value === "object" ? "" : String(value);
}

const cut = (text) => (text.length > WORDS ? `${[...text.slice(0, WORDS)].join("").trimEnd()}…` : text);

/** A link, where the metadata have a `url`, and a list of all. */
export function factsOf(metadata) {
  const entries = Object.entries(metadata).filter(([, value]) => value !== null && value !== "");
  if (!entries.length) return [];
  const address = webAddress(metadata.url);
  const rest = address ? entries.filter(([name]) => name !== "url") : entries;
  const list = el(
    "dl",
    { class: "metadata" },
    ...rest.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, shortened(value))]),
  );
  const shown =
    rest.length > FEW ? el("details", {}, el("summary", {}, `Metadata (${rest.length})`), list) : list;
  return [address ? el("p", { class: "address" }, link(address)) : null, rest.length ? shown : null].filter(
    Boolean,
  );
}
