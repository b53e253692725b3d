// The network of the MODEL as blocks, one box per activation: click, shift-click, drag or use the keys to select. The
// node's inputs `preset` and `ids` are all that the map reads and writes.

import { app } from "../../../scripts/app.js";
import { Cells } from "../canvas/cells.mjs";
import { lastOutput } from "../canvas/outputs.mjs";
import { addPanel, make, remember } from "../canvas/panel.js";
import { locatorOf } from "../canvas/places.js";
import { ask } from "../canvas/server.js";
import { chain, valueOf } from "../canvas/upstream.mjs";
import { Value } from "../canvas/value.mjs";
import { read, write } from "../text/ids.mjs";
import { say } from "../text/words.js";

const CUSTOM_IDS = "custom_ids";
const DRAWN_AS = "glassbox_drawn_as";
const HEIGHT = 370;
const ARCHITECTURES = { sd15: "SD1.5", sdxl: "SDXL", demo: "the demo model" };
const CAPTIONS = { down: "down-stage, by level and repeat", up: "up-stage", mid: "middle", blocks: "blocks" };
const WORDS = { filter: "in the paper's filter", pool: "in the paper's pool", "": "" };

const loaders = new Map(); // what the MODEL came from when the node ran, by workflow and node

export function addNetworkMap(node) {
  new NetworkMap(node);
}

class NetworkMap {
  constructor(node) {
    this.node = node;
    this.outline = null;
    this.boxes = [];
    this.at = null;
    this.preset = new Value(node, "preset", () => this.draw());
    this.ids = new Value(node, "ids", () => this.draw());
    this.map = make("div", "glassbox-net glassbox-scroll", {
      role: "listbox",
      "aria-multiselectable": "true",
      "aria-label": say("Activations of the network"),
    });
    this.status = make("div", "glassbox-status glassbox-two-lines", { role: "status" });
    this.drawnAs = make("select", "glassbox-select", { title: say("Which network to draw until the first run") });
    this.drawnAs.append(...Object.entries(ARCHITECTURES).map(([value, text]) => new Option(say(text), value)));
    this.drawnAs.addEventListener("change", () => this.setDrawnAs(this.drawnAs.value));
    this.source = make("span", "glassbox-name");
    const head = make("div", "glassbox-head", {}, [this.source, this.drawnAs, legend()]);
    this.cells = new Cells(this.map, this);
    addPanel(node, "network", make("div", "glassbox-map", {}, [head, this.map, this.status]), {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
  }

  /** Finds the network: of the node's last run, as long as the loader before it is the same, else of its file's header. */
  async update(output) {
    const loader = loaderOf(this.node);
    const name = JSON.stringify(loader);
    if (output?.glassbox_network) {
      loaders.set(keyOf(this.node), name);
      this.ran = { outline: output.glassbox_network.at(-1), name };
    } else if (!this.ran) {
      const last = await lastOutput(this.node, "glassbox_network", (nodes) => holds(nodes, loader));
      if (last) this.ran = { outline: last.at(-1), name: loaders.get(keyOf(this.node)) ?? name };
    }
    const drawnAs = this.node.properties[DRAWN_AS] ?? (/xl/i.test(loader?.name) ? "sdxl" : "sd15");
    const wanted = this.ran?.name === name ? this.ran : `${name} ${drawnAs}`;
    this.wanted = wanted;
    let outline = this.ran === wanted ? wanted.outline : null;
    let source = say("The MODEL on the wire");
    if (!outline && loader) {
      outline = await ask("network", loader);
      source = loader.name in ARCHITECTURES ? say(ARCHITECTURES[loader.name]) : loader.name;
    }
    const guessed = !outline || outline.error;
    if (guessed) outline = await ask("network", { kind: "architecture", name: drawnAs });
    if (wanted !== this.wanted) return;
    this.source.textContent = guessed ? say("Until the first run drawn as") : source;
    this.drawnAs.hidden = !guessed;
    this.drawnAs.value = drawnAs;
    if (!outline.error && !alike(outline, this.outline)) this.build(outline);
    this.draw();
  }

  setDrawnAs(name) {
    this.node.properties[DRAWN_AS] = name;
    remember();
    this.update();
  }

  build(outline) {
    Object.assign(this, { outline, at: null });
    this.names = outline.activations.map(([id]) => id);
    this.boxes = outline.activations.map(box);
    const stages = { network: [], down: [], mid: [], up: [], blocks: [] };
    for (const group of outline.groups) stages[stageOf(group.place)].push(this.group(group));
    stages.up.reverse(); // a U: the down-stage begins at the top, and the up-stage ends there
    const filled = Object.entries(stages).filter(([, groups]) => groups.length);
    this.map.replaceChildren(...filled.map(([stage, groups]) => column(stage, groups)));
    const shown = [...this.map.querySelectorAll(".glassbox-group")];
    this.cells.replace(this.boxes, shown.map((group) => group.members));
  }

  group({ place, members }) {
    const [, , scale] = this.outline.activations[members[0]];
    const name = place || say("the network itself");
    const what = say("1/{0} of the latent's side: select all or none", scale);
    const label = make("span", "glassbox-place", { textContent: short(place), title: `${name}, ${what}` });
    label.addEventListener("click", () => {
      this.switchSome(members, !members.every((index) => this.isOn(index)));
      this.switched();
    });
    const cells = make("div", "glassbox-cells", { role: "presentation" }, members.map((index) => this.boxes[index]));
    const group = make("div", "glassbox-group", { role: "group", "aria-label": name }, [label, cells]);
    group.members = members;
    return group;
  }

  /** Lights up what the inputs choose, and says so. */
  draw() {
    if (!this.outline) return;
    const { chosen, problem } = this.chosen();
    const locked = this.locked;
    for (const [index, element] of this.boxes.entries()) {
      const selected = String(chosen.has(this.names[index]));
      if (element.getAttribute("aria-selected") !== selected) element.setAttribute("aria-selected", selected);
    }
    this.map.setAttribute("aria-disabled", locked);
    this.problem = locked ? say("Set by a connection.") : problem;
    const text = chosen.size ? "{0} of {1} selected" : "{0} of {1} selected: click some";
    this.summary = say(text, chosen.size, this.names.length);
    this.say();
  }

  say() {
    const at = this.at === null ? null : about(this.outline.activations[this.at]);
    this.status.textContent = this.problem ?? at ?? this.summary;
    this.status.classList.toggle("glassbox-problem", Boolean(this.problem));
  }

  get locked() {
    return this.preset.linked || this.ids.linked;
  }

  chosen() {
    if (this.preset.current === CUSTOM_IDS) {
      const { chosen, unknown } = read(this.ids.current, this.names);
      return { chosen, problem: unknown.length ? say("No activation matches '{0}'.", unknown[0]) : null };
    }
    const numbers = this.outline.presets[this.preset.current] ?? [];
    if (typeof numbers === "string") return { chosen: new Set(), problem: numbers };
    return { chosen: new Set(numbers.map((index) => this.names[index])), problem: null };
  }

  isOn(index) {
    return this.boxes[index].getAttribute("aria-selected") === "true";
  }

  /** Switches some activations; from a preset on, the list takes over what the preset chose. */
  switchSome(indices, on) {
    if (this.locked) return;
    let text = this.ids.current;
    if (this.preset.current !== CUSTOM_IDS) {
      const { chosen } = this.chosen();
      text = this.names.filter((id) => chosen.has(id)).join("\n");
    }
    this.ids.current = write(text, this.names, indices.map((index) => this.names[index]), on);
    this.preset.current = CUSTOM_IDS;
    this.draw();
  }

  switched() {
    if (!this.locked) remember();
  }

  pointed(index) {
    this.at = index;
    if (this.outline) this.say();
  }
}

function column(stage, groups) {
  const caption = make("div", "glassbox-caption", { textContent: say(CAPTIONS[stage] ?? ""), "aria-hidden": "true" });
  const shown = CAPTIONS[stage] ? [caption, ...groups] : groups;
  return make("div", `glassbox-stage glassbox-${stage}`, { role: "presentation" }, shown);
}

function box(activation) {
  const [id, , , mark] = activation;
  const element = make("span", `glassbox-box ${mark ? `glassbox-in-${mark}` : ""}`, {
    role: "option",
    "aria-label": about(activation),
    "aria-selected": "false",
  });
  element.dataset.id = id;
  return element;
}

function about([id, channels, scale, mark]) {
  return [id, channels && say("{0} channels", channels), `1/${scale}`, say(WORDS[mark])].filter(Boolean).join(" · ");
}

function stageOf(place) {
  if (!place) return "network";
  const stage = place.split("-")[0];
  return stage === "vit" ? "blocks" : stage;
}

/** "up-level1-repeat0" as "1.0", "up-level1-upsampler" as "1 ↑". */
function short(place) {
  if (!place) return say("ends");
  const [, level, repeat] = place.match(/level(\d+)-repeat(\d+)/) ?? [];
  if (level) return `${level}.${repeat}`;
  const numbers = place.match(/\d+/g) ?? [];
  if (place.endsWith("sampler")) return `${numbers[0]} ${place.startsWith("up") ? "↑" : "↓"}`;
  return place.startsWith("mid") ? `${say("mid")} ${numbers[0] ?? ""}`.trim() : `${numbers.at(-1)}`;
}

function legend() {
  const key = (className, text) =>
    make("span", "glassbox-key", {}, [make("span", `glassbox-box ${className}`), text]);
  return make("span", "glassbox-legend", { "aria-hidden": "true" }, [
    key("glassbox-chosen", say("selected")),
    key("glassbox-in-filter", say("filter")),
    key("glassbox-in-pool", say("pool")),
  ]);
}

/** Whether an outline is the one that is drawn: a box that has the focus would lose it by being drawn again. */
function alike(outline, drawn) {
  return outline === drawn || JSON.stringify(outline) === JSON.stringify(drawn);
}

function keyOf(node) {
  return `${app.graph.id} ${locatorOf(node)}`;
}

/** Which file or architecture the MODEL comes from, as a question to the server; null when that is not to be seen. */
function loaderOf(node) {
  for (const before of chain(node, "model", ["MODEL"])) {
    if (before.comfyClass === "GBX_LoadDemoModel") return { kind: "architecture", name: "demo" };
    const checkpoint = valueOf(before, "ckpt_name");
    if (checkpoint) return { kind: "checkpoints", name: checkpoint };
    const network = valueOf(before, "unet_name");
    if (network) return { kind: "diffusion_models", name: network };
  }
  return null;
}

/** Whether queued nodes hold that loader. */
function holds(nodes, loader) {
  return Object.values(nodes).some(({ class_type, inputs }) =>
    loader?.kind === "architecture"
      ? class_type === "GBX_LoadDemoModel"
      : !loader || inputs.ckpt_name === loader.name || inputs.unet_name === loader.name,
  );
}
