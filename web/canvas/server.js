// The pack's own questions to the server, each asked once until something has run, which may have written a file.

import { api } from "../../../scripts/api.js";

const answers = new Map();

/** The answer to /glassbox/<name>?<parameters>, or {error: "a sentence"}. */
export function ask(name, parameters) {
  const address = `/glassbox/${name}?${new URLSearchParams(parameters)}`;
  if (!answers.has(address)) answers.set(address, fetched(address));
  return answers.get(address);
}

async function fetched(address) {
  try {
    return await (await api.fetchApi(address)).json();
  } catch {
    answers.delete(address);
    return { error: "The server does not answer." };
  }
}

api.addEventListener("execution_success", () => answers.clear());
