// The cascade as a bump chart: a column for every stage, a line for every candidate.
import { el, score, svg } from "./dom.js";
import { bend, fit, nearest, places, scale } from "./cascade_shape.js";

const MARGIN = { top: 34, right: 196, bottom: 12, left: 44 };
const DENSE = 300; // lines that would run together
const TICKS = [1, 5, 10, 20, 50, 100, 200, 500, 1000];

/** How wide a text is in the chart, in the bold letters of what is followed. */
function inBold(box) {
  const pen = document.createElement("canvas").getContext("2d");
  const size = 0.75 * parseFloat(getComputedStyle(document.documentElement).fontSize);
  pen.font = `600 ${size}px ${getComputedStyle(box).fontFamily}`;
  return (text) => pen.measureText(text).width;
}

export class Cascade {
  /** `actions`: follow(id), open(id); `titles`: what is known of id -> title. */
  constructor(box, readout, actions) {
    this.box = box;
    this.readout = readout;
    this.actions = actions;
    this.lines = [];
    this.titles = new Map();
    this.followed = "";
    this.pointed = "";
    this.width = 0;
    new ResizeObserver(() => {
      if (this.answer && this.box.clientWidth !== this.width) this.draw();
    }).observe(box);
  }

  render(answer) {
    this.answer = answer;
    this.pointed = "";
    for (const { id, title } of answer.results) if (title) this.titles.set(id, title);
    this.draw();
  }

  draw() {
    const { stages, results } = this.answer;
    // stages to come have their columns already, so that nothing shifts when they are there
    const coming = this.answer.final === false ? this.answer.planned.slice(stages.length) : [];
    const columns = [...stages.map((stage) => stage.stage), ...coming];
    const shown = Math.min(results.length, 20);
    this.width = this.box.clientWidth;
    this.measure = inBold(this.box);
    this.lines = places(stages.map((stage) => stage.ranking ?? []));
    const deepest = Math.max(1, ...stages.map((stage) => stage.ranking?.length ?? 0));
    const inner = this.width - MARGIN.left - Math.min(MARGIN.right, this.width * 0.42);
    this.y = scale(shown, deepest, MARGIN.top + 10);
    this.x = columns.map(
      (_, at) => MARGIN.left + (columns.length > 1 ? (inner * at) / (columns.length - 1) : inner),
    );
    const height = this.y(deepest) + MARGIN.bottom;
    const names = stages.map((stage) => stage.stage).join(", ");
    const what = `The rank of ${this.lines.length} candidates in ${names}`;
    this.chart = svg("svg", {
      class: this.lines.length > DENSE ? "dense" : null,
      role: "listbox",
      tabindex: "0",
      width: this.width,
      height,
      viewBox: `0 0 ${this.width} ${height}`,
      "aria-label": `${what}. Arrow keys go through them, Enter follows one.`,
      pointermove: (event) => this.point(this.at(event)),
      pointerleave: () => this.point(""),
      click: (event) => this.actions.follow(this.at(event)),
      keydown: (event) => this.key(event),
    });
    this.chart.append(...this.frame(columns, deepest), ...this.labels(shown));
    this.groups = new Map();
    // the last drawn lies on top: the best last
    for (const line of [...this.lines].reverse()) this.chart.append(this.group(line, shown, stages));
    this.box.replaceChildren(this.chart);
    this.show();
  }

  frame(columns, deepest) {
    const ticks = TICKS.filter((rank) => rank <= deepest).map((rank) =>
      svg(
        "text",
        { class: "tick", x: MARGIN.left - 14, y: this.y(rank) + 4, "text-anchor": "end" },
        String(rank),
      ),
    );
    const apart = this.x.length > 1 ? this.x[1] - this.x[0] - 8 : Infinity;
    const heads = columns.flatMap((name, at) => [
      svg("line", {
        class: "column",
        x1: this.x[at],
        x2: this.x[at],
        y1: MARGIN.top,
        y2: this.y(deepest) + 6,
      }),
      svg(
        "text",
        { class: "head", "data-term": name, x: this.x[at], y: 16, "text-anchor": "middle" },
        fit(name, apart, this.measure),
      ),
    ]);
    return [...ticks, ...heads].map((node) => (node.setAttribute("aria-hidden", "true"), node));
  }

  labels(shown) {
    const last = this.x.length - 1;
    const room = this.width - this.x[last] - 34;
    return this.answer.results.slice(0, shown).map((result) => {
      const title = result.title || result.id;
      const text = fit(title, room, this.measure);
      const y = this.y(result.rank) + 4;
      return svg(
        "g",
        { class: "label", "data-label": result.id, "aria-hidden": "true" },
        svg("text", { class: "place", x: this.x[last] + 24, y, "text-anchor": "end" }, String(result.rank)),
        svg("text", { x: this.x[last] + 32, y }, text, svg("title", {}, title)),
      );
    });
  }

  group(line, shown, stages) {
    const points = line.ranks.map((rank, at) => rank && [this.x[at], this.y(rank)]);
    const group = svg("g", {
      id: `line-${line.number}`,
      role: "option",
      "aria-selected": "false",
      "aria-label": this.words(line, stages),
      class: line.ranks.at(-1) && line.ranks.at(-1) <= shown ? "line kept" : "line",
      "data-id": line.id,
    });
    for (let at = 1; at < points.length; at++)
      if (points[at - 1] && points[at]) group.append(svg("path", { d: bend(points[at - 1], points[at]) }));
    for (const point of points) if (point) group.append(svg("circle", { cx: point[0], cy: point[1], r: 2 }));
    this.groups.set(line.id, group);
    return group;
  }

  words(line, stages) {
    const steps = stages.map(
      ({ stage }, at) => `${stage} ${line.ranks[at] ? `rank ${line.ranks[at]}` : "not kept"}`,
    );
    return `${this.titles.get(line.id) ?? line.id}: ${steps.join(", ")}`;
  }

  at(event) {
    const box = this.chart.getBoundingClientRect();
    return nearest(this.lines, this.x, this.y, event.clientX - box.left, event.clientY - box.top);
  }

  key(event) {
    const order = this.lines.map((line) => line.id);
    const here = order.indexOf(this.pointed || this.followed);
    const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: order.length - 1 }[event.key];
    if (to !== undefined) this.point(order[Math.max(0, Math.min(order.length - 1, to))]);
    else if ((event.key === "Enter" || event.key === " ") && this.pointed) this.actions.follow(this.pointed);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The document under the pointer, or "". */
  point(id) {
    if (id === this.pointed) return;
    this.pointed = id;
    this.show();
    if (id && !this.titles.has(id)) this.actions.title(id);
  }

  named(id, title) {
    this.titles.set(id, title);
    const line = this.lines.find((each) => each.id === id);
    if (line) this.groups.get(id).setAttribute("aria-label", this.words(line, this.answer.stages));
    if (id === (this.pointed || this.followed)) this.show();
  }

  follow(id) {
    this.followed = id;
    if (id && this.answer && !this.titles.has(id)) this.actions.title(id);
    if (this.answer) this.show();
  }

  show() {
    for (const [id, group] of this.groups) {
      const followed = id === this.followed;
      group.classList.toggle("followed", followed);
      group.classList.toggle("pointed", id === this.pointed);
      group.setAttribute("aria-selected", String(followed));
    }
    for (const label of this.chart.querySelectorAll("[data-label]")) {
      label.classList.toggle("followed", label.dataset.label === this.followed);
      label.classList.toggle("pointed", label.dataset.label === this.pointed);
    }
    this.chart.classList.toggle("following", this.groups.has(this.followed) || this.groups.has(this.pointed));
    for (const id of [this.followed, this.pointed])
      if (this.groups.has(id)) this.chart.append(this.groups.get(id));
    const active = this.groups.get(this.pointed || this.followed);
    if (active) this.chart.setAttribute("aria-activedescendant", active.id);
    else this.chart.removeAttribute("aria-activedescendant");
    this.tell(this.pointed || this.followed);
  }

  /** What is known of a line, below the chart. */
  tell(id) {
    const line = this.lines.find((each) => each.id === id);
    if (!line) {
      const hint = this.followed
        ? `${this.followed} is not among the candidates of this search.`
        : "Point at a line to see whose it is; click to follow it.";
      this.readout.replaceChildren(el("span", { class: "hint" }, hint));
      return;
    }
    const { stages } = this.answer;
    const steps = stages.flatMap(({ stage, ranking }, at) => {
      const rank = line.ranks[at];
      const hit = rank ? ranking[rank - 1] : null;
      return [
        at ? el("span", { class: "arrow", "aria-hidden": "true" }, "→") : null,
        el(
          "span",
          { class: "step" },
          `${stage} `,
          el("b", {}, rank ? String(rank) : "not kept"),
          hit ? el("small", {}, ` ${score(hit.score)}`) : null,
        ),
      ];
    });
    this.readout.replaceChildren(
      el(
        "button",
        { type: "button", class: "open", click: () => this.actions.open(id) },
        this.titles.get(id) ?? id,
      ),
      el("span", { class: "trail" }, ...steps),
    );
  }
}
