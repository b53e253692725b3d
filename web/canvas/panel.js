// A panel of the pack in a node: an element that both renderers show, and that leaves the saved values as they are.

import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { onEnd } from "./live.js";

const TWO_LINES = 52; // pixels of a text field at a zoom of 1
const MIDDLE = 1; // the button that moves the canvas

const shown = new Set();

/** An element with a class, properties, and children. */
export function make(tag, className, properties = {}, children = []) {
  const element = Object.assign(document.createElement(tag), { className });
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/**
 * Adds the element at the end of a node, at least `height` high. `update` runs whenever the graph has changed, the node has run, or the pointer
 * comes in; it draws what the workflow says now.
 */
export function addPanel(node, name, element, { height, update }) {
  element.classList.add("glassbox");
  const widget = node.addDOMWidget(name, "glassbox", element, {
    serialize: false,
    getMinHeight: () => height,
    getMaxHeight: () => 10 * height,
  });
  widget.serialize = false;
  keepEventsInside(element);
  // One after the other: an update that waited for the server must not end after a later one, and undo it.
  let before = Promise.resolve();
  const follow = (output) => (before = before.then(() => update(output)).catch(console.error));
  const refresh = () => {
    takePlace(node, element);
    follow();
  };
  element.addEventListener("pointerenter", refresh);
  // Not from its making on: the front end makes nodes that are in no graph, for each copy one, and removes none of them.
  const added = node.onAdded;
  node.onAdded = function () {
    added?.apply(this, arguments);
    shown.add(refresh);
  };
  if (node.graph) shown.add(refresh); // its module was imported after it
  const executed = node.onExecuted;
  node.onExecuted = function (output) {
    executed?.apply(this, arguments);
    follow(output);
  };
  const removed = node.onRemoved;
  node.onRemoved = function () {
    removed?.apply(this, arguments);
    shown.delete(refresh);
  };
  queueMicrotask(refresh);
  return widget;
}

/**
 * Moves the widget of a panel above the one of a name, whose text gets two lines. Front end 1.32 saves a hole where a widget
 * that is not saved stands before others, and then loads each value into the widget before: so the values are saved again.
 */
export function placeAbove(node, panel, name) {
  const { widgets } = node;
  const text = widgets.find((widget) => widget.name === name);
  if (!text) return;
  widgets.splice(widgets.indexOf(panel), 1);
  widgets.splice(widgets.indexOf(text), 0, panel);
  Object.assign(text.options, { getMinHeight: () => TWO_LINES, getMaxHeight: () => TWO_LINES });
  const serialize = node.onSerialize;
  node.onSerialize = function (saved) {
    serialize?.apply(this, arguments);
    if (!Array.isArray(saved.widgets_values)) return;
    const values = this.widgets.filter((widget) => widget.serialize !== false).map((widget) => widget.value);
    if (saved.widgets_values.length > values.length) saved.widgets_values = values;
  };
}

// Undo makes all nodes again, and a subgraph may number its nodes as the graph around it does. Nodes 2.0 then goes on
// showing the element of the node that had the same id before.
function takePlace(node, element) {
  if (element.isConnected || node.graph !== app.canvas.graph) return;
  document.querySelector(`[data-node-id="${node.id}"] .glassbox`)?.replaceWith(element);
}

/** Follows the canvas into subgraphs and out of them, and scrolls lists before the canvas takes the wheel. */
export function watchCanvas() {
  // On the way down to the list: Nodes 2.0 takes the wheel from all that lies in its nodes, before they hear of it.
  window.addEventListener("wheel", keepInList, { capture: true, passive: true });
  app.canvas.canvas.addEventListener("litegraph:set-graph", () => requestAnimationFrame(refreshAll));
}

/** Takes what has changed into the canvas' undo history, as one step. */
export function remember() {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
}

/** Lets every panel draw itself again. */
export function refreshAll() {
  for (const refresh of [...shown]) refresh();
}

/** Whether Nodes 2.0 shows an element, inside an element of its node. */
function inVueNode(element) {
  return element.closest("[data-node-id]") !== null;
}

function keepInList(event) {
  const list = event.target.closest?.(".glassbox-scroll");
  if (list && list.scrollHeight > list.clientHeight && !event.ctrlKey) event.stopPropagation();
}

// A drag on a slider must not move the node, and Delete in a text field must not delete it.
function keepEventsInside(element) {
  for (const type of ["mousedown", "dblclick", "contextmenu"]) {
    element.addEventListener(type, (event) => event.stopPropagation());
  }
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== MIDDLE) event.stopPropagation();
    else if (!inVueNode(element)) app.canvas.processMouseDown(event); // the element lies beside the canvas, not in it
  });
  element.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
  });
  element.addEventListener("wheel", (event) => app.canvas.processMouseWheel(event));
}

api.addEventListener("graphChanged", refreshAll);
onEnd(refreshAll);
