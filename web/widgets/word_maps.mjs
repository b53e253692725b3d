// The words of a prompt over its image: at a place that is pointed at or clicked, the words that act there, strongest
// first; of a word that is pointed at or clicked, where it acts.

import { api } from "../../../scripts/api.js";
import { lastOutput } from "../canvas/outputs.mjs";
import { addPanel, make } from "../canvas/panel.js";
import { say } from "../text/words.js";

const HEIGHT = 380;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const HEAT = [230, 97, 1];
const OPACITY = 0.75;

export function addWordMaps(node) {
  new WordMaps(node);
}

class WordMaps {
  constructor(node) {
    Object.assign(this, { node, found: null, rows: [], number: 0 });
    Object.assign(this, { place: null, over: null, word: null, overWord: null }); // clicked, and under the pointer
    this.image = make("img", "", { draggable: false });
    this.heat = make("canvas", "glassbox-heat");
    this.mark = make("div", "glassbox-mark");
    this.pair = make("div", "glassbox-pair glassbox-crosshair", {
      tabIndex: 0,
      role: "group",
      "aria-label": say("A place in the image: arrows move it, Escape leaves it"),
    }, [this.image, this.heat, this.mark]);
    this.pair.addEventListener("pointermove", (event) => this.set({ over: this.at(event) }));
    this.pair.addEventListener("pointerleave", () => this.set({ over: null }));
    // Not at the click: by then the focus may have scrolled the image.
    this.pair.addEventListener("pointerdown", (event) => event.button || this.pin(this.at(event)));
    this.pair.addEventListener("keydown", (event) => this.key(event));
    this.list = make("div", "glassbox-scroll glassbox-words");
    this.list.addEventListener("pointerleave", () => this.set({ overWord: null }));
    this.status = make("div", "glassbox-status", { role: "status" });
    this.slider = make("input", "", { type: "range", min: 0, step: 1 });
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    this.slider.addEventListener("pointerup", () => this.slider.blur()); // so that the canvas takes Ctrl+Z
    this.counter = make("span", "");
    this.images = make("label", "glassbox-frames", {}, [this.counter, this.slider]);
    this.head = make("div", "glassbox-head", {}, [this.status, this.images]);
    this.around = make("div", "glassbox-around", {}, [this.pair]);
    this.empty = make("div", "glassbox-empty", { textContent: say("The words show after a run.") });
    addPanel(node, "word_maps", make("div", "glassbox-word-maps", {}, [this.head, this.around, this.list, this.empty]), {
      height: HEIGHT,
      update: (output) => this.update(output),
    });
  }

  async update(output) {
    const found = (output?.glassbox_words ?? (await lastOutput(this.node, "glassbox_words")))?.at(-1);
    for (const part of [this.head, this.around, this.list]) part.hidden = !(found ?? this.found);
    this.empty.hidden = !this.around.hidden;
    // The server's history makes new objects of the same run, whose image has the same name.
    if (!found || found.images[0].filename === this.found?.images[0].filename) return;
    this.found = found;
    this.maps = found.words.map(({ map }) => Uint8Array.from(atob(map), (one) => one.charCodeAt(0)));
    this.rows = found.words.map((_, word) => this.row(word));
    this.slider.max = found.images.length - 1;
    this.slider.value = 0;
    this.images.hidden = found.images.length < 2;
    [this.heat.height, this.heat.width] = found.size;
    Object.assign(this, { place: null, over: null, word: null, overWord: null });
    this.choose(0);
  }

  row(word) {
    const [name, bar, value] = [make("span", "glassbox-name"), make("span", "glassbox-bar-of"), make("span", "")];
    name.textContent = name.title = this.found.words[word].word;
    const row = make("button", "glassbox-word", { type: "button" }, [name, bar, value]);
    row.addEventListener("pointerenter", () => this.set({ overWord: word }));
    row.addEventListener("focus", () => this.set({ overWord: word }));
    row.addEventListener("blur", () => this.set({ overWord: null }));
    row.addEventListener("click", () => this.set({ word: this.word === word ? null : word }));
    return row;
  }

  /** Another image or frame; a place and a word that are clicked stay. */
  choose(number) {
    const { width, height, filename, subfolder, type, number: inBatch } = this.found.images[number];
    const kind = this.found.video ? say("Frame") : say("Image");
    this.counter.textContent = `${kind} ${inBatch + 1}`;
    this.pair.style.setProperty("--ratio", width / height);
    this.image.src = api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type })}`);
    this.set({ number });
  }

  set(changes) {
    Object.assign(this, changes);
    if (this.found) this.draw();
  }

  draw() {
    const place = this.over ?? this.place;
    const values = this.found.words.map(({ share }, word) => (place ? this.value(word, place) : share));
    const order = [...values.keys()].sort((one, other) => values[other] - values[one]);
    const shown = this.overWord ?? this.word ?? (place ? order[0] : null);
    for (const [word, row] of this.rows.entries()) {
      row.style.setProperty("--part", values[word] / Math.max(values[order[0]], 1e-9));
      row.lastChild.textContent = `${(100 * values[word]).toFixed(1)}%`;
      row.setAttribute("aria-pressed", word === this.word);
      row.classList.toggle("glassbox-shown", word === shown);
    }
    const rows = order.map((word) => this.rows[word]);
    if (rows.some((row, at) => this.list.children[at] !== row)) this.list.replaceChildren(...rows); // else focus stays
    this.status.textContent = place
      ? say("Attention to each word at this place")
      : say("Attention to each word over the whole image");
    this.mark.hidden = !place;
    if (place) {
      const [height, width] = this.found.size;
      this.mark.style.left = `${(100 * (place.x + 0.5)) / width}%`;
      this.mark.style.top = `${(100 * (place.y + 0.5)) / height}%`;
    }
    this.heatOf(shown);
  }

  /** The attention to a word at a place, of all attention there. */
  value(word, { x, y }) {
    const [height, width] = this.found.size;
    const byte = this.maps[word][(this.number * height + y) * width + x];
    return (byte / 255) * this.found.words[word].largest;
  }

  /** A word's map over the image, stretched to its own range; null for none. */
  heatOf(word) {
    const [height, width] = this.found.size;
    const context = this.heat.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (word === null) return;
    const map = this.maps[word].subarray(this.number * height * width, (this.number + 1) * height * width);
    const [low, high] = [Math.min(...map), Math.max(...map)];
    const pixels = context.createImageData(width, height);
    for (const [at, byte] of map.entries()) {
      pixels.data.set([...HEAT, (255 * OPACITY * (byte - low)) / Math.max(high - low, 1)], 4 * at);
    }
    context.putImageData(pixels, 0, 0);
  }

  at({ clientX, clientY }) {
    const box = this.pair.getBoundingClientRect();
    const [height, width] = this.found.size;
    return this.inside(((clientX - box.left) / box.width) * width, ((clientY - box.top) / box.height) * height);
  }

  inside(x, y) {
    const [height, width] = this.found.size;
    const within = (value, length) => Math.min(Math.max(Math.floor(value), 0), length - 1);
    return { x: within(x, width), y: within(y, height) };
  }

  pin(place) {
    this.set({ place: this.place?.x === place.x && this.place.y === place.y ? null : place });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || !(event.key in STEPS || event.key === "Escape")) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") return this.set({ place: null, over: null });
    const [right, down] = STEPS[event.key];
    const [height, width] = this.found.size;
    const { x, y } = this.place ?? { x: Math.floor(width / 2), y: Math.floor(height / 2) };
    this.set({ place: this.inside(x + right, y + down), over: null });
  }
}
