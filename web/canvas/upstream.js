// Where a node's input comes from.

/** The node at the other end of an input's wire, or null. */
export function sourceOf(node, name) {
  const input = node.inputs?.find((input) => input.name === name);
  if (input?.link == null) return null;
  const links = node.graph?.links;
  const link = links?.get?.(input.link) ?? links?.[input.link];
  return link ? node.graph.getNodeById(link.origin_id) : null;
}

/** The nodes before an input, nearest first, as long as each is fed by an input of these types. */
export function chain(node, name, types) {
  const found = [];
  for (let at = sourceOf(node, name); at && !found.includes(at); ) {
    found.push(at);
    const next = at.inputs?.find((input) => input.link != null && (types.includes(input.type) || input.type === "*"));
    at = next ? sourceOf(at, next.name) : null;
  }
  return found;
}

/** The value of a widget of a node, or undefined. */
export function valueOf(node, name) {
  return node.widgets?.find((widget) => widget.name === name)?.value;
}
