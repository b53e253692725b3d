// What a node tells while it runs.

import { api } from "../../../scripts/api.js";
import { nodeAt } from "./places.js";

const receivers = new WeakMap();

/** Calls `receive` with each curve that the node sends. */
export function onCurve(node, receive) {
  receivers.set(node, receive);
}

api.addEventListener("glassbox.curve", ({ detail }) => receivers.get(nodeAt(detail.node))?.(detail.curve));
