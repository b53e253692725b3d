// The pack's own questions to the server, each sent once until files may have changed: until something has run, or the
// person has the front end look for files again.

import { api } from "../../../scripts/api.js";
import { say } from "../text/words.js";
import { onEnd } from "./live.js";

const answers = new Map();

/** The answer to /glassbox/<name>?<parameters>, or {error: "a sentence"}. */
export function ask(name, parameters) {
  const address = `/glassbox/${name}?${new URLSearchParams(parameters)}`;
  if (!answers.has(address)) answers.set(address, fetched(address));
  return answers.get(address);
}

/** Sends all questions again from here on. */
export function forget() {
  answers.clear();
}

async function fetched(address) {
  try {
    return await (await api.fetchApi(address)).json();
  } catch {
    answers.delete(address);
    return { error: say("The server does not answer.") };
  }
}

onEnd(forget);
