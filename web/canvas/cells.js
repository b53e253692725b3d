// A field of small cells that are switched on and off: by click, shift-click, drag, and with the keys.

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
      this.switching = !this.host.isOn(index);
      this.host.switchSome([index], this.switching);
      this.anchor = index;
    }
    window.addEventListener("pointerup", () => this.release(), { capture: true, once: true });
    this.focusOn(index);
  }

  over(event) {
    const index = indexOf(event.target);
    if (index === null) return;
    if (this.switching !== undefined && event.buttons & 1) this.host.switchSome([index], this.switching);
    this.host.pointed(index);
  }

  release() {
    this.switching = undefined;
    this.host.switched();
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
