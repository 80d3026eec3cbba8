"""The costs of an inference: counted by hand, modelled by a formula, measured by a clock and a meter."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spacecl import HAT, SPACE, WSN, Learner, PackNet, Recipe, Task
from spacecl.runs.costs import count_costs, find_meter, measure_costs


class Small(nn.Module):
    """A convolution with a norm, a view, an operation in place, a pooling and a head."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu_(self.norm(self.conv(x)))
        return self.head(F.avg_pool2d(x, 4).flatten(1))


def test_operations_and_bytes_are_those_counted_by_hand():
    cost = count_costs(Small(), torch.zeros(1, 3, 4, 4))
    assert cost["parameters"] == 3 * 8 * 9 + 8 + 8 + 8 + 8 * 5 + 5
    assert cost["multiply_adds"] == 16 * 8 * 27 + 8 * 5
    weights = 3 * 8 * 9 + 8 + 4 * 8 + 8 * 5 + 5  # the norm reads its statistics, too
    assert cost["traffic"]["weights"] == 4 * weights
    image, maps = 3 * 16, 8 * 16
    moved = (image + maps) + (maps + maps) + (maps + maps) + (maps + 8) + (8 + 5)  # conv, norm, relu, pool, head
    assert cost["traffic"]["activations"] == 4 * moved


def test_peak_memory_is_what_is_alive_at_once():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    peak = count_costs(module, torch.zeros(1, 4))["peak_memory"]  # weights, the input, and both sides of the ReLU
    assert peak == {
        "1": 232 + 4 * (4 + 8 + 8),
        "64": 232 + 64 * 4 * (4 + 8 + 8),
    }
    in_place = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    assert count_costs(in_place, torch.zeros(1, 4))["peak_memory"]["1"] == 232 + 4 * (4 + 8 + 2)
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert count_costs(tied, torch.zeros(1, 8))["peak_memory"]["1"] == 4 * (64 + 3 * 8)


def test_counting_leaves_the_network_as_it_was():
    module = Small()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    count_costs(module, torch.randn(1, 3, 4, 4))
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_modelled_energy_is_horowitz_times_what_was_counted():
    cost = count_costs(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    for batch in (1, 64):
        picojoules = 4.6 * 48 + 162.5 * 232 / batch + 12.5 * 152
        assert cost["energy_modelled"][str(batch)] == pytest.approx(1e-12 * picojoules)


@pytest.mark.parametrize(("method", "saves"), [(SPACE(variance=0.8), True), (HAT(), True), (PackNet(), False), (WSN(), False)])
def test_a_narrowed_network_costs_less_and_a_masked_one_what_the_full_one_costs(method, saves):
    x = torch.randn(600, 12)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
    learner = Learner(model, method, example_input=x[:1])
    learner.learn(Task("sign", (x, (x[:, 0] > 0).long())), Recipe(epochs=2))
    own, full = (count_costs(module, x[:1]) for module in (learner.subnet("sign"), learner.dense(2)))
    keys = ("parameters", "multiply_adds", "traffic", "peak_memory", "energy_modelled")
    for mine, dense in zip(map(own.get, keys), map(full.get, keys)):
        if not saves:
            assert mine == dense
        elif isinstance(mine, dict):
            assert all(mine[key] < dense[key] for key in mine)
        else:
            assert mine < dense


def test_the_given_network_can_have_a_head_for_any_number_of_classes_and_draws_nothing_from_the_user():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    learner = Learner(model, example_input=torch.zeros(1, 4))
    state = torch.get_rng_state()
    assert learner.dense(7)(torch.zeros(1, 4)).shape == (1, 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert learner.full()(torch.zeros(1, 4)).shape == (1, 2)


def test_a_network_that_has_grown_is_compared_with_the_original_one():
    x = torch.randn(600, 12)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))
    learner = Learner(model, SPACE(variance=1.0, on_full="grow", growth=2), example_input=x[:1])
    for number in range(2):
        learner.learn(Task(str(number), (x, (x[:, number] > 0).long())), Recipe(epochs=1))
    assert learner.records["1"].grown
    assert learner.full()[0].out_features == 32
    assert learner.dense(2)[0].out_features == 16
    assert learner.size == pytest.approx(learner.records["1"].used["0"] / 16), "of the channels that were there at first"
    assert learner.size > 1


class Reader(nn.Module):
    """Some layer that reads a sequence, and a head."""

    def __init__(self, layer, read):
        super().__init__()
        self.layer, self.read, self.head = layer, read, nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.read(self.layer, x).mean(1))


def test_fused_layers_are_counted_as_what_they_consist_of():
    """Ten steps of 16 numbers: attention with four heads, an encoder with 32 hidden units, an LSTM."""
    x, head = torch.zeros(1, 10, 16), 16 * 2
    attention = 4 * 10 * 16 * 16 + 2 * 10 * 10 * 16
    for layer, read, count in (
        (nn.MultiheadAttention(16, 4, batch_first=True), lambda m, x: m(x, x, x, need_weights=False)[0], attention),
        (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), lambda m, x: m(x), attention + 2 * 10 * 16 * 32),
        (nn.LSTM(16, 16, batch_first=True), lambda m, x: m(x)[0], 10 * 4 * (16 * 16 + 16 * 16)),
    ):
        assert count_costs(Reader(layer, read), x)["multiply_adds"] == count + head


def test_only_the_rows_of_an_embedding_that_are_read_are_counted():
    module = Reader(nn.Embedding(1000, 16), lambda m, x: m(x))
    traffic = count_costs(module, torch.zeros(1, 4, dtype=torch.int64))["traffic"]
    assert traffic["weights"] == 4 * (4 * 16 + 16 * 2 + 2)


def test_measured_energy_is_divided_by_the_number_of_inferences(monkeypatch):
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            Counting.calls += 1
            return super().forward(x)

    class Window:
        """A meter by which every inference takes three joules."""

        def begin_window(self, key):
            self.start = Counting.calls

        def end_window(self, key):
            joules = 3.0 * (Counting.calls - self.start)
            return SimpleNamespace(gpu_energy={}, cpu_energy={0: joules - 1.0}, dram_energy={0: 1.0})

    pytest.importorskip("zeus", reason="Zeus is not installed")
    monkeypatch.setattr("zeus.device.get_cpus", lambda: SimpleNamespace(cpus=[0]))
    monkeypatch.setattr("zeus.monitor.ZeusMonitor", lambda **options: Window())
    monkeypatch.setattr("spacecl.runs.costs.METER_SECONDS", 0.01)
    costs = measure_costs(Counting(8, 8), torch.zeros(1, 8), seconds=0.01)
    assert costs["energy"] == pytest.approx({"1": 3.0, "64": 3.0 / 64})


def test_latency_is_of_many_warm_runs_and_energy_unknown_without_a_meter(monkeypatch):
    monkeypatch.setattr("spacecl.runs.costs.find_meter", lambda device: None)
    costs = measure_costs(Small(), torch.zeros(1, 3, 4, 4), seconds=0.05)
    for times in costs["latency"].values():
        assert 0 < times["low"] <= times["median"] <= times["high"] < 0.1
        assert times["runs"] >= 30
    assert costs["energy"] is None
    assert costs["meter"] is None
    assert costs["threads"] == torch.get_num_threads()


def test_a_larger_network_takes_longer(monkeypatch):
    monkeypatch.setattr("spacecl.runs.costs.find_meter", lambda device: None)
    small, large = (measure_costs(nn.Linear(width, width), torch.zeros(1, width), seconds=0.05) for width in (8, 2048))
    assert large["latency"]["64"]["median"] > 3 * small["latency"]["64"]["median"]


METERED = """
import pathlib, sys, threading, time
import torch
from torch import nn

def draw_five_watts(counter):
    other, start = counter.with_name("next"), time.perf_counter()
    while True:
        other.write_text(str(round(5e6 * (time.perf_counter() - start))))
        other.replace(counter)
        time.sleep(0.002)

if __name__ == "__main__":  # Zeus starts a process of its own, which reads this file again
    import zeus.device.cpu.rapl as rapl
    from spacecl.runs.costs import find_meter, measure_costs

    package = pathlib.Path(sys.argv[1]) / "intel-rapl" / "intel-rapl:0"
    package.mkdir(parents=True)
    rapl.RAPL_DIR = str(package.parent)
    for name, text in {"name": "package-0", "energy_uj": "0", "max_energy_range_uj": "262143328850"}.items():
        (package / name).write_text(text)
    threading.Thread(target=draw_five_watts, args=[package / "energy_uj"], daemon=True).start()
    module, x = nn.Linear(256, 256), torch.zeros(64, 256)
    meter = find_meter(torch.device("cpu"))
    meter.measure(module, x, 10)
    start = time.perf_counter()
    joules = meter.measure(module, x, 4000)
    watts = joules / (time.perf_counter() - start)
    assert 4 < watts < 6, watts
    costs = measure_costs(module, x[:1], seconds=0.05)
    assert "RAPL" in costs["meter"], costs
    assert all(energy > 0 for energy in costs["energy"].values()), costs
"""


@pytest.mark.slow
def test_energy_is_read_from_the_meter_that_zeus_finds(tmp_path):
    """Zeus itself reads a counter in the form that Linux gives it; the counter is ours and runs at five watts."""
    pytest.importorskip("zeus", reason="Zeus is not installed")
    (tmp_path / "metered.py").write_text(METERED)
    done = subprocess.run(
        [sys.executable, "metered.py", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_machine_without_a_meter_or_without_zeus_has_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus.device", None)
    assert find_meter(torch.device("cpu")) is None
