// What a node's last run handed out for its panel.

import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { onEnd } from "./live.js";
import { locatorOf, placesOf } from "./places.js";

const RUNS = 16;
let history = null;

/**
 * What the node handed out under a key when it last ran, or null: from the page, else from the server's history, since a
 * page loaded again has forgotten it and a node whose result is cached does not run again. `fits` gets the nodes of a run
 * in the history, as they were queued, and says whether that run is meant.
 */
export async function lastOutput(node, key, fits = () => true) {
  const here = app.nodeOutputs?.[locatorOf(node)]?.[key];
  if (here) return here;
  history ??= runs();
  const workflow = app.graph.id;
  for (const { prompt, outputs } of await history) {
    const [, , nodes, extra] = prompt;
    if (extra?.extra_pnginfo?.workflow?.id !== workflow) continue;
    const place = placesOf(node).find((place) => nodes[place]?.class_type === node.comfyClass && outputs[place]?.[key]);
    if (place && fits(nodes)) return outputs[place][key];
  }
  return null;
}

async function runs() {
  try {
    const answer = await (await api.fetchApi(`/history?max_items=${RUNS}`)).json();
    return Object.values(answer).filter(({ prompt, outputs }) => Array.isArray(prompt) && outputs).reverse();
  } catch {
    return [];
  }
}

onEnd(() => (history = null));
