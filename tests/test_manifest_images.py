"""Image files as people have them: what is shown of each, and what is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from manifest_files import SUM, built, faults, picture
from PIL import Image

from envs.data import images

pytestmark = pytest.mark.usefixtures("own_cache")


def test_images_are_upright_without_transparency_and_of_bounded_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the first row is the right-hand side
    half = Image.new("RGB", (40, 20), "red")
    half.paste("blue", (20, 0, 40, 20))
    half.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    pixels, size = images.load(str(tmp_path / "turned.jpg"), 10_000)
    assert (pixels.shape, size) == ((40, 20, 3), (20, 40))
    assert pixels[5, 10, 0] > 200 and pixels[35, 10, 2] > 200
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (images.load(str(tmp_path / "clear.png"), 10_000)[0] == 255).all()
    Image.fromarray(np.full((8, 8), 32768, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert (images.load(str(tmp_path / "deep.png"), 10_000)[0] == 128).all()
    picture(tmp_path / "large.png", size=(400, 100))
    pixels, size = images.load(str(tmp_path / "large.png"), 10_000)
    assert (pixels.shape, size) == ((50, 200, 3), (400, 100))
    assert not pixels.flags.writeable


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "bmp", "tiff"])
def test_an_image_that_is_cut_off_is_told_with_its_line_before_anything_starts(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    for name in ("whole", "cut"):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / f"{name}.{suffix}")
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(cut.read_bytes()[:-1500])
    found = faults(built(tmp_path, [{**SUM, "images": [f"{name}.{suffix}"]} for name in ("whole", "cut")]))
    assert [problem.split(": ")[0] for _, problem in found] == ["line 2"]


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_a_picture_with_damaged_exif_data_is_shown_as_it_lies(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / f"a.{suffix}"
    picture(file, size=(40, 20), exif=exif)
    assert images.load(str(file), 10_000)[1] == (20, 40)
    damaged = tmp_path / f"b.{suffix}"
    damaged.write_bytes(file.read_bytes().replace(b"MM\0*", b"MM\0!"))
    assert images.load(str(damaged), 10_000)[1] == (40, 20)


def test_pictures_of_32_bit_numbers_are_refused_since_nothing_says_what_is_white(tmp_path: Path) -> None:
    for mode in ("I", "F"):
        Image.new(mode, (8, 8), 200).save(tmp_path / f"{mode}.tiff")
        with pytest.raises(ValueError, match="holds 32-bit numbers"):
            images.identify(str(tmp_path / f"{mode}.tiff"))


def test_cmyk_palettes_and_the_first_picture_of_an_animation_are_shown(tmp_path: Path) -> None:
    red = Image.new("RGB", (8, 8), "red")
    red.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    red.convert("P").save(tmp_path / "palette.png")
    red.save(tmp_path / "moving.gif", save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")])
    for name in ("cmyk.jpg", "palette.png", "moving.gif"):
        seen, _ = images.load(str(tmp_path / name), 10_000)
        assert (np.abs(seen.astype(int) - [254, 0, 0]) < 3).all(), name


def test_what_follows_a_whole_image_in_its_file_does_no_harm(tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg"):
        picture(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"\0" * 40)
    tasks = built(tmp_path, [{**SUM, "images": ["a.png", "b.jpg"]}]).tasks("train", 1, seed=0)
    assert len(tasks) == 1


def test_pipes_and_folders_are_no_images(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    rows = [{**SUM, "images": [name]} for name in ("pipe.png", "folder.png")]
    told = [problem for _, problem in faults(built(tmp_path, rows))]
    assert [text.rsplit(": ", 1)[1] for text in told] == ["is no file", "is no file"]


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(images.MOST_BYTES + 1)  # a hole: it takes no room
    ((_, told),) = faults(built(tmp_path, [{**SUM, "images": ["huge.png"]}]))
    assert told.endswith("huge.png: has 268,435,457 bytes; at most 268,435,456 are read")


def test_bombs_ribbons_and_programs_are_refused_before_they_are_opened(tmp_path: Path) -> None:
    picture(tmp_path / "bomb.png", size=(9000, 9000))
    picture(tmp_path / "ribbon.png", size=(900, 4))
    (tmp_path / "program.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    rows = [{**SUM, "images": [name]} for name in ("bomb.png", "ribbon.png", "program.eps")]
    told = [problem for _, problem in faults(built(tmp_path, rows))]
    assert [text.split(": ", 3)[3][:20] for text in told] == [
        "is 9000 x 9000; at m",
        "is 900 x 4; no side ",
        "is no image (PNG, JP",
    ]
