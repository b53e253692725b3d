// A list of activations as text: IDs and wildcards separated by commas, spaces or lines, # for comments; read as the nodes
// read it, and changed in place.

const BETWEEN = /([,\s]+)/;

/** Which of the IDs the text names, and its entries that match none. */
export function read(text, ids) {
  const chosen = new Set();
  const unknown = [];
  for (const entry of text.split("\n").flatMap((line) => entries(code(line)))) {
    const found = matching(entry, ids);
    if (!found.length) unknown.push(entry);
    for (const id of found) chosen.add(id);
  }
  return { chosen, unknown };
}

/** The text with an ID chosen or not; a wildcard that names an ID too many becomes the others that it names. */
export function write(text, ids, id, on) {
  if (on === read(text, ids).chosen.has(id)) return text;
  if (on) return text.trim() ? `${text.trimEnd()}\n${id}` : id;
  const lines = text.split("\n").map((line) => {
    const kept = code(line);
    const changed = without(kept, ids, id);
    return changed === kept ? line : (changed + line.slice(kept.length)).trim() || null;
  });
  return lines.filter((line) => line !== null).join("\n");
}

/** The IDs that a pattern of Python's fnmatch names. */
export function matching(entry, ids) {
  if (!/[*?[]/.test(entry)) return ids.includes(entry) ? [entry] : [];
  const pattern = regular(entry);
  return ids.filter((id) => pattern.test(id));
}

function without(line, ids, id) {
  const pieces = line.split(BETWEEN);
  const changed = pieces.map((piece, index) => {
    if (index % 2 || !piece) return piece;
    const found = matching(piece, ids);
    if (!found.includes(id)) return piece;
    return found.filter((other) => other !== id).join(", ");
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
