// What a node tells while it runs, and when a run has ended.

import { api } from "../../../scripts/api.js";
import { nodeAt } from "./places.js";

const ENDS = ["execution_success", "execution_error", "execution_interrupted"];
const receivers = new WeakMap();

/** Calls `receive` with each curve that the node sends. */
export function onCurve(node, receive) {
  receivers.set(node, receive);
}

/** Calls `act` after each run; one that failed or was stopped has also written what its first nodes make. */
export function onEnd(act) {
  for (const end of ENDS) api.addEventListener(end, act);
}

api.addEventListener("glassbox.curve", ({ detail }) => receivers.get(nodeAt(detail.node))?.(detail.curve));
