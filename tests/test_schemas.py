"""The JSON Schemas in the docs are those of the types, and the files of a run fit them."""

import json
import runpy

import jsonschema
import pytest
from helpers import ROOT

FOLDER = ROOT / "docs" / "schemas"


def read_schema(name):
    return json.loads((FOLDER / f"{name}.schema.json").read_text())


def test_the_schemas_in_the_docs_are_those_of_the_types():
    script = runpy.run_path(str(ROOT / "docs" / "generate" / "schemas.py"))
    texts = {name: script["format_schema"](schema) for name, schema in script["make_schemas"]().items()}
    assert {file.name: file.read_text() for file in FOLDER.glob("*.json")} == texts, "run python docs/generate/schemas.py"


def test_the_files_of_a_run_fit_their_schemas(digits_run):
    files = {
        "config": "config.json",
        "tasks": "tasks.json",
        "result": "result.json",
        "learner": "model/spacecl.json",
    }
    documents = [(name, json.loads((digits_run / file).read_text())) for name, file in files.items()]
    documents += [("metrics", json.loads(line)) for line in (digits_run / "metrics.jsonl").read_text().splitlines()]
    for name, document in documents:
        jsonschema.validate(document, read_schema(name))
        incomplete = dict(list(document.items())[1:]) if name != "tasks" else {"digits-1": {}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(incomplete, read_schema(name))
