// W2W Edit, Mix Steering Directions, Edit by Words, Sliders: a slider for each direction, words, or LoRA. The node's text `edits` is
// all that they read and write.

import { lastOutput } from "../canvas/outputs.mjs";
import { LiveSwitch } from "../canvas/live_queue.mjs";
import { addPanel, make, placeAbove, remember } from "../canvas/panel.js";
import { ask } from "../canvas/server.js";
import { chain, isWired, sourceOf, valueOf, widgetOf } from "../canvas/upstream.mjs";
import { Value } from "../canvas/value.mjs";
import { formatted, named, read, writable, write } from "../text/edits.mjs";
import { isBeyond, onGrid, randomStrengths, range, settled } from "../text/ranges.mjs";
import { say } from "../text/words.js";

const HIDE = "glassbox_hide_zero";
const HEIGHT = 250;
const DIRECTION = "STEERING_DIRECTION";
const TEXT = "edits";
const MEASURED = "most_reliable"; // the method by which the directions were fitted whose reach a space knows
const UNFITTED = { low: -1, high: 1, raw: 1 };
const WORDS = { low: -4, high: 4, raw: 1 };
const LORA = { low: -2, high: 2, raw: 1 };
const LOADED = 1; // the strength of a LoRA that is added, as in Load LoRA
const COMPONENT = { low: -3, high: 3, raw: 1 }; // in standard deviations of the members, whatever the units

export function addEditSliders(node) {
  new SpaceSliders(node);
}

export function addDirectionSliders(node) {
  new DirectionSliders(node);
}

export function addWordSliders(node) {
  new WordSliders(node);
}

export function addLoraSliders(node) {
  new LoraSliders(node);
}

/** What all of them have. `directions` have names and ranges; `space` is null until all of them are known. */
class EditSliders {
  constructor(node) {
    this.node = node;
    this.space = null;
    this.rows = new Map();
    const label = say("Strengths of the directions");
    this.list = make("div", "glassbox-rows glassbox-scroll", { role: "group", "aria-label": label });
    this.status = make("div", "glassbox-status glassbox-two-lines", { role: "status" });
    this.hide = make("input", "", { type: "checkbox", onchange: () => this.setHidden(this.hide.checked) });
    const every = say("A random strength for every direction");
    this.random = button(say("Randomize"), every, () => this.randomize());
    this.reset = button(say("Reset"), say("Take all edits out"), () => this.resetAll());
    this.live = new LiveSwitch(node, () => this.readable());
    const head = make("div", "glassbox-head", {}, [
      this.random,
      this.reset,
      this.live.element,
      this.live.draftElement,
      make("label", "", { title: say("Show only the directions that are in use") }, [this.hide, say("Hide at zero")]),
    ]);
    const element = make("div", "glassbox-sliders", {}, [head, this.list, this.status]);
    this.edits = new Value(node, TEXT, () => this.draw());
    const panel = addPanel(node, "sliders", element, {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
    placeAbove(node, panel, TEXT);
  }

  /** Strengths by the names that the text means: upper and lower case count only where two names differ by nothing else. */
  read() {
    const { strengths: written, unread } = read(this.edits.current);
    const names = [...this.known(written).keys()];
    const strengths = new Map();
    for (const [name, strength] of written) {
      const meant = named(name, names) ?? name;
      strengths.set(meant, (strengths.get(meant) ?? 0) + strength);
    }
    return { strengths, unread };
  }

  /** The text, for Live; null while it is half typed. */
  readable() {
    const { strengths, unread } = this.read();
    const known = this.known(strengths);
    const strange = this.space && [...strengths.keys()].some((name) => !known.has(name));
    return unread.length || strange ? null : this.edits.current;
  }

  draw() {
    const { strengths, unread } = this.read();
    const known = this.known(strengths);
    const names = [...known.keys(), ...[...strengths.keys()].filter((name) => !known.has(name))];
    const hidden = Boolean(this.node.properties[HIDE]);
    const locked = this.edits.linked;
    this.hide.checked = hidden;
    this.live.draw();
    this.live.follow();
    this.random.disabled = locked || !this.space?.directions.length; // or it would only take the edits out
    this.reset.disabled = locked;
    if (names.join("\n") !== [...this.rows.keys()].join("\n")) this.makeRows(names);
    for (const [name, row] of this.rows) {
      const strength = strengths.get(name) ?? 0;
      row.show(strength, known.has(name) && range(known.get(name), this.raw), locked);
      row.judge(known.get(name), strength, locked);
      row.element.classList.toggle("glassbox-strange", Boolean(this.space) && !known.has(name));
      row.element.hidden = hidden && !strength && !row.element.contains(document.activeElement);
    }
    this.status.textContent = this.statusText(known, strengths, unread, locked, hidden);
    this.status.title = this.status.textContent; // a sentence of the server may be longer than two lines
  }

  /** What has a range, by name. `strengths` holds what the text names. */
  known() {
    return new Map(this.directions.map((direction) => [direction.name, direction]));
  }

  statusText(known, strengths, unread, locked, hidden) {
    if (locked) return say("The edits come from the wire.");
    if (unread.length) return say("'{0}' is no edit: write a name, a colon and a strength.", unread[0]);
    if (this.space?.error) return this.space.error;
    if (!this.space) return say(this.words.unknown);
    const strange = [...strengths.keys()].find((name) => !known.has(name));
    if (strange) return say(this.words.strange, strange);
    if (!known.size) return say(this.words.none);
    const beyond = [...strengths.keys()].find((name) => this.isBeyond(known.get(name), strengths.get(name)));
    if (beyond) {
      const { low, high } = range(known.get(beyond), this.raw);
      return say("'{0}' is beyond its range, {1} to {2}: images may fall apart.", beyond, formatted(low), formatted(high));
    }
    const used = [...strengths.values()].filter(Boolean).length;
    const what = this.space.promised ? "ranges show after a run" : this.unit;
    const more = say(hidden && !used ? "all are hidden at zero" : what);
    return say("{0}: {1} of {2} in use; {3}", this.space.name, used, known.size, more);
  }

  /** False where the range is not known before a run. */
  isBeyond(direction, strength) {
    const promised = this.space.promised && direction !== COMPONENT;
    return !promised && isBeyond(strength, range(direction, this.raw));
  }

  makeRows(names) {
    this.rows = new Map(names.map((name) => [name, new Row(name, this)]));
    this.list.replaceChildren(...[...this.rows.values()].map((row) => row.element));
  }

  /** Changes one strength; `done` says that the hand has let go, which takes an edit of 0 out of the text. */
  set(name, strength, done) {
    this.replace(name, done && !strength ? null : strength);
    if (done) remember();
    this.live.changed(!done);
  }

  /** Writes a strength to the text; null takes the name out. */
  replace(name, strength) {
    const names = [...this.rows.keys()];
    const resolve = (written) => named(written, names) ?? written;
    this.edits.current = write(this.edits.current, name, strength, resolve);
  }

  /** Takes one out. */
  clear(name) {
    this.set(name, 0, true);
  }

  resetAll() {
    this.writeAll("");
  }

  writeAll(text) {
    this.edits.current = text;
    remember();
    this.live.changed();
  }

  randomize() {
    const directions = (this.space?.directions ?? []).filter((direction) => writable(direction.name) && !direction.noise);
    const strengths = randomStrengths(directions.map((direction) => range(direction, this.raw)));
    this.writeAll(directions.map(({ name }, index) => `${name}: ${formatted(strengths[index])}`).join(", "));
  }

  setHidden(hidden) {
    this.node.properties[HIDE] = hidden;
    remember();
    this.draw();
  }
}

/** W2W Edit: the directions are those of the space on the wire. */
class SpaceSliders extends EditSliders {
  words = {
    unknown: "The directions show when the space is known: connect a loader, or run once.",
    none: "The space has no directions: put W2W Fit Directions before, or write PC 1: 1 for an axis.",
    strange: "The space has no direction '{0}'.",
  };

  constructor(node) {
    super(node);
    this.units = new Value(node, "units", () => this.draw());
  }

  /** Finds out which directions there are: from the node's last run, else from the file of the loader before it. */
  async update(output) {
    const ran = (output?.glassbox_space ?? (await lastOutput(this.node, "glassbox_space")))?.at(-1);
    const before = chain(this.node, "point", ["W2W_POINT", "W2W_SPACE"]);
    // W2W Load Space makes a new file where it imports, whose directions show after a run.
    const files = before.map((node) => !valueOf(node, "release_folder") && valueOf(node, "space_name"));
    const name = files.find((value) => value);
    const fitting = before.find((node) => node.comfyClass === "GBX_W2WFitDirections");
    if (ran && (!name || sameFile(ran.name, name))) this.space = ran;
    else this.space = name ? promised(await ask("space", { space_name: name }), fitting) : null;
    this.draw();
  }

  get directions() {
    return this.space?.directions ?? [];
  }

  /** Also the components that the text names, such as "PC 1". */
  known(strengths) {
    const known = super.known();
    for (const name of strengths.keys()) {
      const number = componentOf(name);
      const beyond = number > this.space?.components; // false as long as the space is not known
      if (!known.has(name) && number >= 1 && !beyond) known.set(name, COMPONENT);
    }
    return known;
  }

  /** What a strength of 1 is. */
  get unit() {
    if (!this.space.directions.length) return "1 is a standard deviation";
    return this.raw ? "1 is the vector as it was fitted" : "1 is the member furthest out";
  }

  get raw() {
    return this.units.current === "raw";
  }
}

/** Mix Steering Directions: the directions are those on its wires, by the names in the nodes that compute them. */
class DirectionSliders extends EditSliders {
  directions = [];
  raw = false;
  unit = "1 is the direction as it was computed";
  words = {
    unknown: "The names of the directions show after a run.",
    none: "Connect a direction.",
    strange: "No direction is named '{0}'.",
  };

  /** Names that no node before shows, such as those of files, come from the last run. */
  async update(output) {
    const ran = (output?.glassbox_directions ?? (await lastOutput(this.node, "glassbox_directions")))?.at(-1) ?? {};
    const wired = this.node.inputs.filter(({ name, type }) => type === DIRECTION && sourceOf(this.node, name));
    const names = wired.map(({ name }) => nameOf(sourceOf(this.node, name), name) ?? ran[name]);
    this.directions = names.filter(Boolean).map((name) => ({ name, ...UNFITTED }));
    this.space = names.includes(undefined) ? null : { name: say("Directions"), directions: this.directions };
    this.draw();
  }
}

/** Edit by Words: what the text names, each with the strengths that were measured to be of use. */
class WordSliders extends EditSliders {
  directions = [];
  raw = false;
  unit = "1 is the changed prompt";
  space = { directions: [] };
  words = { none: "Write words and a strength, such as brown hair -> red hair: 2" };

  update() {
    this.draw();
  }

  known(strengths) {
    this.directions = [...strengths.keys()].map((name) => ({ name, ...WORDS }));
    this.space = { name: say("Words"), directions: this.directions };
    return super.known();
  }
}

/** Sliders: the LoRAs that the text names or that come by wire, and a list to add others from. */
class LoraSliders extends EditSliders {
  raw = false;
  unit = "1 is the LoRA as it was trained";
  files = []; // the names of all LoRAs
  listed = {}; // by the name in the text, what is known of a file
  wired = []; // what came by wire at the last run
  question = null; // the names that the server was last sent
  words = {
    unknown: "The LoRAs are looked up.",
    none: "Add a LoRA, or connect files from Train Slider and run once.",
    strange: "There is no LoRA '{0}' in models/loras.",
  };

  constructor(node) {
    super(node);
    const title = say("Add a LoRA");
    this.adder = make("select", "glassbox-adder", { title, onchange: () => this.add(this.adder.value) });
    this.adder.setAttribute("aria-label", title);
    this.random.before(this.adder);
    this.random.title = say("A random strength for every LoRA");
    this.reset.title = say("Set all strengths to 0");
  }

  /** The labels of files come from the server, those of wired ones from the last run. */
  async update(output) {
    const question = this.written();
    this.question = question;
    const ran = (output?.glassbox_sliders ?? (await lastOutput(this.node, "glassbox_sliders")))?.at(-1);
    const answer = await ask("sliders", { named: question });
    this.wired = sourceOf(this.node, "files") ? (ran ?? []) : [];
    this.files = answer.files ?? [];
    this.listed = answer.sliders ?? {};
    this.space = { name: "LoRA", directions: [], error: answer.error };
    this.draw();
  }

  known(strengths) {
    const known = new Map(this.wired.map((slider) => [slider.name, slider]));
    const listed = Object.values(this.listed);
    for (const written of strengths.keys()) {
      const slider = this.listed[written] ?? listed.find(({ name }) => name === written);
      if (!slider || named(written, [...known.keys()])) continue;
      known.set(named(written, [slider.name]) ?? written, slider); // with a file's ending it stays as it is written
    }
    for (const [name, slider] of known) known.set(name, { ...slider, ...LORA, name });
    if (this.space) this.space.directions = [...known.values()];
    return known;
  }

  draw() {
    super.draw();
    const { strengths } = this.read();
    const locked = this.edits.linked;
    for (const [name, row] of this.rows) {
      row.reset.disabled = locked || !strengths.has(name);
      row.reset.title = say("Remove {0}", name);
      row.reset.setAttribute("aria-label", row.reset.title);
    }
    const free = this.files.filter((name) => writable(name) && !strengths.has(name));
    const options = [["", say("Add a LoRA")], ...free.map((name) => [name, name])];
    this.adder.replaceChildren(...options.map(([value, textContent]) => make("option", "", { value, textContent })));
    this.adder.disabled = locked;
    if (this.question !== null && this.question !== this.written()) this.update().catch(console.error);
  }

  /** The names in the text, one per line. */
  written() {
    return [...read(this.edits.current).strengths.keys()].join("\n");
  }

  add(name) {
    if (name) this.set(name, LOADED, true);
  }

  /** Changes one strength; at 0 the LoRA stays in the text, and on the panel. */
  set(name, strength, done) {
    this.replace(name, strength);
    if (done) remember();
    this.live.changed(!done);
  }

  clear(name) {
    this.replace(name, null);
    remember();
    this.live.changed();
  }

  resetAll() {
    this.writeAll([...this.read().strengths.keys()].map((name) => `${name}: 0`).join(", "));
  }
}

const UNKNOWN = { low: -1, high: 1, step: 0.01, power: -2 }; // of a name that is not a direction

class Row {
  constructor(name, panel) {
    this.name = name;
    const label = say("Strength of {0}", name);
    this.panel = panel;
    this.slider = make("input", "glassbox-slider", { type: "range", "aria-label": label });
    this.slider.addEventListener("input", () => this.set(this.slider, false));
    this.slider.addEventListener("change", () => this.set(this.slider, true));
    this.slider.addEventListener("pointerup", () => {
      if (this.slider.disabled) return; // Chromium tells it of the pointer all the same
      this.set(this.slider, true); // before the front end looks at mouseup, or an edit that ends at 0 is two steps of undo
      this.slider.blur(); // so that the canvas takes Ctrl+Z
    });
    this.number = this.field();
    this.reset = button("×", say("Reset {0}", name), () => panel.clear(name));
    this.reset.setAttribute("aria-label", say("Reset {0}", name));
    this.label = make("span", "glassbox-name", { textContent: name, title: name });
    this.ends = make("div", "glassbox-ends");
    this.element = make("div", "glassbox-row", {}, [this.label, this.slider, this.number, this.reset, this.ends]);
  }

  /**
   * A number field. What is typed counts once it is done: the front end would take the first digit for a step of undo. Left,
   * the field is replaced: the browser's own undo would else reach back into it from everywhere.
   */
  field() {
    const properties = { type: "number", "aria-label": say("Strength of {0}, as a number", this.name) };
    const field = make("input", "glassbox-number", properties);
    field.addEventListener("input", () => (this.typing = true));
    field.addEventListener("change", () => {
      this.typing = false;
      this.set(field, true);
    });
    field.addEventListener("blur", () => {
      this.typing = false;
      this.number = this.field();
      field.replaceWith(this.number);
      this.panel.draw();
    });
    return field;
  }

  set(input, done) {
    if (input.disabled) return;
    const value = Number(input.value);
    const strength = input === this.slider ? onGrid(value, this.range) : settled(value, this.range);
    if (input.value !== "" && Number.isFinite(value)) this.panel.set(this.name, strength, done);
    else if (done) this.panel.draw();
  }

  show(strength, range, locked) {
    const usable = !locked && writable(this.name);
    this.element.classList.toggle("glassbox-used", Boolean(strength));
    this.range = range || UNKNOWN;
    const { low, high, step } = this.range;
    Object.assign(this.slider, { min: low, max: high, step, disabled: !usable || !range });
    Object.assign(this.number, { step, disabled: !usable });
    if (document.activeElement !== this.slider || Number(this.slider.value) !== strength) this.slider.value = strength;
    if (!this.typing && Number(this.number.value || NaN) !== strength) this.number.value = formatted(strength);
    this.slider.style.setProperty("--part", -low / (high - low));
    this.slider.style.setProperty("--reach", (high - low) / (2 * Math.max(-low, high)));
    this.slider.style.setProperty("--value", `${((Math.min(Math.max(strength, low), high) - low) / (high - low)) * 100}%`);
    this.reset.disabled = !usable || !strength;
  }

  /** Says how well a direction was fitted. One that is noise is marked, and its slider is off until a number is typed. */
  judge(direction, strength, locked) {
    const noise = Boolean(direction?.noise);
    this.label.textContent = noise ? `${this.name} (${say("noise")})` : this.name;
    this.label.title = direction?.about ? `${this.name}: ${direction.about}` : this.name;
    if (noise && !strength && !locked) this.slider.disabled = true;
    this.labelEnds(direction);
  }

  /** Says below the slider what each end is, or where and on how many people it acts, where that is known. */
  labelEnds({ increase, decrease, appears, reached } = {}) {
    const labels = increase ? [decrease || say("less {0}", increase), increase] : measured(appears, reached);
    this.ends.replaceChildren(...labels.map((text) => make("span", "", { textContent: text, title: text })));
    this.element.classList.toggle("glassbox-labeled", labels.length > 0);
  }
}

/** What a direction was measured to do: from which strength on it shows, and on how many people at 1. */
function measured(appears, reached) {
  if (!appears) return [];
  const [low, high] = appears.map(formatted);
  const where = low === high ? say("shows at {0}", low) : say("shows at {0} to {1}", low, high);
  return [where, say("{0} % at 1", Math.round(100 * reached))];
}

function button(text, title, onclick) {
  return make("button", "glassbox-button", { type: "button", textContent: text, title, onclick });
}

/** Before a run a Fit Directions node has not made its directions yet: they will be those of the labels. */
function promised(outline, fitting) {
  if (outline.error) return { ...outline, directions: [] };
  const there = new Set(outline.directions.map((direction) => direction.name));
  const coming = fitting ? outline.labels.filter((name) => !there.has(name)) : [];
  const asMeasured = fitting && !valueOf(fitting, "labels") && valueOf(fitting, "method") === MEASURED;
  const measured = (asMeasured && outline.measured) || {};
  const unfitted = coming.map((name) => ({ name, ...UNFITTED, ...measured[name] }));
  return { ...outline, directions: [...outline.directions, ...unfitted], promised: coming.length > 0 };
}

/** The name in the node that computes a direction, or else that of the input; undefined when the node shows none. */
function nameOf(source, input) {
  if (!widgetOf(source, "name") || isWired(source, "name")) return undefined;
  return valueOf(source, "name").trim() || input;
}

/** The number of the component that a name such as "PC 1" means, as the node reads it; NaN for other names. */
function componentOf(name) {
  return Number(/^PC\s+(\d+)$/i.exec(name)?.[1]);
}

function sameFile(name, file) {
  return file.split(/[\\/]/).at(-1).replace(/\.safetensors$/, "") === name;
}
