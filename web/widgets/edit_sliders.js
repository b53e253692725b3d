// W2W Edit: a slider for each direction of the space. The node's text `edits` is all that they read and write.

import { lastOutput } from "../canvas/outputs.js";
import { addPanel, make, remember } from "../canvas/panel.js";
import { ask } from "../canvas/server.js";
import { chain, valueOf } from "../canvas/upstream.js";
import { Value } from "../canvas/value.js";
import { read, told, writable, write } from "../text/edits.js";
import { randomStrengths, range } from "../text/ranges.js";

const HIDE = "glassbox_hide_zero";
const HEIGHT = 250;
const UNFITTED = { low: -1, high: 1, raw: 1 };

export function addEditSliders(node) {
  new EditSliders(node);
}

class EditSliders {
  constructor(node) {
    this.node = node;
    this.space = null;
    this.rows = new Map();
    this.list = make("div", "glassbox-rows glassbox-scroll", { role: "group", "aria-label": "Strengths of the directions" });
    this.status = make("div", "glassbox-status", { role: "status" });
    this.hide = make("input", "", { type: "checkbox", onchange: () => this.setHidden(this.hide.checked) });
    this.buttons = [
      button("Randomise", "A random strength for every direction", () => this.randomise()),
      button("Reset", "Take all edits out", () => this.writeAll("")),
    ];
    const head = make("div", "glassbox-head", {}, [
      ...this.buttons,
      make("label", "", { title: "Show only the directions that are in use" }, [this.hide, "Hide at zero"]),
    ]);
    const element = make("div", "glassbox-sliders", {}, [head, this.list, this.status]);
    this.edits = new Value(node, "edits", () => this.draw());
    this.units = new Value(node, "units", () => this.draw());
    addPanel(node, "sliders", element, {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
  }

  /** Finds out which directions there are: from the node's last run, else from the file of the loader before it. */
  async update(output) {
    const ran = (output?.glassbox_space ?? (await lastOutput(this.node, "glassbox_space")))?.at(-1);
    const before = chain(this.node, "point", ["W2W_POINT", "W2W_SPACE"]);
    const name = before.map((node) => valueOf(node, "space_name")).find((value) => value);
    const fitted = before.some((node) => node.comfyClass === "GBX_W2WFitDirections");
    const source = JSON.stringify([name, fitted, ran ?? null]);
    if (source !== this.source) {
      this.source = source;
      this.space = ran && (!name || sameFile(ran.name, name)) ? ran : null;
      if (!this.space && name) {
        const outline = await ask("space", { space_name: name });
        if (source === this.source) this.space = promised(outline, fitted);
      }
    }
    this.draw();
  }

  draw() {
    const { strengths, unread } = read(this.edits.current);
    const known = new Map((this.space?.directions ?? []).map((direction) => [direction.name, direction]));
    const names = [...known.keys(), ...[...strengths.keys()].filter((name) => !known.has(name))];
    const hidden = Boolean(this.node.properties[HIDE]);
    const locked = this.edits.linked;
    this.hide.checked = hidden;
    for (const one of this.buttons) one.disabled = locked;
    if (names.join("\n") !== [...this.rows.keys()].join("\n")) this.makeRows(names);
    const raw = String(this.units.current).startsWith("raw");
    for (const [name, row] of this.rows) {
      const strength = strengths.get(name) ?? 0;
      row.show(strength, known.has(name) && range(known.get(name), raw), locked);
      row.element.hidden = hidden && !strength && !row.element.contains(document.activeElement);
    }
    this.status.textContent = this.told(known, strengths, unread, locked, hidden);
  }

  told(known, strengths, unread, locked, hidden) {
    if (locked) return "The edits come from the wire.";
    if (unread.length) return `'${unread[0]}' is no edit: write a name, a colon and a strength.`;
    if (this.space?.error) return this.space.error;
    if (!known.size) return "The directions show when the space is known: connect a loader, or run once.";
    const strange = [...strengths.keys()].find((name) => !known.has(name));
    if (strange) return `The space has no direction '${strange}'.`;
    const used = [...strengths.values()].filter(Boolean).length;
    const what = this.space.promised ? "ranges show after a run" : "1 is the member furthest out";
    return `${this.space.name}: ${used} of ${known.size} in use; ${hidden && !used ? "all are hidden at zero" : what}`;
  }

  makeRows(names) {
    this.rows = new Map(names.map((name) => [name, new Row(name, this)]));
    this.list.replaceChildren(...[...this.rows.values()].map((row) => row.element));
  }

  /** Changes one strength; `done` says that the hand has let go, which takes an edit of 0 out of the text. */
  set(name, strength, done) {
    this.edits.current = write(this.edits.current, name, done && !strength ? null : strength);
    if (done) remember();
  }

  writeAll(text) {
    this.edits.current = text;
    remember();
  }

  randomise() {
    const raw = String(this.units.current).startsWith("raw");
    const directions = (this.space?.directions ?? []).filter((direction) => writable(direction.name));
    const strengths = randomStrengths(directions.map((direction) => range(direction, raw)));
    const text = directions.map(({ name }, index) => (strengths[index] ? `${name}: ${told(strengths[index])}` : ""));
    this.writeAll(text.filter(Boolean).join(", "));
  }

  setHidden(hidden) {
    this.node.properties[HIDE] = hidden;
    remember();
    this.draw();
  }
}

class Row {
  constructor(name, panel) {
    this.name = name;
    const label = `Strength of ${name}`;
    Object.assign(this, { panel, title: label });
    this.slider = this.listening(make("input", "glassbox-slider", { type: "range", "aria-label": label }));
    this.number = this.field();
    this.reset = button("×", `Reset ${name}`, () => panel.set(name, 0, true));
    this.reset.setAttribute("aria-label", `Reset ${name}`);
    this.label = make("span", "glassbox-name", { textContent: name, title: name });
    this.element = make("div", "glassbox-row", {}, [this.label, this.slider, this.number, this.reset]);
  }

  /** A number field. Left, it is replaced: the browser's own undo would else reach back into it from everywhere. */
  field() {
    const properties = { type: "number", "aria-label": `${this.title}, as a number` };
    const field = this.listening(make("input", "glassbox-number", properties));
    field.addEventListener("blur", () => {
      this.number = this.field();
      field.replaceWith(this.number);
      this.panel.draw();
    });
    return field;
  }

  listening(input) {
    const set = (done) => {
      const value = Number(input.value);
      if (input.value !== "" && Number.isFinite(value)) this.panel.set(this.name, value, done);
      else if (done) this.panel.draw();
    };
    input.addEventListener("input", () => set(false));
    input.addEventListener("change", () => set(true));
    return input;
  }

  show(strength, range, locked) {
    const usable = !locked && writable(this.name);
    this.element.classList.toggle("glassbox-strange", !range);
    this.element.classList.toggle("glassbox-used", Boolean(strength));
    const { low, high, step } = range || { low: -1, high: 1, step: 0.01 };
    Object.assign(this.slider, { min: low, max: high, step, disabled: !usable || !range });
    Object.assign(this.number, { step, disabled: !usable });
    if (document.activeElement !== this.slider || Number(this.slider.value) !== strength) this.slider.value = strength;
    if (document.activeElement !== this.number || Number(this.number.value) !== strength) this.number.value = told(strength);
    this.slider.style.setProperty("--zero", `${((0 - low) / (high - low)) * 100}%`);
    this.slider.style.setProperty("--value", `${((Math.min(Math.max(strength, low), high) - low) / (high - low)) * 100}%`);
    this.reset.disabled = !usable || !strength;
  }
}

function button(text, title, onclick) {
  return make("button", "glassbox-button", { type: "button", textContent: text, title, onclick });
}

/** Before a run a Fit Directions node has not made its directions yet: they will be those of the labels. */
function promised(outline, fitted) {
  if (outline.error) return { ...outline, directions: [] };
  const there = new Set(outline.directions.map((direction) => direction.name));
  const coming = fitted ? outline.labels.filter((name) => !there.has(name)) : [];
  const directions = [...outline.directions, ...coming.map((name) => ({ name, ...UNFITTED }))];
  return { ...outline, directions, promised: coming.length > 0 };
}

function sameFile(name, file) {
  return file.split(/[\\/]/).at(-1).replace(/\.safetensors$/, "") === name;
}
