// "Draft": while the mouse is down, a live slider's images are sampled in fewer steps.

const FRACTION = 4; // a quarter of the steps
const LEAST = 4;
const OF_SAMPLING = /Sampler|Scheduler/; // of ComfyUI and of other packs: training nodes have steps, too

/** A prompt's nodes by id with a quarter of the steps, four at least, in every node that sets those of a sampler. */
export function withFewerSteps(nodes) {
  return Object.fromEntries(Object.entries(nodes).map(([id, node]) => [id, draft(node)]));
}

function draft(node) {
  const steps = node.inputs?.steps;
  if (!OF_SAMPLING.test(node.class_type) || node.class_type.startsWith("GBX_") || !Number.isInteger(steps)) return node;
  const fewer = Math.min(steps, Math.max(LEAST, Math.ceil(steps / FRACTION)));
  const inputs = { ...node.inputs, steps: fewer };
  for (const name of ["start_at_step", "end_at_step"]) {
    const step = inputs[name];
    if (Number.isInteger(step) && step < steps) inputs[name] = Math.round((step * fewer) / steps);
  }
  return { ...node, inputs };
}
