"""Picture files: how they are decoded, and which are refused."""

import os
import sys
from contextlib import suppress

import numpy as np
import pytest
from faults.data_files import EPS
from faults.datasets import write_pictures
from PIL import Image

from spacecl import ConfigError, DataError
from spacecl.data import pictures, readers, sources


def test_pictures_are_decoded_as_a_viewer_shows_them(tmp_path):
    (tmp_path / "a").mkdir()
    red = np.zeros((20, 20, 3), np.uint8)
    red[..., 0] = 200
    Image.fromarray(red).save(tmp_path / "a" / "0.PNG")
    deep = np.full((20, 20), 0x8000, np.uint16)
    Image.fromarray(deep).save(tmp_path / "a" / "1.png")
    glyph = np.zeros((20, 20, 4), np.uint8)
    glyph[5:15, 5:15, 3] = 255  # black where it is not transparent
    Image.fromarray(glyph).save(tmp_path / "a" / "2.png")
    half = np.zeros((20, 20, 3), np.uint8)
    half[:10] = 255
    turned = Image.fromarray(half)
    exif = turned.getexif()
    exif[0x0112] = 3
    turned.save(tmp_path / "a" / "3.jpg", exif=exif)
    for name in (".4.png", ".ipynb_checkpoints/5.png", "__MACOSX/6.png"):
        (tmp_path / "a" / name).parent.mkdir(exist_ok=True)
        Image.fromarray(red).save(tmp_path / "a" / name)
    files = pictures.list_pictures(tmp_path / "a")
    assert [file.name for file in files] == ["0.PNG", "1.png", "2.png", "3.jpg"]
    pixels = pictures.decode_pictures(files, (3, 20, 20))
    assert pixels[0].mean((1, 2)).tolist() == [200, 0, 0]
    assert pixels[1].min() == pixels[1].max() == 128
    assert (pixels[2][0, 0, 0], pixels[2][0, 10, 10]) == (255, 0)
    assert pixels[3][0, 2, 5] < 60 < 200 < pixels[3][0, 17, 5], "rotated as its EXIF data says"


def test_height_and_width_of_pictures_are_not_swapped():
    pixels = np.array([[0, 200, 0], [200, 0, 200]], np.uint8)
    assert np.array_equal(pictures.to_pixels(Image.fromarray(pixels), (1, 2, 3)), pixels[None])
    large = Image.fromarray(np.kron(pixels, np.ones((8, 8), np.uint8)))
    assert np.abs(pictures.to_pixels(large, (1, 2, 3)).astype(int) - pixels[None]).max() < 80


def test_no_picture_makes_pillow_start_another_program(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    from spacecl.errors import SpaceError
    from spacecl.serving.pictures import decode

    mark = tmp_path / "mark"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\necho started >> {mark}\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    file = tmp_path / "x.png"
    file.write_bytes(EPS)
    with suppress(OSError), Image.open(file) as picture:
        picture.load()
    assert mark.exists(), "Pillow without restrictions starts Ghostscript"
    mark.unlink()
    with pytest.raises(DataError, match=r"x\.png \(its format is not one of PNG, JPEG, PPM, BMP, WEBP\)"):
        pictures.decode_pictures([file], (3, 8, 8))
    with pytest.raises(SpaceError, match="not a picture that can be read"):
        decode(EPS, {(3, 8, 8)})
    assert not mark.exists()


@pytest.mark.parametrize("suffix", pictures.PICTURE_SUFFIXES)
def test_every_suffix_of_pictures_has_a_format_that_is_opened(tmp_path, suffix):
    write_pictures(tmp_path, ["a"], 1, mode="RGB", suffix=suffix)
    assert pictures.decode_pictures([tmp_path / "a" / f"0{suffix}"], (3, 28, 28)).std() > 20


def test_a_small_file_with_a_huge_picture_is_refused(tmp_path):
    file = tmp_path / "x.png"
    Image.new("1", (8000, 8000)).save(file)
    assert file.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"x\.png \(it has more than 32,000,000 pixels\)"):
        pictures.decode_pictures([file], (3, 8, 8))
    Image.new("1", (4000, 4000)).save(file)
    assert pictures.decode_pictures([file], (3, 8, 8)).max() == 0


def test_errors_about_missing_libraries_name_the_extra_to_install(tmp_path, monkeypatch):
    write_pictures(tmp_path, "ABCDEFGHIJ", 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install \"spacecl\[data\]\""):
        readers.read_notmnist(tmp_path)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ConfigError, match=r"pip install \"spacecl\[data\]\""):
        sources.fetch("mnist", tmp_path)
