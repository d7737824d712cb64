// Curves over rounds, in the colours of the page.

import { byId } from "./dom.js";

const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7].map((e) => n * 10 ** e)).sort((a, b) => a - b);
const dark = matchMedia("(prefers-color-scheme: dark)");

export class Curves {
  // `series`: [{label, colour: name of a CSS variable, dash, width}]; the x axis is the round.
  constructor(id, series) {
    this.box = byId(id);
    this.series = series;
    this.data = [[], ...series.map(() => [])];
    new ResizeObserver(() => this.fit()).observe(this.box);
    dark.addEventListener("change", () => this.draw());
  }

  // `data`: the rounds, then for each series its values, null where it has none.
  show(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.draw();
  }

  fit() {
    const width = this.box.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: 240 });
  }

  draw() {
    if (!this.data[0].length) return;
    this.plot?.destroy();
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid") }, ticks: { stroke: colour("--grid") } };
    this.plot = new window.uPlot(
      {
        width: this.box.clientWidth,
        height: 240,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false } },
        axes: [{ ...axis, label: "round", labelSize: 20, incrs: WHOLE }, { ...axis, label: "nats a token", labelSize: 20, size: 48 }],
        series: [
          {},
          ...this.series.map((one) => ({
            label: one.label, stroke: colour(one.colour), width: one.width ?? 2, dash: one.dash, spanGaps: true,
            points: { show: one.points ?? false },
          })),
        ],
      },
      this.data,
      this.box,
    );
    const canvas = this.box.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Curves of the loss over the rounds. The line below says the newest values.");
  }
}

// Lists of [round, value], one a series, on common rounds.
export function joined(lists) {
  const rounds = [...new Set(lists.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const at = new Map(rounds.map((round, place) => [round, place]));
  return [rounds, ...lists.map((points) => {
    const values = new Array(rounds.length).fill(null);
    for (const [x, y] of points) values[at.get(x)] = y;
    return values;
  })];
}
