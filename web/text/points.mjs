// Points as text, one "x, y" per line in pixels or percent of an image, or JSON: read as the nodes read them, and changed
// in place. JSON becomes lines with the first change.

import { say } from "./words.js";

const BETWEEN = /([;\n]+)/;
const MAX_LINE = 80;
const NUMBER = "(-?\\d+(?:\\.\\d+)?) ?(%?)";
const PAIR = new RegExp(`^\\(? ?${NUMBER} ?[, ] ?${NUMBER} ?\\)?$`);

/** The points as {x, y} in pixels of an image, and the problem with the first that is not a point or lies outside, else null. */
export function read(text, { width, height }) {
  const { points, unread } = isJson(text) ? fromJson(text) : fromLines(text, width, height);
  const outside = points.find(({ x, y }) => !(x >= 0 && x <= width && y >= 0 && y <= height));
  if (unread !== null) return { points, problem: say("'{0}' is not a point.", unread) };
  if (outside) return { points, problem: say("The point {0}, {1} is outside of the image.", outside.x, outside.y) };
  return { points, problem: null };
}

/** The text with one more point. */
export function add(text, point, size) {
  const lines = asLines(text, size).trimEnd();
  return lines ? `${lines}\n${format(point)}` : format(point);
}

/** The text with the point of a number elsewhere; null takes it out. */
export function move(text, number, point, size) {
  const pieces = asLines(text, size).split(BETWEEN);
  const places = pieces.flatMap((piece, index) => (index % 2 === 0 && pair(piece) ? [index] : []));
  pieces[places[number]] = point && format(point);
  let moved = "";
  for (let index = 0; index < pieces.length; index += 2) {
    if (pieces[index] === null) continue;
    moved += (moved ? (pieces[index - 1] ?? "") : "") + pieces[index];
  }
  return moved;
}

/** A point as the node writes it, to a tenth of a pixel. */
function format({ x, y }) {
  return `${Math.round(x * 10) / 10}, ${Math.round(y * 10) / 10}`;
}

function asLines(text, size) {
  return isJson(text) ? read(text, size).points.map(format).join("\n") : text;
}

function isJson(text) {
  return /^\s*\[[{[]/.test(text);
}

function fromLines(text, width, height) {
  const points = [];
  let unread = null;
  for (const line of text.split(/[;\n]+/).map((part) => part.trim())) {
    const found = pair(line);
    if (found) points.push({ x: pixels(found[1], found[2], width), y: pixels(found[3], found[4], height) });
    else if (line) unread ??= line;
  }
  return { points, unread };
}

function fromJson(text) {
  try {
    const pairs = JSON.parse(text).map((entry) => (Array.isArray(entry) ? entry : [entry.x, entry.y]));
    const points = pairs.map(([x, y]) => ({ x: Number(x), y: Number(y) }));
    return { points, unread: points.some(({ x, y }) => !Number.isFinite(x + y)) ? text : null };
  } catch {
    return { points: [], unread: text };
  }
}

/** The numbers and units of a line; single spaces and a limit keep the pattern linear, as in the node. */
function pair(line) {
  const text = line.trim().replace(/\s+/g, " ");
  return text.length <= MAX_LINE ? PAIR.exec(text) : null;
}

function pixels(number, unit, length) {
  return unit ? (Number(number) / 100) * length : Number(number);
}
