"""The examples in docs/targets.md run as they are written there, on real data."""

import re

from helpers import ROOT


def test_the_examples_of_targets_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "targets.md").read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        assert len([line for line in block.splitlines() if line]) <= 10, "ten lines"
        exec(compile(block, "docs/targets.md", "exec"), names)
    assert len(blocks) == 3
    printed = capsys.readouterr().out
    scores = {metric: float(score) for metric, score in re.findall(r"^(\D+) (-?\d[\d.e-]+)", printed, re.MULTILINE)}
    assert scores["mean average precision"] > 0.95
    assert scores["R²"] > 0.3
    assert 0 < scores["within_ten_percent"] < 1
    assert names["learner"].predict(names["x"][:3], "progression").shape == (3,)
