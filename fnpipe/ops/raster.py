"""Polygons to masks: one rule in five spellings with equal bits.

With stride s, mask pixel (i, j) covers [j s, (j + 1) s) x [i s, (i + 1) s) of the picture and has
its centre at x = (j + 0.5) s, y = (i + 0.5) s. Call an edge's end with the smaller y its top. In
float32 and in this order, an edge crosses the row of centres at y when top.y <= y < bottom.y, at

    slope = (bottom.x - top.x) / (bottom.y - top.y)
    x     = top.x + (y - top.y) * slope, then held between the ends' x

and a centre is past the crossing when centre >= x. It is inside a ring when it is past an odd
number of its crossings, and inside an instance when inside any of its rings.

What looks simplifiable and is not: *from the top*, because two neighbours walk a shared edge in
opposite directions and must find one x; *half open in y*, so that a vertex at a row's very height
counts once; *at or past*, so that exactly one of two neighbours owns a centre on their edge; *held
between the ends*, because rounding may push x past them, and no mask may leave its ring's box.
Coordinates are anything finite below 1e18; far ends cost nothing.

- ``dense``: every centre against every edge, the reference.
- ``window``: the same inside each ring's box.
- ``torch``: toggle the first centre past each crossing, then scan the rows; the host's.
- ``package``: the same with the arithmetic compiled into one loop, built once a machine.
- ``triton``: toggle all centres past each crossing, as bits of words, in tiles; the device's.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int, Int32, Int64, Shaped
from torch import Tensor

from fnpipe.types import ArgumentError, Points, Rings, check_choice


Masks = Bool[Tensor, "n mh mw"]
Values = Float32[Tensor, "..."]
Edges = tuple[Values, Values, Values, Values, Values]
"""Of edges as lines: x and y of the top, the change of x a unit of y, the least and the most x."""
Counts = Int[Tensor, " _"]
Indices = Int[Tensor, " _"]
Windows = tuple[Counts, Counts, Counts, Counts, Counts]
"""Of rings: top row, left word, rows, words a row, and where the first word is in the buffer."""
Words = Int64[Tensor, " _"]
"""Eight neighbouring pixels each, the leftmost in the lowest byte."""
LANES = 0x0101_0101_0101_0101
"""A one in each byte of a word."""


def masks(rings: Rings, size: tuple[int, int], *, stride: int = 4, impl: str = "torch") -> Masks:
    """Rasterise rings in pixels: one boolean plane of ``size // stride`` an instance.

    ``size`` is the height and width of the picture that the rings lie on (multiply normalised rings
    by it). The rule is the module's; the bits are the same with every ``impl``. The result is where
    the rings are. Raises ArgumentError where ``stride`` does not divide ``size``, for an unknown
    ``impl``, and for ``"triton"`` without a CUDA device.
    """
    check_choice("impl", impl, RASTERISERS)
    if stride < 1 or any(side < 1 or side % stride for side in size):
        raise ArgumentError(f"size: wanted positive multiples of stride {stride}; came {size}")
    return RASTERISERS[impl](rings, size[0] // stride, size[1] // stride, stride)


# The rule: all that float arithmetic does, for torch and, re-read, for Triton


def edge_to_line(ax: Values, ay: Values, bx: Values, by: Values) -> Edges:
    """An edge between two points; which comes first does not matter."""
    # On the host where() takes 160 us of 44,000 edges; two products take 30 and are as exact.
    down = (ay < by).to(torch.float32)
    x = ax * down + bx * (1.0 - down)
    slope = (bx - ax) / (by - ay)
    return x, torch.minimum(ay, by), slope, torch.minimum(ax, bx), torch.maximum(ax, bx)


def crossing(
    y: Values, x: Values, top: Values, slope: Values, left: Values, right: Values
) -> Values:
    """The x at which a line crosses height ``y``, for heights that its edge does cross."""
    return torch.minimum(torch.maximum(x + (y - top) * slope, left), right)


def centre(index: Int[Tensor, "..."], stride: int) -> Values:
    """Where the centres of mask rows or columns lie."""
    return (index.to(torch.float32) + 0.5) * stride


def first_past(position: Values, count: int, stride: int) -> Int32[Tensor, "..."]:
    """The first of ``count`` indices whose centre is at or past a position, ``count`` if none is.

    The quotient may be rounded to the wrong side of an integer, but only where the position is next
    to a border between pixels. There both neighbours lead to one answer, as the centre decides.
    """
    held = position.clamp(0, count * stride)
    index = (held * (1 / stride)).to(torch.int32)
    return index + (centre(index, stride) < held)


# The crossing test, of all centres or of those in windows


def rasterize_dense(rings: Rings, height: int, width: int, stride: int) -> Masks:
    """The rule, read aloud."""
    planes, rows, columns = _grid(rings, height, width, stride)
    for instance, points in _each(rings):
        planes[instance] |= _inside(points, rows, columns)
    return planes


def rasterize_windows(rings: Rings, height: int, width: int, stride: int) -> Masks:
    """The rule inside each ring's box, outside of which no centre is past an odd number."""
    planes, rows, columns = _grid(rings, height, width, stride)
    for instance, points in _each(rings):
        (left, top), (right, bottom) = points.amin(0), points.amax(0)
        x = slice(first_past(left, width, stride), first_past(right, width, stride))
        y = slice(first_past(top, height, stride), first_past(bottom, height, stride))
        planes[instance, y, x] |= _inside(points, rows[y], columns[x])
    return planes


def _grid(
    rings: Rings, height: int, width: int, stride: int
) -> tuple[Masks, Float32[Tensor, " mh"], Float32[Tensor, " mw"]]:
    """Empty planes, and the centres of rows and columns."""
    device, instances = rings.points.device, len(rings.instance_offsets) - 1
    rows, columns = (centre(torch.arange(n, device=device), stride) for n in (height, width))
    return torch.zeros(instances, height, width, dtype=torch.bool, device=device), rows, columns


def _each(rings: Rings) -> Iterator[tuple[int, Points]]:
    """Every ring that has points, with the instance that it belongs to."""
    owner, _ = ragged(rings.instance_offsets.diff())
    pieces = rings.points.split(rings.ring_offsets.diff().tolist())
    return ((i, points) for i, points in zip(owner.tolist(), pieces, strict=True) if len(points))


def _inside(
    points: Points, rows: Float32[Tensor, " mh"], columns: Float32[Tensor, " mw"]
) -> Bool[Tensor, "mh mw"]:
    """Which centres are past an odd number of one ring's crossings."""
    (ax, ay), (bx, by) = (end[:, None].unbind(-1) for end in (points, points.roll(-1, 0)))
    crossed = (torch.minimum(ay, by) <= rows) & (rows < torch.maximum(ay, by))
    x = torch.where(crossed, crossing(rows, *edge_to_line(ax, ay, bx, by)), torch.inf)
    inside = torch.zeros(len(rows), len(columns), dtype=torch.bool, device=points.device)
    for some in x.split(64):  # 64 edges' planes at a time: 26 MB of a 640 x 640 mask
        inside ^= (columns >= some[..., None]).sum(0) % 2 == 1
    return inside


# Toggle and scan


def rasterize_parity(
    rings: Rings,
    height: int,
    width: int,
    stride: int,
    *,
    past: Callable[..., Indices] | None = None,
) -> Masks:
    """Work that grows with edges x rows: toggle the first pixel past each crossing, then scan.

    The windows of all rings lie end to end in one buffer, so that a batch is a fixed number of
    operations. First rings of all instances come first and are written to the planes in one go,
    then all second ones, and so on as far as the instance with the most rings. ``past`` stands in
    for :func:`pixels_past`.
    """
    instances, pitch = len(rings.instance_offsets) - 1, -(-width // 8)
    planes = _blank(instances * height * pitch, rings.points.device)
    if len(rings.points):
        owner, rank = ragged(rings.instance_offsets.diff())
        order = torch.argsort(rank, stable=True)
        windows = _windows(rings, order, height, width, stride)
        past = past or partial(pixels_past, width=width, stride=stride)
        words = scan(_toggle(rings, windows, height, stride, past))
        address = _addresses(windows, owner, order, height, pitch)
        runs = torch.zeros(int(rank.max()) + 1, dtype=torch.int64, device=rank.device)
        runs = runs.index_add(0, rank, windows[2] * windows[3]).tolist()
        first, *later = zip(address.split(runs), words.split(runs), strict=True)
        planes.scatter_(0, *first)
        for where, more in later:
            planes[where] |= more
    return planes.view(torch.bool).view(instances, height, 8 * pitch)[..., :width].contiguous()


def _windows(rings: Rings, order: Indices, height: int, width: int, stride: int) -> Windows:
    """Every ring's window. A ring without points has none: its least x is inf, its most -inf."""
    (x0, y0), (x1, y1) = (
        torch.segment_reduce(rings.points, end, offsets=rings.ring_offsets, axis=0).t()
        for end in ("min", "max")
    )
    left, top = first_past(x0, width, stride).long() // 8, first_past(y0, height, stride).long()
    pitch = ((first_past(x1, width, stride).long() + 7) // 8 - left).clamp(min=0)
    rows = (first_past(y1, height, stride).long() - top).clamp(min=0) * (pitch > 0)
    base = torch.empty_like(rows)
    base[order] = exclusive_sum((rows * pitch)[order])
    return top, left, rows, pitch, base


def _toggle(
    rings: Rings, windows: Windows, height: int, stride: int, past: Callable[..., Indices]
) -> Words:
    """The buffer of windows, a pixel odd where an odd number of crossings is first passed.

    A crossing right of its window toggles the first pixel of the next row, or of the next window:
    just where a scan that runs on over the row's end has to turn even again. A count that wraps at
    256 keeps its lowest bit, and no other is looked at.
    """
    x, y = (column.contiguous() for column in rings.points.unbind(1))
    after = following(rings.ring_offsets)
    row = first_past(y, height, stride)
    counts = (row - take(row, after)).abs()
    edge, start = torch.repeat_interleave(counts), exclusive_sum(counts)
    top, left, rows, pitch, base = windows
    ring = torch.repeat_interleave(rings.ring_offsets.diff())
    origin, pitches = take(8 * (base - top * pitch - left), ring), take(8 * pitch, ring)
    pixel = past(x, y, after, row, start, origin, pitches, edge)
    words = torch.zeros(int((rows * pitch).sum()) + 1, dtype=torch.int64, device=x.device)
    one = torch.ones(1, dtype=torch.int8, device=x.device)
    words.view(torch.int8).scatter_add_(0, pixel, one.expand(len(pixel)))
    return words


def pixels_past(
    x: Float32[Tensor, " p"],
    y: Float32[Tensor, " p"],
    following: Int64[Tensor, " p"],
    row: Int32[Tensor, " p"],
    start: Int32[Tensor, " p"],
    origin: Int64[Tensor, " p"],
    pitch: Int64[Tensor, " p"],
    edge: Int32[Tensor, " c"],
    *,
    width: int,
    stride: int,
) -> Int64[Tensor, " c"]:
    """For each crossing the first pixel past it, counted in the buffer of windows.

    Point p and the one ``following`` it are an edge, whose first row is the lesser of the two
    ``row``. Its crossings, a row each, are the entries of ``edge`` that are p, from ``start`` on.
    Pixel x of row y of its ring's window is number ``origin + pitch * y + x``.
    """
    place = torch.arange(edge.shape[0], dtype=edge.dtype, device=edge.device)  # len() would fix it
    row = take(torch.minimum(row, take(row, following)), edge) + (place - take(start, edge))
    lines = edge_to_line(x, y, take(x, following), take(y, following))
    position = crossing(centre(row, stride), *(take(field, edge) for field in lines))
    pixel = take(pitch, edge) * row + take(origin, edge)
    return pixel + first_past(position, width, stride)


def scan(words: Words) -> Words:
    """Running parity of the bytes' lowest bits, through all words; consumes its argument.

    A product with LANES leaves in each byte the sum of those up to it, at most 8; the last byte's
    parity is the word's, and is carried into all words after. Relies on the lowest byte being the
    first, as on x86, Arm and CUDA. The last word, which only ends the last row, is dropped.
    """
    words.bitwise_and_(LANES).mul_(LANES).bitwise_and_(LANES)
    before = words.view(torch.int8)[7::8].cumsum(0, dtype=torch.int8)[:-1]
    words[1:] ^= before.bitwise_and_(1).to(torch.int64).mul_(LANES)
    return words[:-1]


def _addresses(
    windows: Windows, owner: Indices, order: Indices, height: int, plane_pitch: int
) -> Indices:
    """Where in the planes each word of the buffer belongs: one on in a row, then a jump."""
    top, left, rows, pitch, _ = (field[order] for field in windows)
    window, row = ragged(rows)
    pitch = take(pitch, window)
    first = take((owner[order] * height + top) * plane_pitch + left, window) + row * plane_pitch
    address = torch.ones(int(pitch.sum()), dtype=torch.int64, device=pitch.device)
    jump = torch.cat([first[:1], first[1:] - (first + pitch)[:-1] + 1])
    return address.scatter_(0, exclusive_sum(pitch), jump).cumsum_(0)


def ragged(counts: Counts) -> tuple[Indices, Indices]:
    """For each element of runs of such lengths: which run it is in, and its place in that."""
    run = torch.repeat_interleave(counts)
    place = torch.arange(len(run), dtype=counts.dtype, device=run.device)
    return run, place - take(exclusive_sum(counts), run)


def exclusive_sum(counts: Counts) -> Counts:
    """The sum of all before each."""
    return counts.cumsum(0, dtype=counts.dtype) - counts


def take(values: Shaped[Tensor, " _"], index: Indices) -> Shaped[Tensor, " _"]:
    """``values[index]``, in a fourth of the time on the host: 40 us against 170 for 65,000."""
    return values.index_select(0, index)


def following(offsets: Counts) -> Indices:
    """The index of the next point of the same ring: after the last comes the first."""
    after = torch.arange(1, int(offsets[-1]) + 1, device=offsets.device)
    full = offsets.diff() > 0
    after[offsets[1:][full] - 1] = offsets[:-1][full]
    return after


def _blank(words: int, device: torch.device) -> Words:
    """Zeros. On the host numpy's, which are the kernel's own zero pages until written.

    Filling 47 MB of fresh memory would take 14 ms, more than all else.
    """
    if device.type == "cpu" and words:
        return torch.from_numpy(np.zeros(words, np.int64))
    return torch.zeros(words, dtype=torch.int64, device=device)


def rasterize_package(rings: Rings, height: int, width: int, stride: int) -> Masks:
    """:func:`fnpipe.ops.raster_package.rasterize`."""
    from fnpipe.ops.raster_package import rasterize

    return rasterize(rings, height, width, stride)


def rasterize_triton(rings: Rings, height: int, width: int, stride: int) -> Masks:
    """:func:`fnpipe.ops.raster_triton.rasterize`."""
    from fnpipe.ops.raster_triton import rasterize

    return rasterize(rings, height, width, stride)


RASTERISERS: dict[str, Callable[[Rings, int, int, int], Masks]] = {
    "dense": rasterize_dense,
    "window": rasterize_windows,
    "torch": rasterize_parity,
    "package": rasterize_package,
    "triton": rasterize_triton,
}
"""Every ``impl`` of :func:`masks`."""
