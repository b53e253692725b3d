// Two images of a node's last run over each other, with a divider between them that is dragged or moved with the keys.
// Pixels are drawn as they are, not blurred.

import { api } from "../../../scripts/api.js";
import { lastOutput } from "../canvas/outputs.mjs";
import { addPanel, make } from "../canvas/panel.js";
import { say } from "../text/words.js";

const HEIGHT = 250;

export function addCompare(node) {
  new Compare(node);
}

class Compare {
  constructor(node) {
    Object.assign(this, { node, found: null });
    this.sides = ["Left image", "Right image"].map((name) => side(say(name), () => this.show()));
    const divider = { type: "range", min: 0, max: 100, step: 1, value: 50, "aria-label": say("Divider of the images") };
    this.divider = make("input", "glassbox-divider", divider);
    this.divider.addEventListener("input", () => this.divide());
    this.divider.addEventListener("pointerup", () => this.divider.blur()); // so that the canvas takes Ctrl+Z
    const images = this.sides.map(({ image }) => image);
    this.pair = make("div", "glassbox-pair", {}, [...images, make("div", "glassbox-line"), this.divider]);
    this.around = make("div", "glassbox-around", {}, [this.pair]);
    this.head = make("div", "glassbox-head", {}, this.sides.map(({ select }) => select));
    this.empty = make("div", "glassbox-empty", { textContent: say("The images show after a run.") });
    addPanel(node, "compare", make("div", "glassbox-compare", {}, [this.head, this.around, this.empty]), {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
    this.divide();
  }

  async update(output) {
    const found = (output?.glassbox_compare ?? (await lastOutput(this.node, "glassbox_compare")))?.at(-1);
    for (const part of [this.head, this.around]) part.hidden = !(found ?? this.found);
    this.empty.hidden = !this.head.hidden;
    if (!found || found === this.found) return;
    this.found = found;
    for (const [at, { select }] of this.sides.entries()) {
      const options = found.images.map(({ label }, number) => make("option", "", { value: number, textContent: label }));
      select.replaceChildren(...options);
      select.value = found.shown[at];
    }
    this.show();
  }

  show() {
    const { width, height } = this.found.images[0];
    this.pair.style.setProperty("--ratio", width / height);
    for (const { select, image } of this.sides) {
      const { filename, subfolder, type, label } = this.found.images[select.value];
      image.src = api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type })}`);
      image.alt = label;
    }
  }

  divide() {
    this.pair.style.setProperty("--at", `${this.divider.value}%`);
  }
}

function side(name, onchange) {
  const select = make("select", "glassbox-select", { onchange, title: name, "aria-label": name });
  return { select, image: make("img", "", { draggable: false }) };
}
