// A field of small cells that are switched on and off: by click, shift-click, with the keys, and by a rectangle that is
// drawn from one cell on.

/**
 * `container`: the element that holds the cells, which have a data-index. `host` gives `isOn(index)`,
 * `switchSome(indices, on)`, `switched()` when the hand has let go, and `pointed(index)` with null for no cell.
 */
export class Cells {
  constructor(container, host) {
    Object.assign(this, { container, host, cells: [], rows: [], anchor: 0 });
    container.addEventListener("pointerdown", (event) => this.press(event));
    container.addEventListener("pointerover", (event) => this.over(event));
    container.addEventListener("pointerleave", () => host.pointed(null));
    container.addEventListener("focusout", () => host.pointed(null));
    container.addEventListener("keydown", (event) => this.key(event));
  }

  /** Takes over new cells by their number, and rows of such numbers from top to bottom as they are seen. */
  replace(cells, rows) {
    Object.assign(this, { cells, rows, anchor: 0 });
    for (const [index, cell] of cells.entries()) {
      cell.dataset.index = index;
      cell.tabIndex = index ? -1 : 0;
    }
  }

  press(event) {
    const index = indexOf(event.target);
    if (index === null || event.button) return;
    event.preventDefault(); // or the text of the page would be selected
    if (event.shiftKey) {
      this.host.switchSome(between(this.anchor, index), true);
    } else {
      this.anchor = index;
      this.drawRectangle(event, index);
    }
    window.addEventListener("pointerup", () => this.host.switched(), { capture: true, once: true });
    this.focusOn(index);
  }

  /** Until the hand lets go, switches the cells between where it was pressed and where it is; what it leaves goes back. */
  drawRectangle({ clientX, clientY }, index) {
    const before = this.cells.map((_, other) => this.host.isOn(other));
    const on = !before[index];
    const held = new AbortController();
    let within = new Set([index]);
    this.host.switchSome([index], on);
    const move = (event) => {
      const inside = this.touched([clientX, event.clientX], [clientY, event.clientY]);
      const entered = [...inside].filter((other) => !within.has(other));
      const left = [...within].filter((other) => !inside.has(other) && before[other] !== on);
      within = inside;
      if (entered.length) this.host.switchSome(entered, on);
      if (left.length) this.host.switchSome(left, !on);
    };
    window.addEventListener("pointermove", move, { capture: true, signal: held.signal });
    window.addEventListener("pointerup", () => held.abort(), { capture: true, once: true });
  }

  /** The cells that the rectangle between two places on the page touches. */
  touched(x, y) {
    const [left, right, top, bottom] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
    const seen = this.cells.map((cell) => cell.getBoundingClientRect());
    const touches = (box) => box.right > left && box.left < right && box.bottom > top && box.top < bottom;
    return new Set(seen.flatMap((box, index) => (touches(box) ? [index] : [])));
  }

  over(event) {
    const index = indexOf(event.target);
    if (index !== null) this.host.pointed(index);
  }

  key(event) {
    const index = indexOf(event.target);
    if (index === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = this.next(event.key, index);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    if (next === index) this.host.switchSome([index], !this.host.isOn(index));
    else if (event.shiftKey) this.host.switchSome(between(index, next), true);
    if (next === index || event.shiftKey) this.host.switched();
    this.anchor = next;
    this.focusOn(next);
    this.host.pointed(next);
  }

  /** Where a key leads from a cell: to itself for one that switches it, null for one that does nothing here. */
  next(key, index) {
    const last = this.cells.length - 1;
    if (key === " " || key === "Enter") return index;
    if (key === "Home") return 0;
    if (key === "End") return last;
    if (key === "ArrowLeft") return Math.max(index - 1, 0);
    if (key === "ArrowRight") return Math.min(index + 1, last);
    if (key !== "ArrowUp" && key !== "ArrowDown") return null;
    const at = this.rows.findIndex((row) => row.includes(index));
    const other = this.rows[at + (key === "ArrowUp" ? -1 : 1)];
    return other ? other[Math.min(this.rows[at].indexOf(index), other.length - 1)] : null;
  }

  /** One cell at a time can be reached with Tab. */
  focusOn(index) {
    for (const cell of this.cells) cell.tabIndex = -1;
    this.cells[index].tabIndex = 0;
    this.cells[index].focus();
  }
}

function indexOf(element) {
  const index = element.closest?.("[data-index]")?.dataset.index;
  return index === undefined ? null : Number(index);
}

function between(one, other) {
  const [first, last] = one < other ? [one, other] : [other, one];
  return Array.from({ length: last - first + 1 }, (_, step) => first + step);
}
