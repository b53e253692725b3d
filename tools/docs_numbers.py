"""Put measured numbers and the list of nodes into the documents: `python run.py study report
[--check]`.

Every line `<!-- numbers RESULT: PATTERN -->` in README.md, docs/, studies/ or a README.md of
benchmarks/ is followed by a table of the numbers of studies/results/RESULT.json whose names match
the regular expression PATTERN, up to the line `<!-- end -->`. `<!-- nodes -->` is followed in the
same way by a table of the pack's nodes, `<!-- costs -->` by one of what they cost
(bench_nodes.json), `<!-- plot ... -->` by a plot (docs_plots.py), and `<!-- inputs -->` in the help
pages of web/docs/ by the node's inputs; and a line may hold `<!-- value RESULT: NAME -->`, which is
followed by one number, or `<!-- interval RESULT: NAME -->`, by its interval.
tests/node_contract.json and node_widgets.json are written from the nodes' schemas. `--check`
changes nothing and fails when something is out of date. `python run.py study show RESULT [PATTERN]`
prints a result's numbers as such a table.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import cards, docs_plots, node_contract, translations

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "studies" / "results"
DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "studies" / "README.md",
    *sorted((ROOT / "studies").glob("*/*.md")),
    *sorted((ROOT / "benchmarks").glob("*/README.md")),
)
_BLOCK = re.compile(
    r"(<!-- numbers (?P<result>[\w.-]+): (?P<pattern>.+?) -->\n).*?(?=<!-- end -->)", re.S
)
#: A number or interval of a result file within a line: its kind, result and name.
VALUE = re.compile(
    r"(<!-- (?P<kind>value|interval) (?P<result>[\w.-]+): (?P<name>.+?) -->).*?(?=<!-- end -->)"
)
_COSTS = re.compile(r"(<!-- costs -->\n).*?(?=<!-- end -->)", re.S)
_COST_KEYS = ("takes", "of an evaluation", "over rival", "rival", "memory")
_NODES = re.compile(r"(<!-- nodes -->\n).*?(?=<!-- end -->)", re.S)
HELP = ROOT / "web" / "docs"
_INPUTS = re.compile(r"(<!-- inputs -->\n).*?(?=<!-- end -->)", re.S)
_OUTPUTS = re.compile(r"(<!-- outputs -->\n).*?(?=<!-- end -->)", re.S)
_WORKFLOWS = re.compile(r"(<!-- workflows -->\n).*?(?=<!-- end -->)", re.S)
_MARKUP = re.compile(r"[*<~]|(?<!\w)_")  # what Markdown would take for its own in a tooltip
_MOST_OPTIONS = 8
#: A new node's help page: all of it comes from the schema, until somebody adds a figure or a
#: formula.
_NEW_PAGE = """# {name}

{description}

## Inputs

<!-- inputs -->
<!-- end -->

## Outputs

<!-- outputs -->
<!-- end -->

## Workflows

<!-- workflows -->
<!-- end -->
"""


def table(result: dict, pattern: str) -> str:
    """A Markdown table of the matching numbers, and the command that made them."""
    rows = {name: number for name, number in result["numbers"].items() if re.search(pattern, name)}
    if not rows:
        raise ValueError(f"No number of the result matches {pattern!r}.")
    lines = ["| number | value | 95 % interval | n | what |", "|---|---|---|---|---|"]
    for name, number in rows.items():
        value = number["value"] if isinstance(number["value"], int) else f"{number['value']:.3f}"
        interval = f"{number['low']:.3f} to {number['high']:.3f}" if "low" in number else ""
        lines.append(
            f"| {name} | {value} {number['unit']} | {interval} | {number['n']} | {number['what']} |"
        )
    return "\n".join([*lines, "", f"Made by `{result['command']}`.", ""])


def filled(text: str, results: Path = RESULTS) -> str:
    """A document with every table and every single number made again from the result files."""

    def numbers(name: str) -> dict:
        return json.loads((results / f"{name}.json").read_text("utf-8"))

    def replace(block: re.Match) -> str:
        return block[1] + table(numbers(block["result"]), block["pattern"])

    def value(found: re.Match) -> str:
        whole = numbers(found["result"])["numbers"][
            found["name"].replace("\\|", "|")
        ]  # as tables of Markdown want it
        if found["kind"] == "interval":
            return f"{found[1]}{whole['low']:.2f} to {whole['high']:.2f}"
        number = whole["value"]
        return f"{found[1]}{number if isinstance(number, int) else f'{number:.2f}'}"

    return VALUE.sub(value, _BLOCK.sub(replace, text))


def with_nodes(text: str, rows: list[tuple[str, str, str]]) -> str:
    """A document with its table of nodes (display name, category, description) made again."""
    lines = [
        "| node | where | what it does |",
        "|---|---|---|",
        *(f"| **{a}** | {b} | {c} |" for a, b, c in rows),
        "",
    ]
    return _NODES.sub(lambda block: block[1] + "\n".join(lines), text)


def with_inputs(text: str, fields: Iterable) -> str:
    """A help page with its list of inputs made again: name, kind, range and default, and the
    tooltip.
    """
    lines = "".join(
        f"- `{field.id}` ({_kind(field)}): {_plain(field.tooltip)}\n" for field in fields
    )
    return _INPUTS.sub(lambda block: block[1] + lines, text)


def with_outputs(text: str, fields: Iterable) -> str:
    """A help page with its list of outputs made again, where it has one: name and tooltip."""
    lines = "".join(
        f"- `{field.display_name}` ({field.get_io_type()}): {_plain(field.tooltip or '')}\n"
        for field in fields
    )
    return _OUTPUTS.sub(lambda block: block[1] + lines, text)


def help_page(schema: Any, links: str) -> str:
    """A node's help page with all that comes from its schema made again; a new one where there is
    none.
    """
    page = HELP / f"{schema.node_id}.md"
    new = _NEW_PAGE.format(name=schema.display_name, description=_plain(schema.description))
    text = page.read_text("utf-8") if page.is_file() else new
    text = with_outputs(with_inputs(text, schema.inputs), schema.outputs)
    return with_workflows(text, links)


def with_workflows(text: str, links: str) -> str:
    """A help page with its links to the workflows that show the node made again."""
    return _WORKFLOWS.sub(lambda block: f"{block[1]}{links}\n", text)


def _kind(field: Any) -> str:
    """The values to choose from, or an input's type and range; its default where that is not the
    first value.
    """
    values, default = node_contract.kind(field), getattr(field, "default", None)
    if values == "FILE":
        return "file"
    if isinstance(values, list):
        short = len(values) <= _MOST_OPTIONS
        found = [
            f"one of {', '.join(f'`{value}`' for value in values)}"
            if short
            else str(field.get_io_type())
        ]
        default = None if short and default == values[0] else default
    else:
        found = [str(field.get_io_type())]
        found += ["optional"] if field.optional and not hasattr(field, "default") else []
    if getattr(field, "max", None) is not None and field.max < 2**53:  # above that, of a seed
        found.append(f"{_written(field.min)} to {_written(field.max)}")
    if default not in (None, ""):
        found.append(f"default `{_written(default)}`")
    return ", ".join(found)


def _written(value: Any) -> str:
    """As programs write it in a prompt, on one line, and 1 for 1.0."""
    if isinstance(value, str):
        return value.replace("\n", " / ")
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _plain(tooltip: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", tooltip).replace("\n", " / ")


def _short(number: dict, times: int = 1) -> str:
    """Two digits, without an exponent."""
    value = number["value"] * times
    return f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".") if value < 100 else f"{value:.0f}"


def with_costs(text: str, rows: dict[str, str], path: Path = RESULTS / "bench_nodes.json") -> str:
    """A document with its table of costs made again; ``rows``: display names by the IDs of
    nodes.
    """

    def table_of(block: re.Match) -> str:
        numbers = json.loads(path.read_text("utf-8"))["numbers"]
        networks = list(
            dict.fromkeys(name.partition(",")[0] for name in numbers if ", network: " in name)
        )
        nodes = dict.fromkeys(
            name.partition(",")[0] for name in numbers if name.endswith(": takes")
        )
        heads = [f"{name}: ms, of an evaluation, of the rival" for name in networks]
        lines = [
            f"| node | work | rival | {' | '.join(heads)} | MiB |",
            "|---|---|---|" + "---|" * (len(networks) + 1),
        ]
        for node in nodes:
            found = {
                name: {key: numbers[f"{node}, {name}: {key}"] for key in _COST_KEYS}
                for name in networks
            }
            cells = [
                f"{_short(each['takes'])} · {_short(each['of an evaluation'], 100)} % · "
                f"{_short(each['over rival'])}"
                for each in found.values()
            ]
            memory = " · ".join(_short(each["memory"]) for each in found.values())
            about = next(iter(found.values()))
            names = (
                rows[f"GBX_{node}"],
                about["takes"]["what"],
                about["rival"]["what"],
                *cells,
                memory,
            )
            lines.append(f"| {' | '.join(names)} |")
        return "\n".join([block[1] + lines[0], *lines[1:], ""])

    return _COSTS.sub(table_of, text)


def schemas() -> list:
    """The schema of every node of the pack, in menu order."""
    from studies.common import host

    host.prepare()
    return [node.define_schema() for node in host.pack("nodes.menu").NODES]


def nodes(listed: Iterable) -> list[tuple[str, str, str]]:
    """Display name, category and the description's first sentence of every listed schema."""
    return [
        (
            schema.display_name,
            schema.category,
            re.split(r"(?<=\.) (?=[A-Z])", schema.description)[0],
        )
        for schema in listed
    ]


def _workflows() -> list[Path]:
    """Every workflow file that ships."""
    return sorted((ROOT / "workflows").rglob("*.json"))


def show(argv: Sequence[str]) -> int:
    """Print the numbers of a result whose names match a regular expression, by default all of
    them.
    """
    parser = argparse.ArgumentParser(prog="run.py study show", description=show.__doc__)
    parser.add_argument("name", help="of a file studies/results/NAME.json")
    parser.add_argument("pattern", nargs="?", default="")
    options = parser.parse_args(argv)
    path = RESULTS / f"{options.name}.json"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in RESULTS.glob("*.json")))
        print(f"There is no result named {options.name}: there are {known}.")
        return 1
    try:
        print(table(json.loads(path.read_text("utf-8")), options.pattern))
    except ValueError as error:
        print(error)
        return 1
    return 0


def main(argv: Sequence[str]) -> int:
    """Rewrite the documents, or check them."""
    parser = argparse.ArgumentParser(
        prog="run.py study report", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true")
    options, stale, listed = parser.parse_args(argv), [], schemas()
    shown = cards.workflows_by_node()
    current = {
        node_contract.PATH: node_contract.table(listed),
        node_contract.WIDGETS: node_contract.widgets(listed),
    }
    plots = {}
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        plots |= docs_plots.requested(text)
        costs = with_costs(filled(text), {schema.node_id: schema.display_name for schema in listed})
        current[document] = docs_plots.filled(with_nodes(costs, nodes(listed)), document)
    for schema in listed:
        links = cards.links(schema.node_id, shown)
        current[HELP / f"{schema.node_id}.md"] = help_page(schema, links)
    for path, text in current.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in docs_plots.stale(plots):
        stale.append(path.relative_to(ROOT).as_posix())
        if not options.check and path.stem in plots:
            docs_plots.write(path, plots[path.stem])
        elif not options.check:
            path.unlink()
    if options.check and stale:
        print(f"Out of date: {', '.join(stale)}; run `python run.py study report`.")
        return 1
    print(translations.report(translations.missing(listed, _workflows())))
    print(
        f"{'Rewrote' if stale else 'Nothing to change in'} {', '.join(stale) or 'the documents'}."
    )
    return 0
