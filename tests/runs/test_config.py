"""Settings of a run: presets, TOML, the command line, and all faults at once."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spacecl import SPACE, ConfigError
from spacecl.data import sources
from spacecl.runs import config
from spacecl.runs.resolve import merge_settings, parse_assignments, read_toml, resolve, to_command

ROOT = Path(__file__).parents[2]


def digits(**more):
    return resolve({"benchmark": "permuted-digits", **more})


@pytest.fixture
def any_data(monkeypatch):
    """As if all datasets were there."""
    monkeypatch.setattr(sources, "find_missing", lambda names, data: [])


TABLE_S2 = {  # benchmark: task, then epochs, rate and decays of training and of retraining
    "p-mnist": {
        1: (15, 0.01, (6, 13), 45, 0.001, (38,)),
        7: (15, 0.01, (6, 13), 45, 0.001, (38,)),
        8: (15, 0.01, (6, 13), 60, 0.001, (51,)),
        10: (15, 0.01, (6, 13), 60, 0.001, (51,)),
    },
    "split-cifar10": {
        1: (40, 0.01, (25, 35), 55, 0.01, (11, 49)),
        2: (40, 0.01, (25, 35), 55, 0.01, (11, 49)),
        3: (60, 0.001, (54,), 85, 0.01, (8, 76)),
        5: (60, 0.001, (54,), 85, 0.01, (8, 76)),
    },
    "split-cifar100": {
        1: (80, 0.01, (25, 65), 120, 0.01, (42, 108)),
        2: (80, 0.01, (25, 65), 120, 0.01, (42, 108)),
        3: (100, 0.001, (90,), 150, 0.01, (52, 135)),
        10: (100, 0.001, (90,), 150, 0.01, (52, 135)),
    },
}


@pytest.mark.parametrize("name", TABLE_S2)
def test_the_papers_recipe_is_table_s2(name, any_data):
    chosen = resolve({"benchmark": name, "recipe": "paper"})
    for task, row in TABLE_S2[name].items():
        recipe = chosen.make_recipe(task)
        again = recipe.for_retraining()
        assert (recipe.epochs, recipe.lr, recipe.milestones, again.epochs, again.lr, again.milestones) == row
        assert (recipe.optimizer, recipe.momentum, recipe.batch_size, recipe.schedule) == ("sgd", 0.9, 128, "steps")
        assert (recipe.decay, recipe.augment, recipe.weight_decay) == (10, "none", 0)


def test_the_papers_recipe_for_eight_datasets_is_the_plateau_of_section_s2(any_data):
    recipe = resolve({"benchmark": "8-datasets", "recipe": "paper"}).make_recipe(4)
    again = recipe.for_retraining()
    assert (recipe.epochs, again.epochs, recipe.lr, again.lr, recipe.batch_size) == (150, 100, 0.01, 0.01, 64)
    assert (recipe.schedule, recipe.decay, recipe.patience, recipe.stop_lr) == ("plateau", 3, 5, 1e-4)


@pytest.mark.parametrize(
    ("name", "thresholds"),
    [
        ("p-mnist", {"hidden1": 0.999, "hidden2": 0.995}),
        ("split-cifar10", {"conv1": 0.995, "conv2": 0.95, "conv5": 0.95}),
        ("split-cifar100", {"conv1": 0.999, "conv3": 0.99}),
        ("8-datasets", {"conv1": 0.995, "conv2_x.1.conv2": 0.95, "conv3_x.0.shortcut.0": 0.93, "conv5_x.0.conv1": 0.91}),
    ],
)
def test_the_papers_recipe_has_the_thresholds_of_section_s2_2_and_the_published_choices(name, thresholds, any_data):
    method = resolve({"benchmark": name, "recipe": "paper"}).make_method()
    published = SPACE.paper()
    assert {layer: method.threshold("any", layer) for layer in thresholds} == thresholds
    for choice in ("activations", "selection", "freeze", "compensate", "samples", "projection"):
        assert getattr(method, choice) == getattr(published, choice)


def test_a_setting_of_the_user_wins_over_the_recipe_for_all_tasks(any_data):
    chosen = resolve({"benchmark": "p-mnist", "recipe": "paper", "train": {"retrain_epochs": 3, "lr": 0.5}})
    assert [chosen.make_recipe(task).retrain_epochs for task in (1, 9)] == [3, 3]
    assert chosen.make_recipe(9).retrain_milestones == (51,), "what was not set stays the paper's"
    later = resolve({"benchmark": "p-mnist", "later": [{"from": 2, "epochs": 7}]})
    assert [later.make_recipe(task).epochs for task in (1, 2, 3)] == [4, 7, 7]


def test_files_and_the_command_line_are_laid_upon_each_other(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('seed = 4\n[train]\nlr = 0.5\nepochs = 9\n[options]\nvariance = {hidden1 = 0.9, "*" = 0.8}\n')
    given = merge_settings(
        {"benchmark": "permuted-digits"}, read_toml(file), parse_assignments(["train.epochs=2", "order=[2, 1]"])
    )
    chosen = resolve(given)
    assert (chosen.seed, chosen.order, chosen.tasks) == (4, (2, 1), 2)
    assert (chosen.train["lr"], chosen.train["epochs"]) == (0.5, 2)
    assert chosen.make_method().threshold("t", "hidden2") == 0.8
    assert json.loads(json.dumps(chosen.to_json())) == chosen.to_json()
    assert resolve({key: value for key, value in chosen.to_json().items() if value is not None}) == chosen


def test_all_faults_are_told_at_once_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError) as failed:
        resolve(
            {
                "benchmark": "split-cifer10",
                "recipe": "papers",
                "seed": -1,
                "limit": 1.5,
                "tasks": 0,
                "order": "sideways",
                "modle": "x",
                "model": "nowhere:net",
                "device": "tpu",
                "train": {"epoch": 3, "lr": -1, "schedule": "stairs", "epochs": 2.5},
                "later": [{"lr": 1.0}],
                "options": {"varianz": 0.5, "variance": 3},
            }
        )
    text = str(failed.value)
    for part in (
        "for 14 reasons",
        "Did you mean split-cifar10?",
        "recipe = 'papers' must be one of fast, paper; did you mean paper?",
        "seed = -1 must be a whole number, at least 0",
        "limit = 1.5",
        "tasks = 0",
        "order = 'sideways'",
        "modle is no setting; did you mean model?",
        "model = 'nowhere:net': nowhere cannot be loaded: ModuleNotFoundError",
        "device = 'tpu'",
        "train.epoch is no setting; did you mean train.epochs?",
        "epochs=2.5 must be a whole number, at least 0; lr=-1 must be a number above 0; schedule='stairs' must be one of",
        "later[0] needs from = N",
        "options.varianz is no setting; did you mean options.variance?",
        "options: SPACE cannot be used like this: variance=3 must be a number above 0 and at most 1",
    ):
        assert part in text, part


def test_missing_data_is_among_the_faults(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)seed = -1.*CIFAR-10 is not in .*spacecl data fetch cifar10"):
        resolve({"benchmark": "split-cifar10", "seed": -1}, str(tmp_path))


def test_too_many_tasks_are_refused_where_there_are_no_more(any_data):
    with pytest.raises(ConfigError, match="tasks = 6, but there are 5"):
        resolve({"benchmark": "split-cifar10", "tasks": 6})


def test_own_models_come_from_modules_and_files_and_layer_names_of_presets_do_not_matter(tmp_path, any_data):
    file = tmp_path / "net.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 3)\n")
    chosen = resolve({"benchmark": "split-cifar10", "model": f"{file}:make"})
    assert isinstance(chosen.make_model((3, 32, 32), 2), torch.nn.Linear)
    assert chosen.options["variance"] == 0.79
    with pytest.raises(ConfigError, match=r"has no function other\(\)"):
        digits(model=f"{file}:other")
    with pytest.raises(ConfigError, match="is none of mlp, mlp-small, cnn, cnn-wide, resnet18, and not module:function"):
        digits(model="vgg")


def test_values_on_the_command_line_are_toml_or_words():
    found = parse_assignments(
        ["order=random", "train.milestones=[1, 2]", "options.variance={conv1 = 0.9, '*' = 0.8}", "seed=3"]
    )
    assert found == {
        "order": "random",
        "train": {"milestones": [1, 2]},
        "options": {"variance": {"conv1": 0.9, "*": 0.8}},
        "seed": 3,
    }
    with pytest.raises(ConfigError, match="--set lr is not of the form KEY=VALUE"):
        parse_assignments(["lr"])
    assert parse_assignments(["options.compensate=False", "a=TRUE"]) == {"options": {"compensate": False}, "a": True}
    with pytest.raises(ConfigError, match="train = 3 must be a table"):
        digits(train=3)
    with pytest.raises(ConfigError, match="train has been set to 3 already"):
        parse_assignments(["train=3", "train.lr=1"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"options": {"compensate": "no"}}, "compensate='no' must be True or False"),
        (
            {"options": {"samples": 2.5, "growth": "x"}},
            "samples=2.5 must be a whole number, at least 2; growth='x' must be a number",
        ),
        ({"seed": 10**20}, "below 2\\*\\*40"),
        ({"image_size": 64}, "image_size is for folders of pictures"),
        ({"later": [{"from": True, "lr": 1.0}]}, r"later\[0\] needs from = N"),
        ({"method": "finetune", "options": {"variance": 0.9}}, "options.variance is no setting; there are none"),
        ({"model": "nowhere.py:net"}, r"nowhere\.py does not exist"),
        ({"benchmark": "nowhere.py"}, r"the file nowhere\.py does not exist"),
    ],
)
def test_values_that_would_be_misread_or_ignored_are_refused(given, told):
    with pytest.raises(ConfigError, match=told):
        digits(**given)


def test_what_a_users_file_raises_is_told_with_its_line(tmp_path):
    file = tmp_path / "net.py"
    body = "import torch\ndef broken():\n    raise RuntimeError('no such weights')\ndef wrong():\n    return 3\n"
    file.write_text(f"{body}def leaves():\n    exit(3)\ndef needs(width):\n    return None\n")
    for name, told in (
        ("broken", r"RuntimeError: no such weights \(.*net\.py, line 3\)"),
        ("wrong", "returned a int, not a torch.nn.Module"),
        ("leaves", "SystemExit: 3"),
        ("needs", "TypeError: needs\\(\\) missing 1 required"),
    ):
        with pytest.raises(ConfigError, match=told):
            digits(model=f"{file}:{name}").make_model((64,), 10)
    file.write_text("def (:\n")
    with pytest.raises(ConfigError, match="cannot be loaded: SyntaxError"):
        digits(model=f"{file}:net")
    with pytest.raises(ConfigError, match="cannot be loaded: SyntaxError"):
        config_stream(str(file))


def config_stream(name):
    from spacecl.data.benchmarks.streams import load_stream

    return load_stream(name)


def test_files_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "bad.toml").write_text("lr = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        read_toml(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")


def test_the_command_shows_faults_as_text_with_exit_code_1(tmp_path):
    command = [sys.executable, "-m", "spacecl", "run"]
    for arguments, told in (
        (["permuted-digits", "--lr", "-1", "--seed", "-2"], "for 2 reasons"),
        ([], "Which benchmark?"),
        (["--resume"], "say which with --out DIR"),
        (["--resume", "--out", "nothing"], "holds no run to resume"),
    ):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_only_the_datasets_of_the_tasks_asked_for_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"for 2 reasons:\n.*CIFAR-10 is not in.*\n.*CIFAR-100 is not in"):
        resolve({"benchmark": "8-datasets", "tasks": 2}, str(tmp_path))
    with pytest.raises(ConfigError, match=r"for 1 reason:\n.*FaceScrub"):
        resolve({"benchmark": "8-datasets", "order": [3]}, str(tmp_path))
    with pytest.raises(ConfigError, match="must name tasks from 1 to 8, none twice"):
        resolve({"benchmark": "8-datasets", "order": [9]}, str(tmp_path))


def test_the_example_of_a_settings_file_in_the_docs_is_accepted(tmp_path, monkeypatch, any_data):
    text = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    (tmp_path / "my_net.py").write_text("def network():\n    return None\n")
    monkeypatch.chdir(tmp_path)
    chosen = resolve(read_toml("run.toml"))
    assert (chosen.tasks, chosen.make_recipe(3).lr, chosen.shared) == (3, 0.01, ("stem",))
    assert set(read_toml("run.toml")) == {entry.name for entry in dataclasses.fields(config.Config)}, "every setting is shown"


@pytest.mark.parametrize(
    "given",
    [
        {"benchmark": "permuted-digits"},
        {"benchmark": "permuted-digits", "method": "ewc", "options": {"strength": 3.5}, "seed": 4, "tasks": 2, "limit": 30},
        {"benchmark": "permuted-digits", "recipe": "paper", "options": {"variance": {"hidden1": 0.9, "*": 0.8}}},
        {"benchmark": "permuted-digits", "train": {"lr": 0.1, "milestones": [2, 3]}, "later": [{"from": 2, "lr": 0.2}]},
        {
            "benchmark": "permuted-digits",
            "recipe": "paper",
            "train": {"retrain_epochs": 7},
            "order": [2, 1],
            "eval_split": "valid",
        },
        {"benchmark": "permuted-digits", "model": "mlp", "shared": ["hidden2"], "head": "head", "device": "cpu"},
        {"benchmark": str(ROOT / "examples" / "own_tasks.py"), "model": f"{ROOT / 'examples' / 'own_tasks.py'}:network"},
    ],
)
def test_the_command_of_a_run_gives_its_settings(given):
    from spacecl.cli import main as cli
    from spacecl.cli.options import collect_settings

    made = resolve(given)
    command = to_command(config.Config.from_json(json.loads(json.dumps(made.to_json()))))
    assert command[:2] == ["spacecl", "run"]
    again = resolve(collect_settings(cli.build_parser().parse_args(command[1:])))
    assert again.to_json() == made.to_json()


def test_the_command_of_a_run_by_the_recipe_says_no_more_than_needed():
    made = resolve({"benchmark": "permuted-digits", "seed": 2})
    assert to_command(made) == ["spacecl", "run", "permuted-digits", "--recipe", "fast", "--seed", "2"]
