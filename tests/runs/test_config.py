"""Settings of a run: presets, TOML files, the command line, and all problems reported at once."""

import dataclasses
import json
import re
import warnings

import pytest
import torch
from helpers import ROOT, run_spacecl

from spacecl import SPACE, ConfigError, Recipe, StoreError
from spacecl.cli.main import build_parser, main
from spacecl.cli.options import FLAGS, collect_settings, describe_settings
from spacecl.data import sources
from spacecl.data.benchmarks.streams import load_stream
from spacecl.methods import METHODS
from spacecl.options import describe_options
from spacecl.runs import config
from spacecl.runs.config import Config, find_differences
from spacecl.runs.methods import METHOD_ORDER, get_methods
from spacecl.runs.resolve import merge_settings, parse_assignments, read_toml, resolve, to_command
from spacecl.runs.run_folder import is_run
from spacecl.seeds import use_seed

DIGITS = "permuted-digits"  # the benchmark that needs no download


def resolve_digits(**settings):
    return resolve({"benchmark": DIGITS, **settings})


@pytest.fixture
def any_data(monkeypatch):
    """As if all datasets were available."""
    monkeypatch.setattr(sources, "find_missing", lambda names, data: [])


# -- presets -----------------------------------------------------------------------------------------------------------

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
def test_the_recipe_paper_is_table_s2(name, any_data):
    paper = resolve({"benchmark": name, "recipe": "paper"})
    for task, row in TABLE_S2[name].items():
        recipe = paper.make_recipe(task, 1000, 100)
        again = recipe.for_retraining()
        assert (recipe.epochs, recipe.lr, recipe.milestones, again.epochs, again.lr, again.milestones) == row
        assert (recipe.optimizer, recipe.momentum, recipe.batch_size, recipe.schedule) == ("sgd", 0.9, 128, "steps")
        assert (recipe.decay, recipe.augment, recipe.weight_decay) == (10, "none", 0)


def test_the_recipe_paper_for_eight_datasets_is_the_plateau_of_section_s2(any_data):
    recipe = resolve({"benchmark": "8-datasets", "recipe": "paper"}).make_recipe(4, 1000, 100)
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
def test_the_recipe_paper_has_the_thresholds_of_section_s2_2_and_the_published_choices(name, thresholds, any_data):
    method = resolve({"benchmark": name, "recipe": "paper"}).make_method()
    published = SPACE.paper()
    assert {layer: method.threshold("any", layer) for layer in thresholds} == thresholds
    for choice in ("activations", "selection", "freeze", "compensate", "samples", "projection"):
        assert getattr(method, choice) == getattr(published, choice)


def test_a_users_training_value_overrides_the_recipe_for_all_tasks(any_data):
    paper = resolve({"benchmark": "p-mnist", "recipe": "paper", "train": {"retrain_epochs": 3, "lr": 0.5}})
    assert [paper.make_recipe(task, 1000, 100).retrain_epochs for task in (1, 9)] == [3, 3]
    assert paper.make_recipe(9, 1000, 100).retrain_milestones == (51,), "what was not set is the paper's"
    later = resolve({"benchmark": "p-mnist", "later": [{"from": 2, "epochs": 7}]})
    assert [later.make_recipe(task, 1000, 100).epochs for task in (1, 2, 3)] == [5, 7, 7]


# -- sources -----------------------------------------------------------------------------------------------------------


def test_flags_override_files(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('seed = 4\n[train]\nlr = 0.5\nepochs = 9\n[options]\nvariance = {hidden1 = 0.9, "*" = 0.8}\n')
    flags = parse_assignments(["train.epochs=2", "order=[2, 1]"])
    settings = resolve(merge_settings({"benchmark": DIGITS}, read_toml(file), flags))
    assert (settings.seed, settings.order, settings.tasks) == (4, (2, 1), 2)
    assert (settings.train["lr"], settings.train["epochs"]) == (0.5, 2)
    assert settings.make_method().threshold("t", "hidden2") == 0.8
    assert json.loads(json.dumps(settings.to_json())) == settings.to_json()
    assert resolve({key: value for key, value in settings.to_json().items() if value is not None}) == settings


def test_values_on_the_command_line_are_toml_or_words():
    texts = ["order=random", "train.milestones=[1, 2]", "options.variance={conv1 = 0.9, '*' = 0.8}", "seed=3"]
    assert parse_assignments(texts) == {
        "order": "random",
        "train": {"milestones": [1, 2]},
        "options": {"variance": {"conv1": 0.9, "*": 0.8}},
        "seed": 3,
    }
    assert parse_assignments(["options.compensate=False", "a=TRUE"]) == {"options": {"compensate": False}, "a": True}
    with pytest.raises(ConfigError, match="--set lr is not of the form KEY=VALUE"):
        parse_assignments(["lr"])
    with pytest.raises(ConfigError, match="train is already set to 3, which is not a table"):
        parse_assignments(["train=3", "train.lr=1"])
    with pytest.raises(ConfigError, match="train=3 must be a table"):
        resolve_digits(train=3)


def test_files_that_cannot_be_read_are_reported(tmp_path):
    (tmp_path / "bad.toml").write_text("lr = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        read_toml(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")


def test_the_settings_file_in_the_docs_is_valid_and_shows_every_setting(tmp_path, monkeypatch, any_data):
    text = (ROOT / "docs" / "runs.md").read_text()
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    (tmp_path / "my_net.py").write_text("def network():\n    return None\n")
    monkeypatch.chdir(tmp_path)
    settings = resolve(read_toml("run.toml"))
    assert (settings.tasks, settings.make_recipe(3, 1000, 100).lr, settings.shared) == (3, 0.01, ("stem",))
    assert set(read_toml("run.toml")) == {entry.name for entry in dataclasses.fields(Config)}


def test_the_command_of_a_run_gives_its_settings():
    example = str(ROOT / "examples" / "own_tasks.py")
    for more in (
        {},
        {"method": "ewc", "options": {"strength": 3.5}, "seed": 4, "tasks": 2, "limit": 30},
        {"recipe": "paper", "options": {"variance": {"hidden1": 0.9, "*": 0.8}}},
        {"train": {"lr": 0.1, "milestones": [2, 3]}, "later": [{"from": 2, "lr": 0.2}]},
        {"recipe": "paper", "train": {"retrain_epochs": 7}, "order": [2, 1], "eval_split": "valid"},
        {"model": "mlp", "shared": ["hidden2"], "head": "head", "device": "cpu"},
        {"benchmark": example, "model": f"{example}:network"},
        {"benchmark": example, "model": f"{example}:network", "train": {"lr": 0.1}, "later": [{"from": 2, "epochs": 3}]},
        {"recipe": "auto", "train": {"epochs": 3}},
        {"recipe": "best"},
    ):
        settings = resolve_digits(**more)
        command = to_command(Config.from_json(json.loads(json.dumps(settings.to_json()))))
        assert command[:2] == ["spacecl", "run"]
        again = resolve(collect_settings(build_parser().parse_args(command[1:])))
        assert again.to_json() == settings.to_json()


def test_the_command_of_a_run_by_the_recipe_is_short():
    assert to_command(resolve_digits(seed=2)) == ["spacecl", "run", DIGITS, "--recipe", "fast", "--seed", "2"]


# -- problems ----------------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once_with_what_to_do():
    with pytest.raises(ConfigError) as failure:
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
                "shared": "stem",
                "train": {"epoch": 3, "lr": "fast", "epochs": 2.5},
                "later": [{"lr": 1.0}, {"from": 2, "epochs": "x"}],
                "options": {"varianz": 0.5, "growth": "x"},
            }
        )
    text = str(failure.value)
    for part in (
        "for 17 reasons",
        "benchmark='split-cifer10' is neither a benchmark nor a folder or Python file of tasks (did you mean split-cifar10?)",
        "recipe='papers' must be one of auto, fast, best, paper (did you mean paper?)",
        "seed=-1 must be a whole number, at least 0",
        "limit=1.5 must be a whole number, at least 2",
        "tasks=0 must be a whole number, at least 1",
        "order='sideways' must be given, random or a list of task numbers, from 1",
        "modle is not a setting (did you mean model?)",
        "model='nowhere:net': nowhere cannot be loaded: ModuleNotFoundError: No module named 'nowhere'.",
        "device='tpu' must be one of auto, cpu, cuda, mps",
        "shared='stem' must be a list of names of layers",
        "train.epoch is not a setting (did you mean train.epochs?)",
        "train.epochs=2.5 must be a whole number",
        "train.lr='fast' must be a number",
        "later[0] needs from = N",
        "later[1].epochs='x' must be a whole number",
        "options.varianz is not a setting (did you mean options.variance?)",
        "options.growth='x' must be a number",
    ):
        assert part in text, part


def test_missing_data_is_among_the_problems(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)seed=-1.*CIFAR-10 is not in .*spacecl data fetch cifar10"):
        resolve({"benchmark": "split-cifar10", "seed": -1}, str(tmp_path))


def test_only_the_datasets_of_the_chosen_tasks_must_be_available(tmp_path):
    with pytest.raises(ConfigError, match=r"for 2 reasons:\n.*CIFAR-10 is not in.*\n.*CIFAR-100 is not in"):
        resolve({"benchmark": "8-datasets", "tasks": 2}, str(tmp_path))
    with pytest.raises(ConfigError, match=r"for 1 reason:\n.*FaceScrub"):
        resolve({"benchmark": "8-datasets", "order": [3]}, str(tmp_path))
    with pytest.raises(ConfigError, match="must name tasks from 1 to 8, none twice"):
        resolve({"benchmark": "8-datasets", "order": [9]}, str(tmp_path))


def test_more_tasks_than_there_are_are_refused(any_data):
    with pytest.raises(ConfigError, match="tasks = 6, but there are 5"):
        resolve({"benchmark": "split-cifar10", "tasks": 6})


def test_values_that_would_be_misread_or_ignored_are_refused():
    for settings, message in (
        ({"options": {"compensate": "no"}}, "options.compensate='no' must be True or False"),
        ({"options": {"samples": 2.5, "growth": "x"}}, "options.samples=2.5 must be a whole number"),
        ({"seed": 10**20}, "is too large: whole numbers have at most 64 bits"),
        ({"seed": 2**41}, "below 1,099,511,627,776"),
        ({"seed": True}, "seed=True must be a whole number"),
        ({"image_size": 64}, "image_size is for folders of pictures"),
        ({"later": [{"from": True, "lr": 1.0}]}, "later[0] needs from = N"),
        ({"later": 3}, "later=3 must be a list of tables"),
        ({"method": "finetune", "options": {"variance": 0.9}}, "options.variance is not a setting; there are none"),
        (
            {"model": "vgg"},
            "model='vgg' must be one of mlp, mlp-small, cnn, cnn-wide, cnn-valid, ",
        ),
        ({"model": "nowhere.py:net"}, "nowhere.py does not exist"),
        ({"benchmark": "nowhere.py"}, "the file nowhere.py does not exist"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            resolve_digits(**settings)


def test_a_wrong_value_gets_one_readable_message_wherever_it_comes_from(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("[train]\nlr = 'high'\n")
    values = resolve_digits().to_json()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "config.json").write_text(json.dumps(values | {"train": values["train"] | {"lr": "high"}}))
    for arguments in ([DIGITS, "--set", "train.lr=high"], [DIGITS, "--config", "run.toml"], ["--resume", "--out", "runs"]):
        assert main(["run", *arguments]) == 1
        captured = capsys.readouterr()
        assert "train.lr='high' must be a number" in captured.err
        assert captured.err.count("\n") <= 2
        assert captured.out == ""
    with pytest.raises(SystemExit) as failure:
        main(["run", DIGITS, "--lr", "high"])
    assert failure.value.code == 2
    assert "argument --lr: 'high' must be a number" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml", "runs"], "nothing was written"


def test_the_command_prints_problems_with_exit_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = run_spacecl("run", DIGITS, "--lr", "-1", "--seed", "-2", cwd=tmp_path)
    assert (process.returncode, process.stderr.count("  - "), "Traceback" in process.stderr) == (1, 2, False)
    for arguments, message in (
        ([], "Name a benchmark: one of p-mnist"),
        (["--resume"], "--resume needs the folder of the run: add --out DIR"),
        (["--resume", "--out", "nothing"], "holds no run to resume"),
    ):
        assert main(["run", *arguments]) == 1
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_config_json_is_read_strictly(tmp_path):
    values = resolve_digits().to_json()
    file = tmp_path / "config.json"
    for change, error, message in (
        ({"seed": "0"}, ConfigError, "seed='0' must be a whole number"),
        ({"tasks": 2.0}, ConfigError, "tasks=2.0 must be a whole number"),
        ({"method": "spaces"}, ConfigError, "must be one of .* \\(did you mean space\\?\\)"),
        ({"train": {"lr": "x"}, "seed": -1}, ConfigError, "seed=-1 must be .*; train.lr='x' must be"),
        ({"later": [{"lr": 1}]}, ConfigError, "later\\[0\\] needs from"),
        ({"more": 1}, StoreError, "is damaged: more is not a setting"),
    ):
        file.write_text(json.dumps(values | change))
        with pytest.raises(error, match=f"config.json .*{message}"):
            Config.from_file(file)
        assert is_run(file) == (error is ConfigError)
    file.write_text(json.dumps({"model_type": "bert"}))
    assert not is_run(file), "somebody else's config.json"


# -- deprecated names ----------------------------------------------------------------------------------------------------


def test_runs_of_earlier_versions_are_read_without_a_warning_and_count_as_the_same():
    settings = resolve_digits(eval_split="valid").to_json()
    old = {**{key: value for key, value in settings.items() if key != "eval_split"}, "judge": "valid"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_differences(Config.from_json(old).to_json(), settings) == []


def test_deprecated_names_that_a_user_writes_are_understood_with_a_warning(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("judge = 'valid'\n")
    for arguments in (["--set", "judge=valid"], ["--config", str(tmp_path / "run.toml")]):
        settings = collect_settings(build_parser().parse_args(["run", DIGITS, *arguments]))
        assert resolve(settings).eval_split == "valid"
        assert capsys.readouterr().err == "spacecl: warning: The setting judge is deprecated; use eval_split.\n"
    with pytest.warns(DeprecationWarning, match="use eval_split"):
        assert merge_settings({"eval_split": "test"}, {"judge": "valid"}) == {"eval_split": "valid"}
    with pytest.warns(DeprecationWarning, match="use eval_split"):
        assert Config(DIGITS, judge="valid").eval_split == "valid"


def test_deprecated_names_of_method_options_are_understood(capsys):
    assert Config.from_json({"benchmark": DIGITS, "options": {"offer": 0.5}}).options["trainable_fraction"] == 0.5
    settings = collect_settings(build_parser().parse_args(["run", DIGITS, "--set", "options.offer=0.5"]))
    assert settings["options"] == {"trainable_fraction": 0.5}
    assert "The setting options.offer is deprecated; use options.trainable_fraction." in capsys.readouterr().err


# -- users' own code -------------------------------------------------------------------------------------------------------


def test_models_come_from_modules_and_files_without_the_layer_names_of_presets(tmp_path, any_data, monkeypatch):
    file = tmp_path / "net.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 3)\n")
    settings = resolve({"benchmark": "split-cifar10", "model": f"{file}:make", "recipe": "paper"})
    assert isinstance(settings.make_model(torch.zeros(1, 3, 32, 32), 2), torch.nn.Linear)
    assert settings.options["variance"] == 0.95
    (tmp_path / "net_module_of_test_config.py").write_text(file.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(resolve_digits(model="net_module_of_test_config:make").make_model(torch.zeros(1, 4), 3), torch.nn.Linear)
    with pytest.raises(ConfigError, match=r"has no function other\(\)"):
        resolve_digits(model=f"{file}:other")


def test_what_a_users_file_raises_is_reported_with_its_line(tmp_path):
    file = tmp_path / "net.py"
    body = "import torch\ndef broken():\n    raise RuntimeError('no such weights')\ndef wrong():\n    return 3\n"
    file.write_text(f"{body}def leaves():\n    exit(3)\ndef needs(width):\n    return None\n")
    for name, message in (
        ("broken", r"RuntimeError: no such weights \(.*net\.py, line 3\)$"),
        ("wrong", "returned a int, not a torch.nn.Module"),
        ("leaves", "SystemExit: 3"),
        ("needs", "TypeError: needs\\(\\) missing 1 required"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_digits(model=f"{file}:{name}").make_model(torch.zeros(1, 64), 10)
    file.write_text("def (:\n")
    with pytest.raises(ConfigError, match=r"net\.py cannot be loaded: SyntaxError: invalid syntax \(net\.py, line 1\)\.$"):
        resolve_digits(model=f"{file}:net")
    with pytest.raises(ConfigError, match=r"net\.py cannot be loaded: SyntaxError: invalid syntax \(net\.py, line 1\)$"):
        load_stream(str(file))


def test_a_users_file_is_executed_once_per_process_and_again_when_it_changes(tmp_path, monkeypatch):
    """One file gives tasks and network; resolving, loading the tasks and building the network all name it."""
    file, log = tmp_path / "both.py", tmp_path / "log"
    text = f"""
import torch, spacecl
with open({str(log)!r}, "a") as stream:
    stream.write("x")
x = torch.randn(40, 4)
def tasks():
    return [spacecl.Task("signs", (x, (x[:, 0] > 0).long()), test=(x, (x[:, 0] > 0).long()))]
def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    for name in (str(file), "both.py"):  # by two paths
        settings = resolve({"benchmark": name, "model": f"{name}:network", "seed": 5})
        with use_seed(settings.seed):
            assert load_stream(settings.benchmark)[0].name == "signs"
            assert len(settings.make_model(torch.zeros(1, 4), 2)) == 3
    assert log.read_text() == "x"
    first = load_stream(str(file))[0].train[0]
    torch.manual_seed(7)
    second = load_stream(str(file))[0].train[0]
    assert not torch.equal(first, second), "random numbers of a file follow the seed, not what ran before"
    executed = len(log.read_text())
    file.write_text(text.replace('"x"', '"yy"'))
    load_stream(str(file))
    assert len(log.read_text()) == executed + 2


# -- declarations ----------------------------------------------------------------------------------------------------------


def test_settings_name_every_method():
    assert set(METHOD_ORDER) == set(get_methods())


def test_run_help_lists_every_setting_and_every_flag_sets_its_setting(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    flags = [name for names in FLAGS.values() for name in names]
    for name in flags:
        key = name.rpartition(".")[2].replace("_", "-")
        assert f"--{key} " in shown
    listed = describe_settings()
    assert listed in shown
    for kind in (config.Recipe, *METHODS.values()):
        for entry in describe_options(kind):
            assert re.search(rf"^ +{entry.name}\b", listed, re.MULTILINE), entry.name
    rest = {entry.name for entry in describe_options(Config)} - set(flags) - {"benchmark", "train", "options"}
    assert all(re.search(rf"^  {name}\b", listed, re.MULTILINE) for name in rest)
    arguments = ["--method", "space", "--model", "mlp", "--tasks", "2", "--limit", "20", "--order", "2,1", "--seed", "3"]
    arguments += ["--recipe", "paper", "--epochs", "4", "--retrain-epochs", "5", "--batch-size", "6", "--lr", "0.5"]
    settings = collect_settings(build_parser().parse_args(["run", DIGITS, *arguments, "--variance", "0.7", "--device", "cpu"]))
    assert settings == {
        **{"benchmark": DIGITS, "method": "space", "model": "mlp", "tasks": 2, "limit": 20, "order": [2, 1], "seed": 3},
        **{"recipe": "paper", "device": "cpu", "options": {"variance": 0.7}},
        "train": {"epochs": 4, "retrain_epochs": 5, "batch_size": 6, "lr": 0.5},
    }


# -- training that fits the data ---------------------------------------------------------------------------------------


def test_own_data_are_trained_by_their_amount_and_benchmarks_fast(tmp_path, any_data):
    example = str(ROOT / "examples" / "own_tasks.py")
    for benchmark, recipe in ((example, "auto"), (str(tmp_path), "auto"), (DIGITS, "fast"), ("p-mnist", "fast")):
        assert resolve({"benchmark": benchmark}).recipe == recipe
    for name in ("auto", "fast", "best"):
        assert resolve({"benchmark": str(tmp_path), "recipe": name}) == resolve({"benchmark": str(tmp_path)})
    assert resolve({"benchmark": str(tmp_path), "recipe": "paper"}).make_recipe(1, 100, 10).optimizer == "sgd"


def test_the_recipe_auto_holds_only_what_the_user_sets_and_chooses_the_rest_for_each_task(tmp_path):
    config = resolve({"benchmark": str(tmp_path), "train": {"lr": 0.5}, "later": [{"from": 2, "batch_size": 8}]})
    assert config.train == {"lr": 0.5}
    chosen = [config.make_recipe(number, examples, 10) for number, examples in ((1, 100), (1, 9000), (2, 100))]
    assert chosen == [Recipe.auto(100, 10, lr=0.5), Recipe.auto(9000, 10, lr=0.5), Recipe.auto(100, 10, lr=0.5, batch_size=8)]
    suggested = {"batch_size": 5, "lr": 0.1}  # by the form of the data
    assert config.make_recipe(1, 100, 10, suggested=suggested) == Recipe.auto(100, 10, lr=0.5, batch_size=5)
    alone = resolve({"benchmark": str(tmp_path), "method": "stl"}).make_recipe(1, 100, 10)
    both = Recipe.auto(100, 10)
    assert alone.epochs == both.epochs + both.retrain_epochs, "without retraining, training has its epochs"


def test_the_recipe_best_trains_longer_than_fast_and_is_fast_where_there_is_no_preset(any_data):
    for name in ("p-mnist", "split-cifar10", "split-cifar100"):
        best, fast = (resolve({"benchmark": name, "recipe": recipe}).make_recipe(9, 1000, 100) for recipe in ("best", "fast"))
        assert best.epochs + best.retrain_epochs >= 2 * (fast.epochs + fast.retrain_epochs)
    best, fast = (resolve({"benchmark": "8-datasets", "recipe": recipe}) for recipe in ("best", "fast"))
    assert best.make_recipe(1, 1000, 100) == fast.make_recipe(1, 1000, 100)


def test_settings_of_own_data_by_the_former_recipe_fast_keep_their_values(tmp_path):
    """Version 0.1 wrote every training value, and clip was not one of them."""
    own = resolve({"benchmark": str(tmp_path)}).to_json()
    former = dataclasses.asdict(Recipe(optimizer="sgd", lr=0.05, epochs=10, retrain_epochs=14))
    del former["clip"]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(own | {"recipe": "fast", "train": former}))
    config = Config.from_file(file)
    assert config.make_recipe(1, 100, 10) == Recipe(**former)
    resumed = resolve({key: value for key, value in config.to_json().items() if value is not None})
    assert resumed.to_json() == config.to_json()
