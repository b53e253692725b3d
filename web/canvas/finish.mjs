// Finish now: while a node works it offers to end with what it has, which then counts as its result.

import { api } from "../../../scripts/api.js";
import { say } from "../text/words.js";
import { onEnd } from "./live.js";
import { make } from "./panel.js";
import { nodeAt } from "./places.js";

const buttons = new WeakMap();
const offered = new Set(); // buttons of nodes that work

/** The button of a node, hidden while the node does not work. */
export function finishButton(node) {
  const button = make("button", "glassbox-button glassbox-finish", {
    type: "button",
    hidden: true,
    textContent: say("Finish now"),
    title: say("End with what there is. It counts as finished, and the workflow goes on with it."),
  });
  buttons.set(node, button);
  return button;
}

function offer({ node: place, prompt_id }) {
  const button = buttons.get(nodeAt(place));
  if (!button || offered.has(button)) return;
  offered.add(button);
  Object.assign(button, { hidden: false, disabled: false, onclick: () => press(button, place, prompt_id) });
}

function withdraw(button) {
  offered.delete(button);
  button.hidden = true;
}

async function press(button, node, prompt_id) {
  button.disabled = true;
  const query = new URLSearchParams({ prompt_id, node, client_id: api.clientId });
  const answer = await api.fetchApi(`/glassbox/finish?${query}`, { method: "POST" });
  if (!answer.ok) withdraw(button); // it has ended in the meantime
}

api.addEventListener("glassbox.finish", ({ detail }) => {
  if (detail.offered) offer(detail);
  else if (buttons.has(nodeAt(detail.node))) withdraw(buttons.get(nodeAt(detail.node)));
});
api.addEventListener("glassbox.curve", ({ detail }) => offer(detail)); // the page may have been opened since
onEnd(() => [...offered].forEach(withdraw));
