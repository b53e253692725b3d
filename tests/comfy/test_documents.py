"""What README.md, docs/ and the help pages say is so: numbers, links, examples, messages and
texts.
"""

import json
import re
import urllib.request

import documents
import pack_rules
import pytest
import repository

from tools import docs_numbers

_DOCS = repository.ROOT / "docs"
_HELP = repository.ROOT / "web" / "docs"
_FAMILIES = ("activations", "conditioning", "neurons", "noise", "weights")
_SECTIONS = [
    "A real example",
    "What was measured",
    "What does not hold",
    "With a real checkpoint",
    "Limits and common mistakes",
]
_MOST_PAGE_WORDS, _MOST_STUDY_WORDS = 900, 800
# Looked up and not read, or lists that a command makes.
_REFERENCE = {
    "api",
    "architecture",
    "citations",
    "models",
    "nodes",
    "performance",
    "real_checkpoints",
    "troubleshooting",
    "workflows",
}
_MOST_HELP_BYTES = 3_000_000
_MOST_WORDS = 450  # that are written by hand; a page's inputs come from the schema
# What somebody who has read a family's paper types into the search.
_SEARCHED = {
    "activations": ("diffusion features",),
    "conditioning": ("improved conditioning",),
    "neurons": ("nemo", "memorization"),
    "noise": ("immiscible diffusion",),
    "weights": ("weights2weights", "w2w", "weight space"),
}


def test_the_documents_are_up_to_date(app):
    from tools import docs_numbers

    assert docs_numbers.main(["--check"]) == 0, "run `python run.py study report`"


def test_no_link_is_dead():
    dead = {
        str(path.relative_to(repository.ROOT)): documents.dead_links(path)
        for path in documents.markdown()
    }
    assert {name: links for name, links in dead.items() if links} == {}


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("[a](b.md)", ["b.md"]),
        ("[a](#c)", ["#c"]),
        ("# D e\n[a](#d-e)", []),
        ("[a](https://b)", []),
        ('<img src="b.png">', ["b.png"]),
        ("[![a](a.md)](c.md)", ["c.md"]),
    ],
)
def test_a_dead_link_would_be_found(tmp_path, text, dead):
    (tmp_path / "a.md").write_text(text)
    assert documents.dead_links(tmp_path / "a.md") == dead


def test_written_pages_and_studies_are_short():
    pages = {path: _MOST_PAGE_WORDS for path in _DOCS.glob("*.md") if path.stem not in _REFERENCE}
    studies = dict.fromkeys((repository.ROOT / "studies").glob("*/README.md"), _MOST_STUDY_WORDS)
    assert len(studies) == len(_FAMILIES) + 1
    words = {path: documents.written_words(path) for path in pages | studies}
    assert {
        path.name: words[path] for path, most in (pages | studies).items() if words[path] > most
    } == {}


def test_words_of_plots_lists_of_inputs_and_markers_do_not_count(tmp_path):
    plot = "<!-- plot a b: c -->\n![many words](a.png)\n<!-- end -->"
    (tmp_path / "a.md").write_text(
        f"# Title\n\nValue <!-- value b: long name -->0.5<!-- end -->.\n\n{plot}\n"
    )
    assert documents.written_words(tmp_path / "a.md") == 4
    (tmp_path / "a.md").write_text(
        "## Inputs\n\n<!-- inputs -->\n- `seed` (INT): Seed.\n<!-- end -->\n\n- `seed`: more.\n"
    )
    assert documents.written_words(tmp_path / "a.md") == 5


def test_written_pages_and_studies_have_no_generated_tables():
    pages = [path for path in _DOCS.glob("*.md") if path.stem not in _REFERENCE]
    studies = (repository.ROOT / "studies").glob("*/README.md")
    tables = [path for path in (*pages, *studies) if "<!-- numbers " in path.read_text("utf-8")]
    assert tables == []


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_family_has_a_page(family):
    page = _DOCS / f"{family}.md"
    assert [heading for heading in documents.sections(page) if heading in _SECTIONS] == _SECTIONS
    assert documents.papers(page.read_text("utf-8"))
    assert re.search(r"<!-- (numbers|plot) ", page.read_text("utf-8"))
    demos = {
        f"../{path.relative_to(repository.ROOT).with_suffix('.jpg').as_posix()}"
        for path in repository.DEMOS
    }
    assert demos & set(documents.images(page))
    # Those that the template browser does not show are in the list of all that a command makes,
    # docs/workflows.md.
    own = {path.name for path in repository.TEMPLATES if f"_{family}_" in repository.name_of(path)}
    assert own - documents.linked(page, repository.ROOT / "workflows") == set()


@pytest.mark.parametrize(
    "page", docs_numbers.DOCUMENTS, ids=lambda page: str(page.relative_to(repository.ROOT))
)
def test_rows_of_a_table_have_the_cells_of_its_head(page):
    """A name of a number with a bar in it would be two cells."""
    cells = 0
    for line in page.read_text("utf-8").splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert found == (cells or found) or not found, line
        cells = found


def test_what_does_not_hold_is_a_list_of_numbers_and_rivals():
    text = (repository.ROOT / "docs" / "what_does_not_hold.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][
        1:
    ]
    assert 15 < len(rows) <= 25
    for family, claim, found, rival in rows:
        assert (repository.ROOT / "studies" / family / "README.md").is_file()
        assert "<!-- value " in found and rival, claim


def test_the_readme_is_short():
    assert len((repository.ROOT / "README.md").read_text("utf-8").split()) <= 900


def test_the_readme_does_without_words_that_the_vocabulary_forbids():
    assert not re.search(r"\b[Nn]obody\b", (repository.ROOT / "README.md").read_text("utf-8"))


def test_every_image_has_a_text_of_one_sentence():
    """A screen reader says it, and a page shows it where the image does not load."""
    texts = {
        (path.name, text): len(text.split())
        for path in documents.markdown()
        for text in documents.alternatives(path)
    }
    assert texts
    assert {found: words for found, words in texts.items() if not 2 <= words <= 40} == {}


def test_every_document_is_in_the_list_of_them():
    pages = {path.name for path in _DOCS.glob("*.md")} - {"README.md"}
    assert pages - documents.linked(_DOCS / "README.md", _DOCS) == set()


def test_every_paper_of_a_node_can_be_cited(pack_info):
    named = set().union(*(documents.papers(info["description"]) for info in pack_info.values()))
    assert named - documents.papers((_DOCS / "citations.md").read_text("utf-8")) == set()


def test_quoted_messages_are_those_of_the_code():
    page = _DOCS / "troubleshooting.md"
    assert documents.unknown_messages(page, ("nodes", "tools", "kernels")) == []


def test_the_program_runs_as_it_stands(server, object_info, tmp_path, monkeypatch):
    from tools.launcher import workflow

    prompt = workflow.to_prompt(workflow.load(repository.named("demo_weights_edit")), object_info)
    for node in prompt.values():
        if node["class_type"] == "KSampler":
            node["inputs"]["steps"] = 1
    (tmp_path / "demo_weights_edit_api.json").write_text(json.dumps(prompt), "utf-8")
    monkeypatch.chdir(tmp_path)
    (program,) = documents.python(_DOCS / "api.md")
    exec(compile(program.replace("http://127.0.0.1:8188", server.url), "docs/api.md", "exec"), {})
    assert len(list(tmp_path.glob("*.png"))) == 1
    with urllib.request.urlopen(f"{server.url}/history", timeout=30) as answer:
        last = list(json.load(answer).values())[-1]
    edits = {
        node["inputs"]["edits"]
        for node in last["prompt"][2].values()
        if node["class_type"] == "GBX_W2WEdit"
    }
    assert edits == {"sunglasses: 1.5, dark skin: 0.8"}


def test_help_pages_are_short_and_have_paper_formula_inputs_image_and_mistakes(pack_info):
    problems = {}
    for node_id, info in pack_info.items():
        inputs = [name for name, _ in pack_rules.input_options(info)]
        problems[node_id] = documents.help_problems(_HELP / f"{node_id}.md", inputs)
        words = documents.written_words(_HELP / f"{node_id}.md")
        if words > _MOST_WORDS:
            problems[node_id].append(f"it has {words} words: move what is nowhere else to docs/")
    assert {node_id: found for node_id, found in problems.items() if found} == {}


def test_help_images_are_used_small_and_made_by_a_command():
    from tools.workflows import help_images

    files = {path.name for path in (_HELP / "images").iterdir()}
    used = {
        image.removeprefix("images/")
        for page in _HELP.glob("*.md")
        for image in documents.images(page)
    }
    assert files == used == {f"{name}.jpg" for name in help_images.IMAGES} | {"positions.jpg"}
    assert sum(path.stat().st_size for path in (_HELP / "images").iterdir()) < _MOST_HELP_BYTES
    assert {pick.workflow for pick in help_images.IMAGES.values()} <= set(
        map(repository.name_of, repository.DEMOS)
    )


def test_help_images_are_served(server):
    for name in ("space_edits", "positions"):
        address = f"{server.url}/extensions/{repository.LINKED_AS}/docs/images/{name}.jpg"
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200 and answer.headers["Content-Type"] == "image/jpeg"


@pytest.mark.parametrize(("family", "words"), _SEARCHED.items(), ids=_SEARCHED)
def test_a_node_is_found_by_the_words_of_its_paper(family, words, pack_info):
    found = documents.searched(repository.ROOT / "nodes" / family)
    menu = {node_id: pack_info[node_id]["category"] for node_id in found}
    texts = {
        node_id: text for node_id, text in found.items() if f"/{family}" in menu[node_id].lower()
    }
    assert texts, family
    lost = {
        node_id: word
        for node_id, text in texts.items()
        for word in words
        if word not in text.lower()
    }
    assert lost == {}


def test_every_node_is_found_by_its_name_and_five_other_phrases(pack_info):
    found = documents.searched(repository.ROOT / "nodes")
    assert set(found) == set(pack_info)
    assert {
        node_id: text for node_id, text in found.items() if len(set(text.lower().split(", "))) < 6
    } == {}
