"""The pictures of the documentation: python docs/pictures/make.py (Matplotlib, scikit-image)."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

import fnpipe as fp
from fnpipe import demo, sheets


HERE = Path(__file__).parent
INK, SOFT = "0.15", "0.75"


def pixels(axes, wide: int, high: int) -> None:
    """A grid of pixels with their edges as ticks and their centres as dots."""
    for x in range(wide + 1):
        axes.plot([x, x], [0, high], color=SOFT, lw=1)
    for y in range(high + 1):
        axes.plot([0, wide], [y, y], color=SOFT, lw=1)
    for x in range(wide):
        axes.plot([x + 0.5] * high, [y + 0.5 for y in range(high)], ".", color=SOFT, ms=3)
    axes.set(xlim=(-0.6, wide + 0.6), ylim=(high + 0.6, -0.6), aspect="equal")
    axes.set_xticks(range(wide + 1))
    axes.set_yticks(range(high + 1))
    axes.spines[:].set_visible(False)


def conventions() -> None:
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    pixels(first, 6, 5)
    first.fill([1, 4, 4, 1], [1, 1, 3, 3], color="C0", alpha=0.35)
    first.plot([4.5], [3.5], "o", color="C3")
    first.annotate(
        "COCO keypoint [4, 3]\nis read as (4.5, 3.5)", (4.5, 3.5), (1.2, 4.6), color="C3"
    )
    first.set_title("box [1, 1, 4, 3]: 6 pixels", fontsize=10, color=INK)
    pixels(second, 6, 5)
    ring_x, ring_y = [0.6, 5.2, 2.4, 0.6], [0.8, 2.1, 4.6, 0.8]
    second.plot(ring_x, ring_y, color="C2")
    ring = torch.tensor([ring_x[:3], ring_y[:3]]).T.contiguous()
    rings = fp.Rings(ring, torch.tensor([0, 3]), torch.tensor([0, 1]))
    from fnpipe.ops import raster

    for y, x in raster.masks(rings, (5, 6), stride=1)[0].nonzero().tolist():
        second.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], color="C2", alpha=0.3, lw=0)
    second.set_title("a pixel belongs to a ring when its centre does", fontsize=10, color=INK)
    pixels(third, 6, 5)
    third.plot([0.4], [2.0], "o", color="C3")
    third.plot([5.6], [2.0], "o", color="C0")
    third.annotate("", (5.4, 2.0), (0.6, 2.0), arrowprops={"arrowstyle": "->", "color": INK})
    third.set_title("mirrored, W = 6: x becomes 6 - x", fontsize=10, color=INK)
    figure.savefig(HERE / "conventions.png", dpi=110)


def quads() -> None:
    from fnpipe.ops.points import rboxes_to_quads

    figure = Figure(figsize=(4.2, 3.0), layout="constrained")
    axes = figure.subplots()
    rbox = torch.tensor([[50.0, 40.0, 60.0, 24.0, 0.5]])
    corners = rboxes_to_quads(rbox)[0].tolist()
    axes.fill(*zip(*corners, strict=True), color="C1", alpha=0.3)
    for i, (x, y) in enumerate(corners):
        axes.plot([x], [y], "o", color="C1")
        axes.annotate(str(i), (x, y), (4, 4), textcoords="offset points", color=INK)
    axes.annotate("", (85, 40), (50, 40), arrowprops={"arrowstyle": "->", "color": INK})
    tip = [(corners[1][k] + corners[2][k]) / 2 for k in (0, 1)]
    axes.annotate("", tip, (50, 40), arrowprops={"arrowstyle": "->", "color": "C3"})
    axes.annotate("angle: from +x to the w side, clockwise", (4, 76), color="C3", fontsize=9)
    axes.set(xlim=(0, 100), ylim=(80, 0), aspect="equal")
    axes.set_title("(cx, cy, w, h, angle) of corners 0 1 2 3", fontsize=10, color=INK)
    figure.savefig(HERE / "quads.png", dpi=110)


def sheet() -> None:
    """The README's picture, as JPEG: one photo stage by stage, small."""
    from PIL import Image as pillow

    data = demo.load()
    train = fp.pipe(
        fp.mosaic(320), fp.affine(degrees=10.0, scale=0.3), fp.hsv(hue=0.1, saturation=0.7)
    )
    shown = sheets.stages(data, train, 0, seed=5)
    picture = pillow.fromarray(shown.permute(1, 2, 0).numpy())
    picture.save(HERE / "stages.jpg", quality=82, optimize=True)


if __name__ == "__main__":
    conventions()
    quads()
    sheet()
