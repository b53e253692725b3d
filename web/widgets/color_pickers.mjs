// Pickers for colors that a node saves as text, such as #edb98a.

import { addPanel, make, remember } from "../canvas/panel.js";
import { Value } from "../canvas/value.mjs";
import { say } from "../text/words.js";

/** Adds a picker for each of these inputs; a wire at an input takes its picker away. */
export function addColorPickers(...names) {
  return (node) => {
    const pickers = names.map((name) => new ColorPicker(node, name));
    const element = make("div", "", {}, [make("div", "glassbox-head", {}, pickers.map((picker) => picker.element))]);
    addPanel(node, "colors", element, { height: 30, update: () => pickers.forEach((picker) => picker.draw()) });
  };
}

class ColorPicker {
  constructor(node, name) {
    this.value = new Value(node, name, () => this.draw());
    const title = say(name === "foreground" ? "Color inside of the mask" : "Color outside of the mask");
    this.input = make("input", "glassbox-color", { type: "color", title, "aria-label": title });
    this.input.addEventListener("input", () => (this.value.current = this.input.value));
    this.input.addEventListener("change", remember);
    this.element = make("label", "", { title }, [say(name === "foreground" ? "Inside" : "Outside"), this.input]);
  }

  /** Shows the color that is entered; of a text that is none, nothing. */
  draw() {
    const [, digits] = /^\s*#?([0-9a-f]{6})\s*$/i.exec(this.value.current) ?? [];
    if (digits) this.input.value = `#${digits.toLowerCase()}`;
    this.input.disabled = this.value.linked;
  }
}
