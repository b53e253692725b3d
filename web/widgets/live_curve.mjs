// The losses of a training or an inversion, drawn while it runs, and afterwards those of its last run.

import { finishButton } from "../canvas/finish.mjs";
import { onCurve } from "../canvas/live.js";
import { lastOutput } from "../canvas/outputs.mjs";
import { addPanel, make } from "../canvas/panel.js";
import { draw, set } from "../canvas/svg.mjs";
import { bounds, lastStep, short, ticks, summary, summaryAt } from "../text/curves.mjs";
import { say } from "../text/words.js";

const HEIGHT = 190;

export function addLiveCurve(node) {
  new LiveCurve(node);
}

class LiveCurve {
  constructor(node) {
    Object.assign(this, { node, curve: null, at: null }); // `at`: where the pointer is, from 0 to 1
    this.lines = Object.fromEntries(["each", "mean", "validation", "dots"].map((name) => [name, line(name)]));
    this.pointer = draw("path", { class: "glassbox-pointer" });
    this.grid = draw("path", { class: "glassbox-grid" });
    this.svg = draw("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", role: "img" });
    this.svg.append(this.grid, ...Object.values(this.lines), this.pointer);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.across = make("div", "glassbox-across", { "aria-hidden": "true" });
    this.up = make("div", "glassbox-up-axis", { "aria-hidden": "true" });
    this.plot = make("div", "glassbox-plot", {}, [this.up, this.svg, this.across]);
    this.trained = make("span", "");
    this.heldOut = key("validation", say("held-out loss"));
    this.head = make("div", "glassbox-head", { "aria-hidden": "true" }, [key("mean", this.trained), this.heldOut]);
    this.empty = make("div", "glassbox-empty", { textContent: say("The losses show while it runs.") });
    this.status = make("div", "glassbox-status glassbox-two-lines");
    const element = make("div", "glassbox-curve", {}, [this.head, this.plot, this.empty, this.status, finishButton(node)]);
    addPanel(node, "curve", element, { height: HEIGHT, update: (output) => this.update(output) });
    onCurve(node, (curve) => this.show(curve));
  }

  /** After a run its own result; before one, what the last left. */
  async update(output) {
    const known = output?.glassbox_curve?.at(-1) ?? this.curve;
    const last = known ? null : await lastOutput(this.node, "glassbox_curve");
    this.show(known ?? this.curve ?? last?.at(-1)); // a run may have sent its own in the meantime
  }

  show(curve) {
    const drawn = Boolean(curve?.each.length || curve?.validation.length);
    this.empty.hidden = drawn;
    for (const part of [this.head, this.plot, this.status]) part.hidden = !drawn;
    if (!drawn || curve === this.curve) return;
    this.curve = curve;
    const { low, high } = bounds(curve);
    const last = lastStep(curve);
    const x = (step) => step / last;
    const y = (loss) => (high - loss) / (high - low);
    const path = (points) => points.map(([step, loss], at) => `${at ? "L" : "M"}${x(step)} ${y(loss)}`).join("");
    for (const name of ["each", "mean", "validation"]) set(this.lines[name], { d: path(curve[name]) });
    set(this.lines.dots, { d: curve.validation.map(([step, loss]) => `M${x(step)} ${y(loss)}h0`).join("") });
    const losses = ticks(low, high, 5);
    set(this.grid, { d: losses.map((loss) => `M0 ${y(loss)}H1`).join("") });
    this.up.replaceChildren(...losses.map((loss) => label("top", y(loss), short(loss))));
    const steps = ticks(0, last, 5).map((step) => label("left", x(step), short(step)));
    this.across.replaceChildren(...steps);
    this.trained.textContent = say("training loss, mean of {0}", curve.smooth);
    this.heldOut.hidden = !curve.validation.length;
    const whole = say("Losses; of training the mean of {0}. {1}", curve.smooth, summary(curve));
    this.svg.setAttribute("aria-label", whole);
    this.say();
  }

  /** Says what there is to say of the whole, or of the step at the pointer. */
  say() {
    const read = this.at !== null && this.curve.mean.length > 0;
    this.pointer.setAttribute("d", read ? `M${this.at} 0V1` : "");
    this.status.textContent = read ? summaryAt(this.curve, this.at * lastStep(this.curve)) : summary(this.curve);
  }

  point(event) {
    const { left, width } = this.svg.getBoundingClientRect();
    this.at = Math.min(Math.max((event.clientX - left) / width, 0), 1);
    this.say();
  }

  leave() {
    this.at = null;
    this.say();
  }
}

function line(name) {
  return draw("path", { class: `glassbox-line-${name}` });
}

function key(name, text) {
  return make("span", "glassbox-key", {}, [make("span", `glassbox-swatch glassbox-of-${name}`), text]);
}

function label(side, share, text) {
  const element = make("span", "glassbox-tick", { textContent: text });
  element.style[side] = `${share * 100}%`;
  return element;
}
