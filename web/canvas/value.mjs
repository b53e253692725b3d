// The value of a node's own input, which is all that a panel ever changes.

import { app } from "../../../scripts/app.js";
import { isWired, widgetOf } from "./upstream.mjs";

export class Value {
  constructor(node, name, onChange) {
    this.node = node;
    this.name = name;
    const widget = this.widget;
    const before = widget.callback;
    widget.callback = function () {
      const result = before?.apply(this, arguments);
      onChange();
      return result;
    };
  }

  get widget() {
    return widgetOf(this.node, this.name);
  }

  /** Whether a wire gives the value, so that what is written here does not count. */
  get linked() {
    return isWired(this.node, this.name);
  }

  get current() {
    return this.widget.value;
  }

  set current(value) {
    if (value === this.widget.value) return;
    this.widget.value = value;
    this.widget.callback?.(value, app.canvas, this.node);
    this.node.graph?.setDirtyCanvas(true, true);
  }
}
