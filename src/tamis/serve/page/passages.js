// A pipeline that reads long texts passage by passage, instead of their beginnings.
import { parse, print } from "./pipeline.js";

/** What a stage that reads the beginning of a text becomes. */
const BY_PASSAGES = (mono) => `maxp(${mono})`;

/** The pipeline with every `mono` by passages; "" if there is none. */
export function byPassages(text) {
  const stages = parse(text);
  if (!stages?.some((stage) => stage.name === "mono")) return "";
  const changed = stages.map((stage) => {
    if (stage.name !== "mono") return stage;
    return { ...parse(BY_PASSAGES(print([{ ...stage, keep: null }])))[0], keep: stage.keep };
  });
  return print(changed);
}
