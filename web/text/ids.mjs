// A list of activations as text: IDs and wildcards separated by commas, spaces or lines, # for comments; read as the nodes
// read it, and changed in place.

const BETWEEN = /([,\s]+)/;

/** Which of the IDs the text names, and its entries that match none. */
export function read(text, ids) {
  const known = new Set(ids);
  const chosen = new Set();
  const unknown = [];
  for (const entry of text.split("\n").flatMap((line) => entries(code(line)))) {
    const found = matching(entry, ids, known);
    if (!found.length) unknown.push(entry);
    for (const id of found) chosen.add(id);
  }
  return { chosen, unknown };
}

/** The text with some IDs chosen or not; a wildcard that names an ID too many becomes the others that it names. */
export function write(text, ids, some, on) {
  const { chosen } = read(text, ids);
  const changed = new Set(some.filter((id) => chosen.has(id) !== on));
  if (!changed.size) return text;
  if (on) return [...(text.trim() ? [text.trimEnd()] : []), ...changed].join("\n");
  const known = new Set(ids);
  const lines = text.split("\n").map((line) => {
    const kept = code(line);
    const left = without(kept, ids, known, changed);
    return left === kept ? line : (left + line.slice(kept.length)).trim() || null;
  });
  return lines.filter((line) => line !== null).join("\n");
}

/** The IDs that a pattern of Python's fnmatch names; `known` is the set of all IDs. */
export function matching(entry, ids, known = new Set(ids)) {
  if (!/[*?[]/.test(entry)) return known.has(entry) ? [entry] : [];
  const pattern = regular(entry);
  return ids.filter((id) => pattern.test(id));
}

function without(line, ids, known, removed) {
  const pieces = line.split(BETWEEN);
  const changed = pieces.map((piece, index) => {
    if (index % 2 || !piece) return piece;
    const found = matching(piece, ids, known);
    const left = found.filter((id) => !removed.has(id));
    return left.length === found.length ? piece : left.join(", ");
  });
  let text = "";
  for (let index = 0; index < changed.length; index += 2) {
    if (!changed[index]) continue;
    text += (text ? changed[index - 1] : "") + changed[index];
  }
  return text;
}

function regular(entry) {
  let source = "";
  for (let at = 0; at < entry.length; at++) {
    const close = entry[at] === "[" ? entry.indexOf("]", entry[at + 1] === "!" ? at + 3 : at + 2) : -1;
    if (entry[at] === "*") source += ".*";
    else if (entry[at] === "?") source += ".";
    else if (close > 0) {
      const inside = entry.slice(at + 1, close).replace(/[\\\]^]/g, "\\$&");
      source += `[${inside.replace(/^!/, "^")}]`;
      at = close;
    } else source += entry[at].replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  }
  return new RegExp(`^${source}$`, "s");
}

function entries(line) {
  return line.split(/[,\s]+/).filter(Boolean);
}

function code(line) {
  return line.split("#", 1)[0];
}
