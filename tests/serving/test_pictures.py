"""The page: pictures are decoded within limits, classified by every task, and shown in a real browser."""

import base64
import json
import struct
import threading
import zlib

import numpy as np
import pytest
import torch
from models import VECTOR, chain, tasks
from servers import QUICK, fetch, run_in_thread

from spacecl import SPACE, Images, Learner, Task
from spacecl.runs.open_run import open_run
from spacecl.serving import pictures
from spacecl.serving.open_inference import RequestError

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")


@pytest.fixture(scope="module")
def tests(digits_run):
    """The test data of both tasks."""
    return {name: task.test for name, task in open_run(digits_run).tasks(None).items()}


@pytest.fixture(scope="module")
def picture_files(tmp_path_factory, tests):
    """A digit that task 1 was tested with as a PNG and as a large JPEG, and a file that is not a picture."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    pixels = tests["digits-1"].batch([3])[0][0, 0].numpy()
    Image.fromarray(pixels).save(folder / "digit.png")
    Image.fromarray(np.kron(pixels, np.ones((40, 40), np.uint8))).convert("RGB").save(folder / "large.jpg")
    (folder / "none.png").write_text("no picture")
    return folder


def test_every_task_answers_a_picture_as_the_learner_does(server, digits_learner, picture_files, tests):
    status, _, text = fetch(server, "/picture", (picture_files / "digit.png").read_bytes())
    answer = json.loads(text)
    assert (status, answer["width"], [entry["task"] for entry in answer["tasks"]]) == (200, 8, ["digits-1", "digits-2"])
    for entry in answer["tasks"]:
        test = tests[entry["task"]]
        probabilities = digits_learner.logits(test.finish(test.batch([3])[0]), entry["task"])[0].softmax(0)
        assert entry["answers"][0]["class"] == str(int(probabilities.argmax()))
        assert entry["answers"][0]["share"] == pytest.approx(float(probabilities.max()), abs=1e-4)
        assert len(entry["answers"]) == 5
    assert sum(entry["like"] for entry in answer["tasks"]) == pytest.approx(1)
    status, _, text = fetch(server, "/picture", (picture_files / "none.png").read_bytes())
    assert (status, "not a picture that can be read" in text.decode()) == (415, True)


def test_pictures_are_decoded_once_and_not_in_the_thread_that_runs_the_networks(digits_learner, picture_files, monkeypatch):
    """A large picture does not delay others, and tasks that read the same shape share its pixels."""
    to_pixels, threads = pictures.to_pixels, []
    monkeypatch.setattr(
        pictures, "to_pixels", lambda *given: threads.append(threading.current_thread().name) or to_pixels(*given)
    )
    with run_in_thread(digits_learner) as (port, _):
        assert fetch(port, "/picture", (picture_files / "large.jpg").read_bytes())[0] == 200
        assert fetch(port, "/")[1]["Content-Security-Policy"].startswith("default-src 'none'"), "the page loads nothing else"
    assert len(threads) == 1
    assert threads[0].startswith("spacecl-pictures")


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded(server):
    for side in (6000, 20_000):  # Pillow itself refuses the second
        parts = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
        chunks = (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
        )
        status, _, text = fetch(server, "/picture", b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
        assert (status, "32,000,000 pixels" in text.decode()) == (413, True)


def test_a_truncated_picture_is_refused_even_if_no_task_reads_pictures(picture_files):
    content = (picture_files / "digit.png").read_bytes()
    assert pictures.decode(content, set()) == ((8, 8), {})
    with pytest.raises(RequestError, match="not a picture that can be read"):
        pictures.decode(content[:45], set())


def test_the_task_of_a_picture_is_inferred(digits_learner, tests):
    for test in tests.values():
        answer = pictures.classify(digits_learner, {(1, 8, 8): test.batch([3])[0].numpy()})
        assert answer["likely"] == max(answer["tasks"], key=lambda entry: entry["like"])["task"]


def test_tasks_taught_with_tensors_say_why_they_cannot_read_pictures():
    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    learner.learn(Task("numbers", tasks(VECTOR, 1)[0]), QUICK)
    pixels = np.random.default_rng(0).integers(0, 255, (60, 1, 2, 3), dtype=np.uint8)
    learner.learn(Task("pictures", Images(pixels, np.arange(60) % 3, order=torch.arange(6))), QUICK)
    answer = pictures.classify(learner, {(1, 2, 3): pixels[:1]})
    assert "taught without spacecl.Images" in answer["tasks"][0]["problem"]
    assert answer["likely"] == "pictures"
    assert answer["tasks"][1]["like"] == 1


def read_table(browser):
    """The rows of the page's table, once the server has answered."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: "waiting" not in b.find_element(By.ID, "hint").text)
    return [
        [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
        for row in browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_takes_a_picture_and_shows_every_tasks_answer(browser, server, picture_files, width):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"http://127.0.0.1:{server}/")
    WebDriverWait(browser, 20).until(lambda b: "2 tasks: digits-1, digits-2." in b.find_element(By.ID, "about").text)
    browser.find_element(By.ID, "file").send_keys(str(picture_files / "digit.png"))
    answers = json.loads(fetch(server, "/picture", (picture_files / "digit.png").read_bytes())[2])["tasks"]
    table = read_table(browser)
    assert [row[0].split(" ◂")[0] for row in table] == ["digits-1", "digits-2"]
    for row, entry in zip(table, answers):
        assert row[1].splitlines()[0] == entry["answers"][0]["class"]
        assert row[2] == f"{100 * entry['answers'][0]['share']:.1f} %"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_a_dropped_picture_is_classified_and_another_file_is_refused(browser, server, picture_files):
    from selenium.webdriver.common.by import By

    browser.get(f"http://127.0.0.1:{server}/")
    drop = """
        const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0)), data = new DataTransfer();
        data.items.add(new File([bytes], arguments[1]));
        const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
        document.getElementById("drop").dispatchEvent(event);
    """
    for name in ("large.jpg", "none.png"):
        browser.execute_script(drop, base64.b64encode((picture_files / name).read_bytes()).decode(), name)
        table = read_table(browser)
        if name == "large.jpg":
            assert len(table) == 2
            assert browser.find_element(By.ID, "hint").text.startswith("large.jpg, 320 \N{MULTIPLICATION SIGN} 320")
    assert "not a picture that can be read" in browser.find_element(By.ID, "problem").text
    assert not browser.find_element(By.ID, "answers").is_displayed()
