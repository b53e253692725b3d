// Curves of losses, as pairs of a step and a loss: how they are scaled, and what they say in words.

const WILD = 0.03; // the share of single losses at either end that may lie outside the picture

/** The lowest and highest loss to draw: all of the mean and of the held-out pictures, and nearly all single losses. */
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
export function told({ steps, mean, validation }) {
  const parts = [];
  if (mean.length) parts.push(`Step ${short(mean.at(-1)[0])} of ${steps}`, `training ${short(mean.at(-1)[1])}`);
  if (validation.length) {
    const [at, loss] = validation.at(-1);
    const lowest = validation.reduce((best, point) => (point[1] < best[1] ? point : best));
    const low = lowest[1] < loss ? `, lowest ${short(lowest[1])} at ${lowest[0]}` : "";
    parts.push(`held-out ${short(loss)} at ${at}${low}`);
  }
  return parts.join(" · ");
}

/** What there is to say of a step: the nearest point of the mean, and of the held-out pictures. */
export function toldAt({ mean, validation }, step) {
  const [at, loss] = nearest(mean, step);
  const [seen, held] = validation.length ? nearest(validation, step) : [];
  return `Step ${short(at)} · training ${short(loss)}${seen === undefined ? "" : ` · held-out ${short(held)} at ${seen}`}`;
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
