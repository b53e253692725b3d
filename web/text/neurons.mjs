// Neurons as text, one line a layer, such as "input_blocks.1.1 25, 221": read as Neuron Mask Edit reads it, and changed
// in place. A neuron here is {path, index} with the whole path of its layer.

/** Which of the neurons the text names, by their place in the list; and the lines that name none. */
export function read(text, neurons) {
  const named = new Set();
  const unknown = [];
  for (const line of lines(text)) {
    const found = covered(line, neurons);
    if (!found?.length) unknown.push(line);
    for (const place of found ?? []) named.add(place);
  }
  return { named, unknown };
}

/** The text with the neuron at a place of the list named or not. */
export function write(text, neurons, place, on) {
  if (on === read(text, neurons).named.has(place)) return text;
  return (on ? added(lines(text), neurons, place) : removed(lines(text), neurons, place)).join("\n");
}

function added(all, neurons, place) {
  const { path, index } = neurons[place];
  const head = headOf(path, neurons);
  const at = all.findIndex((line) => (line.startsWith(`${head} `) || line.startsWith(`${path} `)) && numbersOf(line)?.length);
  if (at < 0) return [...all, `${head} ${index}`];
  const numbers = [...numbersOf(all[at]), index].sort((one, other) => one - other);
  return all.map((line, number) => (number === at ? `${line.split(" ", 1)[0]} ${numbers.join(", ")}` : line));
}

function removed(all, neurons, place) {
  return all.flatMap((line) => {
    const found = covered(line, neurons) ?? [];
    if (!found.includes(place)) return [line];
    const left = new Map();
    for (const { path, index } of found.filter((other) => other !== place).map((other) => neurons[other])) {
      left.set(path, [...(left.get(path) ?? []), index]);
    }
    return [...left].map(([path, indices]) => `${headOf(path, neurons)} ${indices.join(", ")}`);
  });
}

function covered(line, neurons) {
  const head = line.split(" ", 1)[0];
  const numbers = numbersOf(line);
  if (numbers === null) return null;
  return neurons.flatMap(({ path, index }, place) => {
    const inLayer = path === head || path.startsWith(`${head}.`);
    return inLayer && (!numbers.length || numbers.includes(index)) ? [place] : [];
  });
}

/** The numbers behind a line's layer; empty when there are none, null when something else stands there. */
function numbersOf(line) {
  const parts = line.split(" ").slice(1).join(" ").replaceAll(",", " ").trim().split(/\s+/).filter(Boolean);
  return parts.every((part) => /^\d+$/.test(part)) ? parts.map(Number) : null;
}

/** The path as people know it, "input_blocks.1.1", where no other layer of the list begins so. */
export function headOf(path, neurons) {
  const head = path.split(".transformer_blocks.", 1)[0];
  return neurons.some((other) => other.path !== path && other.path.startsWith(`${head}.`)) ? path : head;
}

function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}
