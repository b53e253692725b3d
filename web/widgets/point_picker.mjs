// Points on an image: click to add one, drag to move it, Delete or a double click to remove it. The node's text
// `points` is all that the picker reads and writes; the image is that of the node's last run, or of Load Image.

import { api } from "../../../scripts/api.js";
import { lastOutput } from "../canvas/outputs.mjs";
import { addPanel, make, remember } from "../canvas/panel.js";
import { draw, set } from "../canvas/svg.mjs";
import { sourceOf, valueOf } from "../canvas/upstream.mjs";
import { Value } from "../canvas/value.mjs";
import { add, move, read } from "../text/points.mjs";
import { say } from "../text/words.js";

const HEIGHT = 300;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const HELP = "Click to add, drag to move, double-click to remove.";

/** `input`: the node's input with the image; `mask`: the input that replaces the points, if any. */
export function addPointPicker(input, mask) {
  return (node) => void new PointPicker(node, input, mask);
}

class PointPicker {
  constructor(node, input, mask) {
    Object.assign(this, { node, input, mask, dots: [], shown: null, missing: null });
    this.points = new Value(node, "points", () => this.draw());
    this.number = new Value(node, "image_index", () => this.update());
    this.image = draw("image", {});
    this.svg = draw("svg", { class: "glassbox-image", role: "group", "aria-label": say("Points on the image") });
    this.svg.append(this.image);
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.empty = make("div", "glassbox-empty");
    this.status = make("div", "glassbox-status glassbox-two-lines", { role: "status" });
    const clear = make("button", "glassbox-button", {
      type: "button",
      textContent: say("Clear"),
      title: say("Remove all points"),
      onclick: () => this.write("", true),
    });
    this.clear = clear;
    const foot = make("div", "glassbox-head", {}, [this.status, clear]);
    addPanel(node, "picker", make("div", "glassbox-picker", {}, [this.svg, this.empty, foot]), {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
  }

  /** Finds the image that the points are on. */
  async update(output) {
    const ran = output?.glassbox_images ?? (await lastOutput(this.node, "glassbox_images"));
    const image = this.ofLoader() ?? ran?.find(({ number }) => number === Number(this.number.current)) ?? null;
    if (!image) this.missing = null;
    if (image?.address !== this.shown?.address || image?.filename !== this.shown?.filename) {
      this.shown = image;
      if (image) this.show(image);
    }
    this.draw();
  }

  /** The image of a Load Image node that is directly connected to this one. */
  ofLoader() {
    const loader = sourceOf(this.node, this.input);
    if (loader?.comfyClass !== "LoadImage" || Number(this.number.current) !== 0) return null;
    const [, name, type = "input"] = /^(.*?)(?: \[(\w+)\])?$/.exec(String(valueOf(loader, "image") ?? ""));
    if (!name) return null;
    const cut = name.lastIndexOf("/");
    return { filename: name.slice(cut + 1), subfolder: name.slice(0, Math.max(cut, 0)), type };
  }

  async show(image) {
    const { filename, subfolder, type } = image;
    const address = api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type })}`);
    try {
      const size = image.width ? image : await sizeOf(address);
      if (image !== this.shown) return;
      this.missing = null;
      Object.assign(image, { width: size.width, height: size.height });
      this.svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
      set(this.image, { href: address, width: size.width, height: size.height });
    } catch {
      if (image !== this.shown) return;
      this.missing = type === "temp" ? null : filename; // the temporary one of an earlier run comes back with the next
      this.shown = null;
    }
    this.draw();
  }

  draw() {
    const ready = Boolean(this.shown?.width);
    this.svg.style.display = ready ? "" : "none";
    this.empty.hidden = ready;
    this.empty.textContent = this.missing
      ? say("There is no image '{0}'.", this.missing)
      : say("The image appears after the first run.");
    this.clear.disabled = this.locked || !this.points.current.trim();
    if (!ready) {
      this.status.textContent = "";
      return;
    }
    const { points, problem } = read(this.points.current, this.shown);
    while (this.dots.length > points.length) this.dots.pop().remove();
    while (this.dots.length < points.length) this.dots.push(this.dot(this.dots.length));
    const radius = Math.max(this.shown.width, this.shown.height) / 45;
    for (const [index, { x, y }] of points.entries()) place(this.dots[index], index, x, y, radius);
    const counted = `${say(points.length === 1 ? "1 point." : "{0} points.", points.length)} ${say(HELP)}`;
    this.status.textContent = this.reason ?? problem ?? counted;
    this.status.title = this.status.textContent;
    this.status.classList.toggle("glassbox-problem", Boolean(problem) && !this.reason);
  }

  /** Why the points cannot be changed here, or null. */
  get reason() {
    if (this.points.linked) return say("The points come from a connection.");
    if (this.mask && sourceOf(this.node, this.mask)) return say("The mask is used instead of the points.");
    return null;
  }

  get locked() {
    return this.reason !== null;
  }

  dot(index) {
    const group = draw("g", { class: "glassbox-dot", tabindex: 0, role: "button" });
    group.append(draw("circle", {}), draw("text", {}));
    group.addEventListener("keydown", (event) => this.key(event, index));
    group.addEventListener("dblclick", () => this.moveTo(index, null, true));
    this.svg.append(group);
    return group;
  }

  press(event) {
    if (event.button || this.locked || !this.shown?.width) return;
    event.preventDefault();
    let index = this.dots.indexOf(event.target.closest(".glassbox-dot"));
    if (index < 0) {
      const point = this.at(event);
      if (!point) return;
      this.write(add(this.points.current, point, this.shown), false);
      index = this.dots.length - 1;
    }
    this.dots[index]?.focus();
    const held = new AbortController();
    const stop = () => {
      held.abort();
      remember();
    };
    const drag = (event) => {
      if (event.buttons & 1) this.moveTo(index, this.at(event, true), false);
      else stop(); // the button was let go where the page does not hear of it
    };
    window.addEventListener("pointermove", drag, { capture: true, signal: held.signal });
    window.addEventListener("pointerup", stop, { capture: true, signal: held.signal });
  }

  key(event, index) {
    if (this.locked || event.ctrlKey || event.metaKey) return;
    const point = read(this.points.current, this.shown).points[index];
    if (event.key === "Delete" || event.key === "Backspace") this.moveTo(index, null, true);
    else if (event.key in STEPS) {
      const [right, down] = STEPS[event.key].map((step) => step * (event.shiftKey ? 10 : 1));
      this.moveTo(index, this.inside({ x: point.x + right, y: point.y + down }), true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  moveTo(index, point, done) {
    if (!this.locked) this.write(move(this.points.current, index, point, this.shown), done);
  }

  write(text, done) {
    this.points.current = text;
    this.draw(); // the text may stand on a subgraph's node, which does not call this one back
    if (done) remember();
  }

  /** Where on the image a pointer is; outside of it null, or with `clamped` the nearest place on it. */
  at(event, clamped = false) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    const inside = this.inside(point);
    return clamped || (inside.x === point.x && inside.y === point.y) ? inside : null;
  }

  inside({ x, y }) {
    const { width, height } = this.shown;
    return { x: Math.min(Math.max(x, 0), width - 1), y: Math.min(Math.max(y, 0), height - 1) };
  }
}

function place(dot, index, x, y, radius) {
  const [circle, text] = dot.children;
  set(circle, { cx: x, cy: y, r: radius });
  set(text, { x, y, "font-size": radius * 1.3 });
  text.textContent = index + 1;
  const values = [index + 1, Math.round(x), Math.round(y)];
  dot.setAttribute("aria-label", say("Point {0} at {1}, {2}: arrows move it, Delete removes", ...values));
}

async function sizeOf(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return { width: image.naturalWidth, height: image.naturalHeight };
}
