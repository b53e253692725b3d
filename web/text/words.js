// What the panels say, in the language of the canvas. Where it has no words of ours they say it in English.

import { CHINESE } from "./chinese.js";

const LANGUAGES = { zh: CHINESE };
let words = {};

/** Takes the language of the front end's setting Comfy.Locale for all texts from here on. */
export function speak(locale) {
  words = LANGUAGES[locale] ?? {};
}

/** An English sentence in the language of the canvas, with values in the places of {0}, {1} and so on. */
export function say(sentence, ...values) {
  return (words[sentence] ?? sentence).replace(/\{(\d)\}/g, (_, place) => values[place]);
}
