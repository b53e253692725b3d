// "Live": what a panel changes is queued by itself, as long as the person has switched that on for the node.

import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { say } from "../text/words.js";
import { withFewerSteps } from "./draft_steps.mjs";
import { addPanel, make, remember } from "./panel.js";
import { Value } from "./value.mjs";

const LIVE = "glassbox_live";
const DRAFT = "glassbox_live_draft";
const WAIT = 300; // milliseconds without a change before the workflow is queued
const TYPING = 700; // the same for a text, which is typed letter by letter
const LEFT_OUT = new Set([2, 4]); // modes of a node: muted, bypassed
const CHANGES_ITSELF = /seed|control_after_generate/; // after each job, which would queue the next

let timer = null;
let queued = null; // the last prompt that was queued here
let next = null; // what is to be queued once the request before is answered
let sending = false;
const followed = new WeakMap(); // by open workflow: the values of its nodes that were last seen, by node

let opening = 0;
const load = app.loadGraphData;

/**
 * Opening makes the nodes of a workflow before it becomes the active one: until then nothing is compared. What was about to
 * be queued belongs to the workflow before; after an undo, the nodes that are made again see that they hold another value.
 */
app.loadGraphData = async function (...values) {
  clearTimeout(timer);
  opening += 1;
  try {
    return await load.apply(this, values);
  } finally {
    opening -= 1;
  }
};

/** Adds the switch to a node without a panel: it follows all of its widgets. */
export function addLiveSwitch(node) {
  const widgets = [...node.widgets];
  const lasting = widgets.filter(({ name }) => !CHANGES_ITSELF.test(name));
  const live = new LiveSwitch(node, () => JSON.stringify(lasting.map(({ value }) => value)));
  for (const { name } of widgets) new Value(node, name, () => live.changed());
  const element = make("div", "", {}, [make("div", "glassbox-head", {}, [live.element])]);
  const update = () => {
    live.draw();
    live.follow();
  };
  addPanel(node, "live", element, { height: 26, update });
}

/**
 * The switch of one node, and what its panel calls after every change. `read` gives what the node says now, or null while
 * that is not ready to run.
 */
export class LiveSwitch {
  constructor(node, read = () => null) {
    this.node = node;
    this.read = read;
    this.box = make("input", "", { type: "checkbox", onchange: () => this.set(this.box.checked) });
    this.element = make("label", "", { title: say("Queue the workflow whenever something here has changed") }, [
      this.box,
      say("Live"),
    ]);
    const few = say("A quarter of the sampling steps while the mouse is down, all of them at its end");
    this.draft = make("input", "", { type: "checkbox", onchange: () => this.setDraft(this.draft.checked) });
    this.draftElement = make("label", "", { title: few }, [this.draft, say("Draft")]); // for panels with sliders
  }

  draw() {
    this.box.checked = Boolean(this.node.properties[LIVE]);
    this.draft.checked = Boolean(this.node.properties[DRAFT]);
    this.draftElement.hidden = !this.box.checked;
  }

  set(on) {
    this.node.properties[LIVE] = on;
    this.draw();
    remember();
    this.changed();
  }

  setDraft(on) {
    this.node.properties[DRAFT] = on;
    remember();
  }

  /** Queues the workflow when the node holds another value than when it was last seen: typed, undone or redone. */
  follow() {
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.look(), TYPING);
  }

  look() {
    if (opening) this.follow();
    else if (this.isInUse && this.read() !== null && this.note() && this.node.properties[LIVE])
      queue(false).catch(console.error);
  }

  /**
   * Whether what the node holds counts in a run: it is part of the open workflow (another one that is opened leaves this one
   * its graph), and neither muted nor bypassed.
   */
  get isInUse() {
    return this.node.graph?.getNodeById(this.node.id) === this.node && !LEFT_OUT.has(this.node.mode);
  }

  /** Keeps what the node holds; returns whether it held something else before, in this workflow. */
  note() {
    const workflow = app.extensionManager?.workflow?.activeWorkflow;
    const now = this.read();
    if (!workflow || now === null) return false;
    if (!followed.has(workflow)) followed.set(workflow, new Map());
    const seen = followed.get(workflow);
    const place = `${this.node.graph?.id}:${this.node.id}`; // undo makes the node again, with the same number
    const before = seen.get(place);
    seen.set(place, now);
    return before !== undefined && before !== now;
  }

  /** Queues the workflow soon; `moving`: the mouse is down, and another change ends the move. */
  changed(moving = false) {
    this.note();
    clearTimeout(timer);
    const draft = moving && Boolean(this.node.properties[DRAFT]);
    if (this.node.properties[LIVE] && this.isInUse) timer = setTimeout(() => queue(draft).catch(console.error), WAIT);
  }
}

/** Queues what the canvas says, once the request before is answered; of several that wait, the last counts. */
async function queue(draft) {
  next = { draft };
  if (sending) return;
  sending = true;
  try {
    while (next) {
      const request = next;
      next = null;
      await send(request);
    }
  } finally {
    sending = false;
  }
}

/** Queues a prompt in the place of the one that was queued here before, which is taken out or, where it runs, ended. */
async function send({ draft }) {
  const prompt = await app.graphToPrompt();
  if (draft) prompt.output = withFewerSteps(prompt.output);
  const before = queued;
  queued = null;
  if (before) await end(before);
  try {
    queued = (await api.queuePrompt(0, prompt)).prompt_id;
  } catch {
    await app.queuePrompt(0); // which shows what is wrong at the node where it is
  }
}

/** Ends a job of this page alone: the server stops the one that runs only if it is this one. */
async function end(job) {
  await api.deleteItem("queue", job);
  const headers = { "Content-Type": "application/json" };
  await api.fetchApi("/interrupt", { method: "POST", headers, body: JSON.stringify({ prompt_id: job }) });
}
