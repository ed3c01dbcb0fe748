"""A picture of all corruptions at all severities, and a table of their distances from the clean images.

`python -m bpcbench_data.corruption_sheet --data DIR --dataset cifar10 -o sheet.png`
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bpcbench.errors import BpcbenchError, UserError, unknown
from bpcbench.records import Array
from bpcbench_data.bar import bar
from bpcbench_data.corruptions import CORRUPTIONS, SEVERITIES, corrupted, mean_distance

_SIDE, _GAP, _TITLE, _MARGIN = 96, 6, 18, 130


def distances(images: Array, seed: int = 0) -> Mapping[str, list[float]]:
    """Return, by type, the mean absolute difference from the clean images at each severity, in grey levels."""
    means: dict[str, list[float]] = {}
    with bar(len(CORRUPTIONS) * len(SEVERITIES), "corruptions", "split") as progress:
        for kind in CORRUPTIONS:
            means[kind] = []
            for severity in SEVERITIES:
                changed = np.concatenate(list(corrupted(images, kind, severity, seed)))
                means[kind].append(mean_distance(images, changed))
                progress(1)
    return means


def table(means: Mapping[str, Sequence[float]]) -> str:
    """Return distances as a Markdown table."""
    lines = [f"| type | {' | '.join(map(str, SEVERITIES))} |", f"|---|{'---:|' * len(SEVERITIES)}"]
    lines += [f"| {kind} | {' | '.join(f'{value:.2f}' for value in row)} |" for kind, row in means.items()]
    return "\n".join(lines)


def sheet(image: Array, seed: int = 0) -> bytes:
    """Return a PNG of one image (c, h, w): a row per type, the clean image first, then a column per severity."""
    import torch
    from PIL import Image, ImageDraw

    from bpcbench_torch.torchvision_compat import import_torchvision

    torchvision = import_torchvision()
    images = []
    for kind in CORRUPTIONS:
        images += [image, *(next(corrupted(image[None], kind, severity, seed))[0] for severity in SEVERITIES)]
    zoom = max(1, _SIDE // max(image.shape[1:]))
    tiles = torch.from_numpy(np.stack(images)).repeat_interleave(zoom, 2).repeat_interleave(zoom, 3)
    columns = 1 + len(SEVERITIES)
    grid = torchvision.utils.make_grid(tiles, nrow=columns, padding=_GAP, pad_value=255)
    high, wide = (side + _GAP for side in tiles.shape[2:])
    canvas = Image.new("RGB", (_MARGIN + columns * wide, _TITLE + len(CORRUPTIONS) * high), "white")
    # The grid has a gap above and to the left of its first tile.
    canvas.paste(torchvision.transforms.functional.to_pil_image(grid), (_MARGIN - _GAP, _TITLE - _GAP))
    draw = ImageDraw.Draw(canvas)
    for column, title in enumerate(["clean", *map(str, SEVERITIES)]):
        draw.text((_MARGIN + column * wide + 2, 3), title, "black")
    for row, kind in enumerate(CORRUPTIONS):
        draw.text((6, _TITLE + row * high + high // 2 - 8), kind, "black")
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main(words: Sequence[str] | None = None) -> int:
    """Write the sheet of one test image, and print the distances over many images."""
    parser = argparse.ArgumentParser(prog="python -m bpcbench_data.corruption_sheet", description=__doc__)
    parser.add_argument("--data", default=os.environ.get("BPCBENCH_DATA", "data"), help="folder of the data sets")
    parser.add_argument("--dataset", default="cifar10", help="a data set of this plugin")
    parser.add_argument("--image", type=int, default=7, help="index of the test image to show")
    parser.add_argument("--examples", type=int, default=2000, help="number of test images to average over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="sheet.png", help="file to write")
    arguments = parser.parse_args(words)
    try:
        images = _images(arguments)
        Path(arguments.output).write_bytes(sheet(images[arguments.image], arguments.seed))
    except (BpcbenchError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = np.array(images[: arguments.examples])
    print(f"Mean absolute difference from {len(chosen):,} clean {arguments.dataset} test images, in grey levels:\n")
    print(table(distances(chosen, arguments.seed)))
    return 0


def _images(arguments: argparse.Namespace) -> Array:
    from bpcbench_data.plugin import bpcbench_datasets

    known = {cls.name: cls for cls in bpcbench_datasets()}
    if arguments.dataset not in known:
        raise UserError(unknown("data set", arguments.dataset, known))
    images = known[arguments.dataset]().load(Path(arguments.data), "test").images
    if not 0 <= arguments.image < len(images):
        raise UserError(f"--image {arguments.image}: the test split has the images 0 to {len(images) - 1}")
    return images


if __name__ == "__main__":
    sys.exit(main())
