// "Live": what a panel changes is queued by itself, as long as the person has switched that on for the node.

import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { say } from "../text/words.js";
import { addPanel, make, remember } from "./panel.js";
import { Value } from "./value.mjs";

const LIVE = "glassbox_live";
const WAIT = 300; // milliseconds without a change before the workflow is queued

let timer = null;
let queued = null; // the last prompt that was queued here

/** Adds the switch to a node without a panel: it follows all of its widgets. */
export function addLiveSwitch(node) {
  const names = node.widgets.map((widget) => widget.name);
  const live = new LiveSwitch(node);
  for (const name of names) new Value(node, name, () => live.changed());
  const element = make("div", "", {}, [make("div", "glassbox-head", {}, [live.element])]);
  addPanel(node, "live", element, { height: 26, update: () => live.draw() });
}

/** The switch of one node, and what its panel calls after every change. */
export class LiveSwitch {
  constructor(node) {
    this.node = node;
    this.box = make("input", "", { type: "checkbox", onchange: () => this.set(this.box.checked) });
    this.element = make("label", "", { title: say("Queue the workflow whenever something here has changed") }, [
      this.box,
      say("Live"),
    ]);
  }

  draw() {
    this.box.checked = Boolean(this.node.properties[LIVE]);
  }

  set(on) {
    this.node.properties[LIVE] = on;
    remember();
    this.changed();
  }

  changed() {
    clearTimeout(timer);
    if (this.node.properties[LIVE]) timer = setTimeout(() => queue().catch(console.error), WAIT);
  }
}

/** Queues what the canvas says, in the place of the prompt that was queued here before and still waits. */
async function queue() {
  const before = queued;
  queued = null;
  if (before) await api.deleteItem("queue", before); // does nothing to one that runs or has run
  const prompt = await app.graphToPrompt();
  try {
    queued = (await api.queuePrompt(0, prompt)).prompt_id;
  } catch {
    await app.queuePrompt(0); // which shows what is wrong at the node where it is
  }
}
