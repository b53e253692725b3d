// Ranges of sliders: which numbers one can reach, and random ones among them.

const POSITIONS = 100;
const PLAIN = { low: -1, high: 1, step: 0.01, power: -2 };

/**
 * Low, high and step of the slider of a direction; in raw units a strength of 1 is that of the vector as fitted. The step is
 * 10 to a `power`, low and high are whole multiples of it, and 0 lies between them: so 0 is a place of the slider.
 */
export function range(direction, raw) {
  const factor = raw ? direction.raw : 1;
  const span = (direction.high - direction.low) * factor;
  const power = Math.floor(Math.log10(span / POSITIONS));
  if (!Number.isFinite(power)) return { ...PLAIN };
  const step = decimal(1, power);
  return {
    low: decimal(Math.min(Math.floor((direction.low * factor) / step + 1e-6), 0), power),
    high: decimal(Math.max(Math.ceil((direction.high * factor) / step - 1e-6), 0), power),
    step,
    power,
  };
}

/** The place of a slider next to a strength; what is nearer to 0 than to the first step is 0. */
export function onGrid(strength, { step, power }) {
  return decimal(Math.round(strength / step), power);
}

/** A strength that was typed, which may lie between two places of the slider; below half a step it is 0. */
export function settled(strength, { step }) {
  return Math.abs(strength) < step / 2 ? 0 : strength;
}

/** Whether a strength lies outside of a range by half a step or more. */
export function isBeyond(strength, { low, high, step }) {
  return strength <= low - step / 2 || strength >= high + step / 2;
}

/** A strength for each range, never 0; together they lead about as far as one direction does. */
export function randomStrengths(ranges, random = Math.random) {
  const part = 1 / Math.sqrt(Math.max(ranges.length, 1));
  return ranges.map(({ low, high, step, power }) => {
    const strength = (low + random() * (high - low)) * part;
    return decimal(Math.round(strength / step) || Math.sign(strength) || 1, power);
  });
}

/** number x 10^power, as near as a float comes: multiplying would leave the dust of binary fractions. Never -0. */
function decimal(number, power) {
  return Number(`${number}e${power}`) || 0;
}
