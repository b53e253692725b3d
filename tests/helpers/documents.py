"""What the documents say: links, sections, quoted messages and code, read from Markdown."""

from __future__ import annotations

import ast
import re
import urllib.parse
from pathlib import Path

import repository

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?:\]\(|\bsrc=\")([^()\s\"]+)[)\"]")
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"^!\[[^\]]+\]\(([^)\s]+)\)$", re.MULTILINE)
_MESSAGES = re.compile(r"^\| `([^`|]+)` \|", re.MULTILINE)
_GENERATED = re.compile(r"<!-- (plot|inputs|outputs|workflows) .*?<!-- end -->", re.DOTALL)
_FROM_SCHEMA = {"Inputs", "Outputs", "Workflows"}
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ARXIV = re.compile(r"\d{4}\.\d{5}")


def markdown() -> list[Path]:
    """Every Markdown file of the repository."""
    return [path for path in repository.tracked_files() if path.suffix == ".md"]


def dead_links(path: Path) -> list[str]:
    """The relative links of a document that lead to no file, or to no heading of one."""
    found = []
    for link in _LINK.findall(_CODE.sub("", path.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, heading = urllib.parse.unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (heading and heading not in _headings(target)):
            found.append(link)
    return found


def _headings(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", _CODE.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def written_words(path: Path) -> int:
    """Words of a document without what a command makes: plots, lists of inputs, and the markers of
    values.
    """
    return len(_COMMENT.sub("", _GENERATED.sub("", path.read_text("utf-8"))).split())


def linked(path: Path, folder: Path) -> set[str]:
    """Names of the files of a folder that a document links to."""
    links = map(urllib.parse.unquote, _LINK.findall(path.read_text("utf-8")))
    targets = (path.parent / link.partition("#")[0] for link in links)
    return {target.name for target in targets if target.resolve().parent == folder}


def sections(path: Path) -> list[str]:
    """The second-level headings of a document."""
    return re.findall(r"^## (.+)$", _CODE.sub("", path.read_text("utf-8")), re.MULTILINE)


def python(path: Path) -> list[str]:
    """The Python code of a document."""
    return _PYTHON.findall(path.read_text("utf-8"))


def images(path: Path) -> list[str]:
    """The targets of the images that have a line of their own and a text for those who cannot see
    them.
    """
    return list(map(urllib.parse.unquote, _IMAGE.findall(path.read_text("utf-8"))))


def alternatives(path: Path) -> list[str]:
    """The texts of a document's images, for those who cannot see them."""
    text = _CODE.sub("", path.read_text("utf-8"))
    return re.findall(r"!\[([^\]]*)\]\(", text) + re.findall(r'\balt="([^"]*)"', text)


def papers(text: str) -> set[str]:
    """The arXiv numbers in a text."""
    return set(_ARXIV.findall(text))


def unknown_messages(path: Path, folders: tuple[str, ...]) -> list[str]:
    """The messages that a document's tables quote (... for what varies) and that no code in the
    folders holds.
    """
    texts = {
        text
        for folder in folders
        for file in (repository.ROOT / folder).rglob("*.py")
        for text in _strings(file)
    }
    return [
        message
        for message in _MESSAGES.findall(path.read_text("utf-8"))
        for part in (piece.strip(" .") for piece in message.split("..."))
        if len(part) > 3 and not any(part in text for text in texts)
    ]


def _strings(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def help_problems(page: Path, inputs: list[str]) -> list[str]:
    """Which of the five things a help page lacks: paper, formula, each input, an image, common
    mistakes. A page that comes from the schema alone needs the first and the third.
    """
    text, found = page.read_text("utf-8"), []
    if not papers(text) and "No paper:" not in text:
        found.append("it names no paper")
    found += _input_problems(text, inputs)
    if set(re.findall(r"^## (.+)$", text, re.MULTILINE)) <= _FROM_SCHEMA:
        return found
    formula = re.search(r"^## Formula\n\n```\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    if not formula:
        found.append("it has no section Formula with a formula")
    if not images(page) or any(not image.startswith("images/") for image in images(page)):
        found.append("it has no image out of images/, the folder that ComfyUI serves to it")
    mistakes = text.partition("\n## Common mistakes\n")[2]
    if len(re.findall(r"^- ", mistakes, re.MULTILINE)) < 2:
        found.append("it names fewer than two common mistakes")
    return found


def _input_problems(text: str, inputs: list[str]) -> list[str]:
    found = []
    if "## Inputs\n\n<!-- inputs -->\n" not in text:
        found.append(
            "it has no section Inputs with <!-- inputs --> and <!-- end -->, which run.py study "
            "report fills"
        )
    lines = [line for line in text.splitlines() if line.startswith("- `")]
    found += [
        f"no line of its list begins with {name}"
        for name in inputs
        if not any(f"`{name}`" in x for x in lines)
    ]
    return found


def searched(folder: Path) -> dict[str, str]:
    """What the search finds each node class below a folder by, from its id: display name and search
    aliases.

    Read from the source: ComfyUI 0.3.75 does not know the aliases yet, and its nodes have lost
    them.
    """
    found = {}
    for path in folder.rglob("nodes_*.py"):
        for call in (
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
        ):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            if "node_id" in given and "search_aliases" in given:
                texts = [
                    given["display_name"].value,
                    *(alias.value for alias in given["search_aliases"].elts),
                ]
                found[given["node_id"].value] = ", ".join(texts)
    return found
