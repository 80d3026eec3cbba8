"""The server with a client that others wrote, under load, and against thousands of malformed requests."""

import asyncio
import json
import subprocess
import sys
import threading

import load
import models
import numpy as np
import pytest
import torch
import tritonclient.http as triton
from faults import clients, malformed, requests
from models import VECTOR, chain, tasks
from servers import QUICK, fetch, join, make_body, make_client, make_input, run_in_thread, run_threads, wait_until
from tritonclient.utils import InferenceServerException

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.runs.open_run import open_run

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")


def to_text(array):
    return [name.decode() if isinstance(name, bytes) else name for name in array]


def test_tritonclient_reads_the_metadata_of_the_server_and_its_models(server, digits_learner):
    client = make_client(server)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits-1")
    assert not client.is_model_ready("cats")
    assert client.get_server_metadata()["name"] == "spacecl"
    assert [model["name"] for model in client.get_model_repository_index()] == ["digits-1", "digits-2", "any-task"]
    metadata = client.get_model_metadata("digits-2")
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 64]}]
    assert {"name": "logits", "datatype": "FP32", "shape": [-1, 10]} in metadata["outputs"]
    assert metadata["parameters"]["digest"] == digits_learner.records["digits-2"].digest
    listing = json.loads(fetch(server, "/v2/models")[2])["models"]
    assert [model["name"] for model in listing] == ["digits-1", "digits-2", "any-task"]
    assert client.get_model_metadata("digits-2", "1") == metadata


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_gets_the_learners_logits(server, digits_learner, binary, compression):
    x = torch.randn(7, 64)
    expected = digits_learner.logits(x, "digits-2")
    options = {"request_compression_algorithm": compression, "response_compression_algorithm": compression}
    response = make_client(server).infer("digits-2", make_input(x, binary), **options)
    assert np.abs(response.as_numpy("logits") - expected.numpy()).max() < 1e-5
    assert response.as_numpy("label").tolist() == expected.argmax(1).tolist()
    options |= {"outputs": [triton.InferRequestedOutput("label", binary_data=binary)], "request_id": "7", "model_version": "1"}
    response = make_client(server).infer("digits-2", make_input(x, binary), **options)
    assert response.get_response()["id"] == "7"
    assert [entry["name"] for entry in response.get_response()["outputs"]] == ["label"]
    assert response.as_numpy("label").tolist() == expected.argmax(1).tolist()


# -- task inference -----------------------------------------------------------------------------------------------------


def test_the_model_any_task_infers_the_task_and_gives_its_confidence(server, digits_learner, digits_run):
    test = open_run(digits_run).tasks(None)["digits-2"].test
    x = test.finish(test.batch(np.arange(20))[0])
    prediction = digits_learner.predict(x, "infer")
    for binary in (True, False):
        response = make_client(server).infer("any-task", make_input(x, binary))
        assert [entry["name"] for entry in response.get_response()["outputs"]] == ["task", "label", "confidence"]
        names = to_text(response.as_numpy("task"))
        assert names == list(prediction.tasks)
        assert names.count("digits-2") >= 18
        assert response.as_numpy("label").tolist() == prediction.labels.tolist()
        assert np.allclose(response.as_numpy("confidence"), prediction.confidence.numpy(), atol=1e-4)


def test_clients_may_still_use_the_names_infer_and_sure(server, digits_learner):
    x, client = torch.randn(3, 64), make_client(server)
    assert client.is_model_ready("infer")
    assert client.get_model_metadata("infer")["name"] == "infer"
    response = client.infer("infer", make_input(x))
    assert response.get_response()["model_name"] == "infer"
    assert to_text(response.as_numpy("task")) == [name or "" for name in digits_learner.predict(x, "infer").tasks]
    assert response.as_numpy("sure").tolist() == response.as_numpy("confidence").tolist()
    response = client.infer("infer", make_input(x), outputs=[triton.InferRequestedOutput("sure")])
    assert [entry["name"] for entry in response.get_response()["outputs"]] == ["sure"]


def test_models_are_found_by_any_name_and_a_task_called_any_task_is_that_task():
    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    names = ["a", "a/ready", "a/versions/1", "a b/ä?#%", "infer/infer", "any-task"]
    for name, data in zip(names, tasks(VECTOR, len(names))):
        learner.learn(Task(name, data), Recipe(epochs=1, batch_size=32))
    x = torch.randn(2, 6)
    with run_in_thread(learner) as (port, service):
        client = make_client(port)
        for name in names:
            assert client.get_model_metadata(name)["name"] == name
            assert client.is_model_ready(name)
            assert client.infer(name, make_input(x)).as_numpy("label").tolist() == learner.predict(x, name).tolist()
        assert client.get_model_metadata("a", "1")["name"] == "a/versions/1", "a name goes before a version"
        assert fetch(port, "/v2/models/a%20b/%C3%A4%3F%23%25/versions/2")[0] == 404
        assert fetch(port, "/v2/models/a", b"{}")[0] == 404
        assert service.models == [*names, "infer"]
        response = client.infer("infer", make_input(x))
        assert response.as_numpy("label").tolist() == learner.predict(x, "infer").labels.tolist()


# -- refusals -----------------------------------------------------------------------------------------------------------


def test_wrong_requests_of_tritonclient_are_refused_with_a_reason(server):
    x = torch.randn(3, 64)
    for model, inputs, reason in (
        ("cats", make_input(x), r"\[404\] There is no model 'cats'. The models are: digits-1, digits-2, any-task."),
        ("digits-1", make_input(x[:, :63].clone()), r'\[400\] "shape" is \[3, 63\]; this model reads \[-1, 64\]'),
        ("digits-1", make_input(x / 0), r"\[400\] Model 'digits-1': the input in row 0 holds NaN or infinite values"),
        ("digits-1", make_input(torch.randn(1025, 64)), r"\[413\] 1025 rows are too many"),
    ):
        with pytest.raises(InferenceServerException, match=reason):
            make_client(server).infer(model, inputs)


def test_a_thousand_malformed_requests_are_refused_and_the_server_goes_on(server, digits_learner):
    results = asyncio.run(malformed.send_all(server, list(malformed.make_malformed_requests(1000, "digits-1", [64]))))
    assert len({what for what, _, _ in results}) >= 60
    endless = {"an endless head", "an endless address"}  # may be closed while they are still being sent
    unexpected = [(what, status, text[:200]) for what, status, text in results if not 400 <= status < 500]
    assert [case for case in unexpected if case[1] or case[0] not in endless] == []
    reasons = [json.loads(text)["error"] for _, _, text in results if text.startswith("{")]
    assert len(reasons) > 800
    assert all(len(text) > 10 for text in reasons)
    x = torch.randn(2, 64)
    labels = make_client(server).infer("digits-1", make_input(x)).as_numpy("label")
    assert labels.tolist() == digits_learner.predict(x, "digits-1").tolist()


def test_hostile_clients_get_no_5xx_and_do_not_disturb_valid_requests(server_process, digits_run):
    """A small dose of `python -m bench.faults --only requests`: every kind at least once."""
    outcome = requests.attack(server_process, digits_run, 100, 0)
    assert outcome.failures == []
    assert len({kind for kind, _ in outcome.counts}) >= 80
    assert outcome.notes["good_requests"] > 0


def test_tokens_that_a_network_does_not_know_are_refused_and_others_answered():
    learner = Learner(models.Text(), SPACE(variance=0.7), example_input=torch.zeros(1, 7, dtype=torch.int64))
    learner.learn(Task("words", tasks(learner.example, 1)[0]), QUICK)
    responses, go = {}, threading.Event()

    def query(token):
        body = make_body([1, 2, 3, 4, 5, 6, token], "INT64")
        responses[token] = fetch(port, "/v2/models/words/infer", body)

    with run_in_thread(learner) as (port, service):
        service.batcher.call(lambda _: go.wait(10))
        threads = run_threads([lambda token=token: query(token) for token in (3, 99, 4)])
        wait_until(lambda: service.waiting == 3)
        go.set()
        join(threads)
    assert [responses[token][0] for token in (3, 99, 4)] == [200, 400, 200]
    assert "cannot read these inputs" in json.loads(responses[99][2])["error"]


def test_logits_that_are_not_finite_are_refused(server, digits_learner):
    extreme = 3e38 * digits_learner.subnet("digits-1").hidden1.weight[0].sign()  # the first neuron's sum overflows
    body = make_body(extreme.tolist())
    status, _, text = fetch(server, "/v2/models/digits-1/infer", body)
    assert status in (400, 422)
    assert "scale" in json.loads(text)["error"]
    status, _, text = fetch(server, "/v2/models/any-task/infer", body)
    outputs = {output["name"]: output["data"] for output in json.loads(text)["outputs"]}
    assert (status, outputs) == (200, {"task": [""], "label": [-1], "confidence": [0]}), "it belongs to no task"


# -- load ---------------------------------------------------------------------------------------------------------------


def test_every_client_of_several_gets_right_responses_for_some_seconds(server_process, digits_run):
    """A small dose of `python -m bench.faults --only clients`."""
    outcome = clients.run_clients(server_process, digits_run, 4, 0)
    assert outcome.failures == []
    assert outcome.notes["requests"] > 4


def test_concurrent_requests_for_several_tasks_each_get_their_own_logits(server, digits_learner):
    """Thirty threads, two tasks and different numbers of rows: the same as one after another."""
    generator = torch.Generator().manual_seed(1)
    queries = [(f"digits-{n % 2 + 1}", torch.randn(1 + n % 5, 64, generator=generator)) for n in range(300)]
    expected = [digits_learner.logits(x, task) for task, x in queries]
    results = [None] * len(queries)

    def send(first):
        client = make_client(server)
        for number in range(first, len(queries), 30):
            task, x = queries[number]
            results[number] = client.infer(task, make_input(x)).as_numpy("logits")

    join(run_threads([lambda first=first: send(first) for first in range(30)]))
    assert all(np.abs(a - b.numpy()).max() < 1e-5 for a, b in zip(results, expected))


def test_load_from_another_process_is_served_without_an_error(server):
    command = [sys.executable, load.__file__, str(server), "1", "8", "[64]", "digits-1", "digits-2"]
    result = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert result["wrong"] == 0
    assert result["requests_per_second"] > 20


@pytest.mark.parametrize("binary", [True, False])
def test_a_model_with_several_inputs_is_served_by_their_names(binary):
    x = {"pixels": torch.randn(60, 6), "ids": torch.randint(0, 20, (60, 5)), "mask": torch.ones(60, 5, dtype=torch.int64)}
    learner = Learner(models.Captioned(), SPACE(variance=0.8), example_input=models.CAPTIONED)
    learner.learn(Task("captions", (x, (x["pixels"][:, 0] > 0).long())), QUICK)
    with run_in_thread(learner) as (port, _):
        metadata = make_client(port).get_model_metadata("captions")
        assert {entry["name"]: (entry["datatype"], entry["shape"]) for entry in metadata["inputs"]} == {
            "ids": ("INT64", [-1, 5]),
            "mask": ("INT64", [-1, 5]),
            "pixels": ("FP32", [-1, 6]),
        }
        inputs = []
        for name, tensor in x.items():
            inputs.append(triton.InferInput(name, list(tensor.shape), "FP32" if name == "pixels" else "INT64"))
            inputs[-1].set_data_from_numpy(tensor.numpy(), binary_data=binary)
        response = make_client(port).infer("captions", inputs)
        assert np.abs(response.as_numpy("logits") - learner.logits(x, "captions").numpy()).max() < 1e-5
        assert make_client(port).infer("any-task", inputs).as_numpy("label").shape == (60,)
        status, _, body = fetch(port, "/v2/models/captions/infer", make_body([0.0] * 6))
        assert (status, "3 entries, named 'ids', 'mask', 'pixels'" in body.decode()) == (400, True)
