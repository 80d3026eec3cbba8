"""Execute the notebooks of docs/tutorials and save what they print.

python docs/site/notebooks.py [NOTEBOOK ...]
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

STYLE = re.compile(r"\x1b\[[\d;]*m")  # bold and colors, for terminals
FOLDER = Path(__file__).parents[1] / "tutorials"


def execute(file: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs, after it has run in an empty folder."""
    notebook = nbformat.read(file, as_version=4)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "COLUMNS": "140", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata = {}  # the times of its execution
        if cell.cell_type == "code":
            cell.outputs = join_streams(cell.outputs)
            for output in cell.outputs:
                if output.output_type == "stream":
                    output.text = STYLE.sub("", output.text).replace(f"{folder}/", "")
                else:
                    output.get("data", {}).pop("image/jpeg", None)  # the same picture again
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    return notebook


def join_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join what arrived in several parts, so that a notebook does not depend on the speed of the machine."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == "stream" == joined[-1].output_type and output.name == joined[-1].name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(execute(file), file)
        print(file.name, flush=True)
