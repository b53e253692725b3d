// The text of W2W Edit and Mix Steering Directions, such as "beard: 0.8, glasses: -0.5": read as the nodes read it, and
// changed in place. In the place of the colon may stand "=" or, before the last number, a blank.

const SEPARATORS = /([,\n;])/;
const COMPONENT = /^PC\s+\d+$/i; // a name with a number, not a name and a strength
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** The strength of each name in the order of the text, those of one name added up; and the pieces that are no edit. */
export function read(text) {
  const strengths = new Map();
  const unread = [];
  for (const piece of text.split(SEPARATORS)) {
    const found = edit(piece);
    if (found) strengths.set(found.name, (strengths.get(found.name) ?? 0) + found.strength);
    else if (piece.trim() && !SEPARATORS.test(piece)) unread.push(piece.trim());
  }
  return { strengths, unread };
}

/** The one of some names that is written so, or else so but for upper and lower case; undefined when none or several are. */
export function named(written, names) {
  if (names.includes(written)) return written;
  const alike = names.filter((name) => name.toLowerCase() === written.toLowerCase());
  return alike.length === 1 ? alike[0] : undefined;
}

/**
 * The text with this strength for a name, all else as it was; null takes the name out. `resolve` says which name a written
 * one means.
 */
export function write(text, name, strength, resolve = (written) => written) {
  const pieces = text.split(SEPARATORS);
  let written = strength === null;
  for (let index = 0; index < pieces.length; index += 2) {
    const found = edit(pieces[index]);
    if (!found || resolve(found.name) !== name) continue;
    pieces[index] = written ? null : pieces[index].replace(/\S.*\S|\S/s, `${name}: ${formatted(strength)}`);
    written = true;
  }
  const kept = joined(pieces);
  if (written) return kept;
  const separator = !kept.trim() ? "" : /\n/.test(kept) ? "\n" : ", ";
  return `${kept.replace(/[\s,;]+$/, "")}${separator}${name}: ${formatted(strength)}`;
}

/** Whether a name can stand in the text: what separates edits cannot be part of one. */
export function writable(name) {
  return name.trim() === name && name !== "" && !SEPARATORS.test(name);
}

/** A number as people write it, without the dust of binary fractions. */
export function formatted(number) {
  return String(Number(number.toPrecision(6)));
}

function edit(piece) {
  const written = piece.trim();
  if (COMPONENT.test(written)) return null;
  const mark = [written.lastIndexOf(":"), written.lastIndexOf("="), written.search(/\s\S*$/)].find((place) => place >= 0);
  if (mark === undefined) return null;
  const name = written.slice(0, mark).trim();
  const value = written.slice(mark + 1).trim();
  const strength = NUMBER.test(value) ? Number(value) : NaN;
  return name && Number.isFinite(strength) ? { name, strength } : null;
}

/** Pieces at even places and separators at odd ones, without the pieces that are null and a separator for each. */
function joined(pieces) {
  let text = "";
  for (let index = 0; index < pieces.length; index += 2) {
    if (pieces[index] === null) continue;
    text += (text ? (pieces[index - 1] ?? "") : "") + pieces[index];
  }
  return text.replace(/^\s+/, "");
}
