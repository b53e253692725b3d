// The neurons of a mask as bars, a row a layer, as high as they stand out. In Neuron Mask Edit a click switches one: its
// inputs `operation` and `neurons` are all that the chart reads and writes.

import { Cells } from "../canvas/cells.mjs";
import { finishButton } from "../canvas/finish.mjs";
import { lastOutput } from "../canvas/outputs.mjs";
import { LiveSwitch } from "../canvas/live_queue.mjs";
import { addPanel, make, remember } from "../canvas/panel.js";
import { Value } from "../canvas/value.mjs";
import { headOf, read, write } from "../text/neurons.mjs";
import { say } from "../text/words.js";

const HEIGHT = 220;
const DROP = "drop_named";
const KEEP = "keep_named";
const LOWEST = 15; // per cent of a bar's height that the weakest neuron still has, to be seen and hit

/** `changeable`: whether the node has the inputs to switch neurons, or only shows those of its mask. */
export function addNeuronChart(changeable) {
  return (node) => void new NeuronChart(node, changeable);
}

class NeuronChart {
  constructor(node, changeable) {
    Object.assign(this, { node, neurons: [], summary: "", problem: null, at: null });
    this.operation = changeable ? new Value(node, "operation", () => this.draw()) : null;
    this.largest = changeable ? new Value(node, "count", () => this.draw()) : null;
    this.names = changeable ? new Value(node, "neurons", () => this.draw()) : null;
    this.rows = make("div", "glassbox-rows glassbox-scroll glassbox-neurons", {
      role: "listbox",
      "aria-multiselectable": "true",
      "aria-label": say("Neurons of the mask"),
    });
    this.status = make("div", "glassbox-status glassbox-two-lines", { role: "status" });
    this.cells = new Cells(this.rows, this);
    this.live = new LiveSwitch(node, () => this.readable());
    const head = changeable ? [make("div", "glassbox-head", {}, [this.live.element])] : [];
    addPanel(node, "neuron_chart", make("div", "glassbox-chart", {}, [...head, this.rows, this.status, finishButton(node)]), {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
  }

  async update(output) {
    const mask = (output?.glassbox_neurons ?? (await lastOutput(this.node, "glassbox_neurons")))?.at(-1);
    if (mask && mask !== this.mask) this.build(mask);
    this.draw();
  }

  build(mask) {
    Object.assign(this, { mask, at: null });
    this.neurons = mask.neurons.map(([path, index, scale, z]) => ({ path, index, scale, z }));
    const highest = Math.max(...this.neurons.map(({ z }) => Math.abs(z ?? 0)), 1e-9);
    const bars = this.neurons.map((neuron) => bar(neuron, highest));
    const layers = new Map();
    for (const [place, { path }] of this.neurons.entries()) layers.set(path, [...(layers.get(path) ?? []), place]);
    this.cells.replace(bars, [...layers.values()]);
    const shown = [...layers].map(([path, places]) => {
      const name = headOf(path, this.neurons);
      const label = make("span", "glassbox-layer", { textContent: `${name} · ${places.length}`, title: path });
      const all = make("div", "glassbox-bars", { role: "presentation" }, places.map((place) => bars[place]));
      return make("div", "glassbox-neuron-row", { role: "group", "aria-label": name }, [label, all]);
    });
    this.rows.replaceChildren(...shown);
  }

  draw() {
    const { on, problem } = this.masked();
    for (const [place, cell] of this.cells.cells.entries()) cell.setAttribute("aria-selected", on.has(place));
    this.rows.setAttribute("aria-disabled", !this.changeable);
    this.live.draw();
    this.live.follow();
    Object.assign(this, { problem, summary: this.counted(on.size) });
    this.say();
  }

  /** What Live follows; null while the names are half typed. */
  readable() {
    if (!this.names || this.problem) return null;
    return JSON.stringify([this.operation, this.largest, this.names].map((value) => value?.current));
  }

  say() {
    this.status.textContent = this.problem ?? (this.at === null ? this.summary : about(this.neurons[this.at]));
    this.status.classList.toggle("glassbox-problem", Boolean(this.problem));
  }

  counted(count) {
    if (!this.mask) return say("The neurons show after the first run.");
    if (!this.mask.count) return say("The mask is empty.");
    const [whole, shown] = [this.mask.count, this.neurons.length];
    const more = whole > shown ? say(", of which the {0} largest are shown", shown) : "";
    if (!this.names) return say("{0} neurons in the mask{1}.", whole, more);
    if (!this.following && !this.hasRun) return say("{0} neurons come in{1}; click one to leave it out.", whole, more);
    return say(more ? "{0} of the {1} largest stay in the mask." : "{0} of {1} stay in the mask.", count, shown);
  }

  /** Whether the inputs name neurons; the other operations do not. */
  get following() {
    return this.operation?.current === DROP || this.operation?.current === KEEP;
  }

  /** Whether the last run was made with these inputs, so that it says which neurons stay. */
  get hasRun() {
    const { kept, operation, largest } = this.mask ?? {};
    return kept && operation === this.operation?.current && largest === this.largest?.current;
  }

  get changeable() {
    return Boolean(this.names) && !this.names.linked && !this.operation.linked;
  }

  /** The places of the neurons that stay in the mask. */
  masked() {
    const all = new Set(this.neurons.keys());
    if (!this.mask) return { on: all, problem: null };
    if (!this.following) return { on: this.hasRun ? new Set(this.mask.kept) : all, problem: null };
    const { named, unknown } = read(this.names.current, this.neurons);
    const problem = unknown.length ? say("'{0}' names no neuron of this mask.", unknown[0]) : null;
    const kept = this.operation.current === KEEP;
    return { on: new Set([...all].filter((place) => named.has(place) === kept)), problem };
  }

  isOn(place) {
    return this.cells.cells[place].getAttribute("aria-selected") === "true";
  }

  switchSome(places, on) {
    if (!this.changeable) return;
    if (!this.following) this.takeOver();
    const naming = (this.operation.current === KEEP) === on;
    let text = this.names.current;
    for (const place of places) text = write(text, this.neurons, place, naming);
    this.names.current = text;
    this.draw();
    this.live.changed();
  }

  /** From another operation on, names stand for what it keeps or for the others, whichever are fewer. */
  takeOver() {
    const { on } = this.masked();
    const keep = 2 * on.size < this.neurons.length;
    const named = [...this.neurons.keys()].filter((place) => on.has(place) === keep);
    this.names.current = named.reduce((text, place) => write(text, this.neurons, place, true), "");
    this.operation.current = keep ? KEEP : DROP;
  }

  switched() {
    if (this.changeable) remember();
  }

  pointed(place) {
    this.at = place;
    this.say();
  }
}

function bar(neuron, highest) {
  const share = neuron.z === null ? 60 : LOWEST + ((100 - LOWEST) * Math.abs(neuron.z)) / highest;
  const fill = make("span", "glassbox-bar-fill");
  fill.style.height = `${share}%`;
  return make("span", "glassbox-bar", { role: "option", "aria-label": about(neuron), "aria-selected": "true" }, [fill]);
}

function about({ path, index, scale, z }) {
  const parts = [say("{0}, neuron {1}", path.split(".transformer_blocks.", 1)[0], index)];
  if (z !== null) parts.push(`z ${z.toFixed(2)}`);
  if (scale) parts.push(say("times {0}", scale));
  return parts.join(" · ");
}
