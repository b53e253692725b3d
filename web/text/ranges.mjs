// Ranges of sliders: which numbers one can reach, and random ones among them.

const POSITIONS = 100;

/** Low, high and step of the slider of a direction; in raw units a strength of 1 is that of the vector as fitted. */
export function range(direction, raw) {
  const factor = raw ? direction.raw : 1;
  const step = 10 ** Math.floor(Math.log10(((direction.high - direction.low) * factor) / POSITIONS));
  return {
    low: Math.floor((direction.low * factor) / step + 1e-6) * step,
    high: Math.ceil((direction.high * factor) / step - 1e-6) * step,
    step,
  };
}

/** A strength for each range, never 0; together they lead about as far as one direction does. */
export function randomStrengths(ranges, random = Math.random) {
  const part = 1 / Math.sqrt(Math.max(ranges.length, 1));
  return ranges.map(({ low, high, step }) => {
    const strength = (low + random() * (high - low)) * part;
    return (Math.round(strength / step) || Math.sign(strength) || 1) * step;
  });
}
