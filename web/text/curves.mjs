// Curves of losses, as pairs of a step and a loss: how they are scaled, and what they say in words.

import { say } from "./words.js";

const WILD = 0.03; // fraction of single losses at either end that may lie outside the plot

/** The lowest and highest loss to draw: all of the mean and of the held-out images, and nearly all single losses. */
export function bounds({ each, mean, validation }) {
  const single = each.map(([, loss]) => loss).sort((one, other) => one - other);
  const cut = Math.floor(single.length * WILD);
  const shown = [...single.slice(cut, single.length - cut), ...mean.map(lossOf), ...validation.map(lossOf)];
  const [low, high] = [Math.min(...shown), Math.max(...shown)];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return { low: low - room, high: high + room };
}

/** The last step to draw. */
export function lastStep({ steps, each, validation }) {
  return Math.max(steps, each.at(-1)?.[0] ?? 0, validation.at(-1)?.[0] ?? 0);
}

/** Round numbers from one number to another, `most` of them or a few less. */
export function ticks(low, high, most) {
  const least = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, index) => Number(((first + index) * step).toPrecision(6)));
}

/** What there is to say of the whole. */
export function summary({ steps, mean, validation }) {
  const parts = [];
  if (mean.length) {
    const [at, loss] = mean.at(-1).map(short);
    parts.push(say("Step {0} of {1}", at, steps), say("training {0}", loss));
  }
  if (validation.length) {
    const [at, loss] = validation.at(-1);
    const lowest = validation.reduce((best, point) => (point[1] < best[1] ? point : best));
    const low = lowest[1] < loss ? say(", lowest {0} at {1}", short(lowest[1]), lowest[0]) : "";
    parts.push(say("held-out {0} at {1}", short(loss), at) + low);
  }
  return parts.join(" · ");
}

/** The text of a step: the nearest point of the mean, and of the held-out images. */
export function summaryAt({ mean, validation }, step) {
  const [at, loss] = nearest(mean, step).map(short);
  const parts = [say("Step {0}", at), say("training {0}", loss)];
  if (validation.length) {
    const [seen, held] = nearest(validation, step);
    parts.push(say("held-out {0} at {1}", short(held), seen));
  }
  return parts.join(" · ");
}

/** A loss in three digits, and steps as they are. */
export function short(number) {
  return String(Number(Number.isInteger(number) ? number : number.toPrecision(3)));
}

function nearest(points, step) {
  return points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
}

function lossOf([, loss]) {
  return loss;
}
