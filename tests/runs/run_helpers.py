"""What tests of runs share: settings of short runs, and results without what depends on time."""

import json

from spacecl.runs.resolve import merge_settings, resolve

QUICK = {"tasks": 2, "train": {"epochs": 3, "retrain_epochs": 2}, "device": "cpu"}  # those of the fixture digits_run
OWN = {"method": "finetune", "model": "mlp-small", "train": {"epochs": 1}, "device": "cpu"}  # for tasks in a file


def make_settings(**more):
    return resolve(merge_settings({"benchmark": "permuted-digits"}, QUICK, more))


def quiet(text):
    pass


def drop_times(value):
    """A result without its times, and without what was measured on the machine."""
    if isinstance(value, dict):
        return {key: drop_times(inner) for key, inner in value.items() if key not in ("seconds", "measured")}
    return [drop_times(inner) for inner in value] if isinstance(value, list) else value


def read_journal(folder):
    return [drop_times(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def interrupt(text):
    raise KeyboardInterrupt
