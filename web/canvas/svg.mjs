// Elements of SVG.

const SVG = "http://www.w3.org/2000/svg";

/** An element of SVG with attributes. */
export function draw(tag, attributes) {
  return set(document.createElementNS(SVG, tag), attributes);
}

/** The element with these attributes. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
