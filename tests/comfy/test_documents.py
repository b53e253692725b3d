"""Tables in README.md and studies/README.md are those of the result files and of the nodes as they are."""

import runpy

import repository


def test_the_documents_are_up_to_date(comfy):
    runpy.run_path(str(repository.ROOT / "run.py"))["load_package"]("studies")
    from studies import report

    assert report.main(["--check"]) == 0, "run `python run.py study report`"
