// What the panels say, in the language of the canvas. Where it has no words of ours they say it in English.

const TABLES = { zh: ["chinese", "chinese_options", "chinese_workflows"] };
let words = {};
let options = {};
let workflows = {};
const english = new Map(); // English texts by what they became in another language

/** Takes the language of the front end's setting Comfy.Locale for all texts from here on; only its tables are fetched. */
export async function speak(locale) {
  [words = {}, options = {}, workflows = {}] = await Promise.all((TABLES[locale] ?? []).map(fetched));
}

async function fetched(table) {
  const answer = await fetch(new URL(`./${table}.json`, import.meta.url)).catch(() => null);
  return answer?.ok ? answer.json() : {};
}

/** A title or a note of the pack's workflows, line by line; what others have written stays as it is. */
export function sayTitle(text) {
  return mapLines(text, (line) => {
    if (workflows[line]) english.set(workflows[line], line);
    return workflows[line] ?? line;
  });
}

/** What `sayTitle` was given, for a file. */
export function asWritten(text) {
  return mapLines(text, (line) => english.get(line) ?? line);
}

function mapLines(text, change) {
  return String(text).split("\n").map(change).join("\n");
}

/** What a combo shows for one of its values; the value stays readable, since messages and help pages name it. */
export function sayOption(value) {
  return options[value] ? `${options[value]} (${value})` : (value ?? "");
}

/** An English sentence in the language of the canvas, with values in the places of {0}, {1} and so on. */
export function say(sentence, ...values) {
  return (words[sentence] ?? sentence).replace(/\{(\d)\}/g, (_, place) => values[place]);
}
