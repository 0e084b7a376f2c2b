// The controls of one pipeline. Its expression is the truth; sliders and choices only rewrite it.
import { el, settled, whole } from "./dom.js";
import { option, parse, print, withOption } from "./pipeline.js";
import { term } from "./terms.js";

const STEPS = [2, 3, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000];
const SEARCHES = ["bm25", "ql", "tfidf"];
const FIRST = 100; // candidates where a stage is added behind one that keeps all
const LATER = 10;

/** The models that a stage may be given. */
const modelsFor = (name, models) => Object.keys(models).filter((model) => models[model] === name);

/** What a name in a list of choices is: its words cannot be pointed at. */
function help(name) {
  const sign = term(name, "?", "button");
  sign.classList.add("help");
  sign.setAttribute("aria-label", `What ${name} is`);
  return sign;
}

/** A folder by its last part. */
const shortName = (model) => model.split("/").findLast(Boolean) ?? model;

export class Controls {
  /** `change(text)` is told of every new expression. */
  constructor(box, label, info, change) {
    this.box = box;
    this.label = label;
    this.info = info;
    this.text = null;
    this.change = settled(change, 200);
    this.list = el("div", { class: "stages" });
    // it is never drawn again: a browser that is moving the focus away from it, or a person in the middle of it,
    // would lose their place
    this.field = el("input", {
      type: "text",
      class: "expression",
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
      list: "named",
      "aria-label": `${label}: expression`,
      // later: Tab tells of the change before the focus has arrived, which may be at what is drawn again
      change: () => setTimeout(() => this.rewrite(this.field.value.trim())),
    });
    box.replaceChildren(this.list, this.field);
  }

  render(text) {
    text = this.info.named?.[text] ?? text; // a name is shown as the stages that it stands for
    if (text === this.text) return; // what is being used must keep its focus
    this.text = text;
    this.stages = parse(text);
    const stages = this.stages ?? [];
    this.field.value = text;
    this.list.replaceChildren(
      ...stages.flatMap((stage, at) =>
        at
          ? [el("span", { class: "then", "aria-hidden": "true" }, "→"), this.block(stage, at)]
          : [this.block(stage, at)],
      ),
      ...this.additions(),
    );
  }

  /** A change of form: draw again, with the focus where it was, or else on the expression. */
  rewrite(text) {
    const used = this.box.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    this.render(text || this.info.pipeline);
    this.field.value = this.text; // a name for what is shown already is shown as its stages too
    this.change(this.text);
    if (used)
      (
        [...this.box.querySelectorAll("[aria-label]")].find((each) => each.ariaLabel === used) ?? this.field
      ).focus();
  }

  /** A change within a stage: the controls stay as they are. */
  set(at, stage) {
    this.stages[at] = stage;
    this.text = print(this.stages);
    this.field.value = this.text;
    this.change(this.text);
  }

  block(stage, at) {
    const searches = at === 0 && SEARCHES.includes(stage.name);
    const head = searches
      ? this.choice("Find candidates with", SEARCHES, stage.name, (name) =>
          this.rewrite(print(this.stages.with(0, { name, inside: [], keep: this.stages[0].keep }))),
        )
      : el("span", { class: "name" }, term(stage.name, stage.name, "button"));
    const last = at === this.stages.length - 1;
    return el(
      "div",
      { class: "stage", role: "group", "aria-label": `${this.label}: stage ${at + 1}, ${stage.name}` },
      el(
        "div",
        { class: "row" },
        head,
        searches ? help(stage.name) : null,
        at ? this.removal(stage, at) : null,
      ),
      this.models(stage, at),
      this.others(stage),
      stage.name === "duo"
        ? this.labelled(
            "aggregation",
            this.choice(
              "Aggregation of pairs",
              this.info.aggregations,
              option(stage, "aggregate") ?? "sum",
              (value) => this.set(at, withOption(this.stages[at], "aggregate", value)),
            ),
          )
        : null,
      at === 0 || !last ? this.slider(stage, at) : null,
    );
  }

  models(stage, at) {
    if (stage.name !== "mono" && stage.name !== "duo") return null;
    const models = modelsFor(stage.name, this.info.models);
    const chosen = option(stage, "model") ?? stage.name;
    if (!models.includes(chosen)) models.push(chosen);
    if (models.length === 1) return this.labelled("model", el("span", {}, shortName(chosen)));
    const pick = (model) =>
      this.set(at, withOption(this.stages[at], "model", model === stage.name ? null : model));
    const words = (model) =>
      shortName(model) + (Object.hasOwn(this.info.models, model) ? "" : " (not on this server)");
    return this.labelled("model", this.choice(`Model of ${stage.name}`, models, chosen, pick, words));
  }

  /** The options that have no control, as they are written. */
  others(stage) {
    const plain = stage.inside.filter((each) => !/^(model|aggregate)\s*=/.test(each)).join(", ");
    return plain ? el("code", { class: "others", title: plain }, plain) : null;
  }

  labelled(text, control) {
    return el("div", { class: "row" }, el("span", { class: "what" }, term(text, text, "button")), control);
  }

  choice(name, values, chosen, pick, words = String) {
    const select = el(
      "select",
      { "aria-label": name, change: () => pick(select.value) },
      ...values.map((value) => el("option", { value, selected: value === chosen }, words(value))),
    );
    return select;
  }

  slider(stage, at) {
    const most = this.info.limits?.candidates ?? 1000;
    const steps = [
      ...new Set([...STEPS.filter((step) => step <= most && (at || step >= 5)), stage.keep ?? most]),
    ];
    steps.sort((one, other) => one - other);
    const value = steps.indexOf(stage.keep ?? most);
    const output = el("output", {}, whole(steps[value]));
    const words = (keep) => `keep ${keep}`;
    const slider = el("input", {
      type: "range",
      min: 0,
      max: steps.length - 1,
      value,
      "aria-label": `k${at}: candidates that ${stage.name} keeps`,
      "aria-valuetext": words(steps[value]),
      "data-k": at,
      input: () => {
        const keep = steps[Number(slider.value)];
        output.textContent = whole(keep);
        slider.setAttribute("aria-valuetext", words(keep));
        this.set(at, { ...this.stages[at], keep });
      },
    });
    return el(
      "div",
      { class: "row" },
      el("span", { class: "what" }, term(`k${at}`, `k${at}`, "button")),
      slider,
      output,
    );
  }

  removal(stage, at) {
    const remove = () => this.rewrite(print(this.stages.toSpliced(at, 1)));
    return el(
      "button",
      { type: "button", class: "quiet", "aria-label": `Remove ${stage.name}`, click: remove },
      "×",
    );
  }

  /** Buttons for the stages that could come next and have a model here. */
  additions() {
    if (!this.stages) return [el("p", { class: "hint" }, "Written by hand: change the expression below.")];
    const has = (name) => this.stages.some((stage) => stage.name === name);
    const names = ["mono", "duo"].filter(
      (name) => !has(name) && !has("duo") && modelsFor(name, this.info.models).length,
    );
    return names.map((name) => {
      const models = modelsFor(name, this.info.models);
      const add = () => {
        const before = this.stages.map((stage, at) => ({
          ...stage,
          keep: stage.keep ?? (at ? LATER : FIRST),
        }));
        const inside = models.includes(name) ? [] : withOption({ inside: [] }, "model", models[0]).inside;
        this.rewrite(print([...before, { name, inside, keep: null }]));
      };
      return el(
        "button",
        { type: "button", class: "add", "aria-label": `Add ${name}`, click: add },
        `+ ${name}`,
      );
    });
  }
}
