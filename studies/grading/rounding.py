"""Hypotheses about results that are nearly right: what rounding leaves, and where it was done."""

from collections.abc import Callable

import numpy as np
import torch

from studies.grading.cells import Cell, Values

SINGLE = 1e-6  # of float32 arithmetic, beside the scale
ROUNDED = 0.05  # of compression
UNITS = [10.0 ** -digits for digits in range(7)] + [2.0 ** -bits for bits in range(1, 21)]


def single_precision(cell: Cell) -> str | None:
    """Matches a result that is right but for the last digits."""
    if cell.holds(cell.expected, SINGLE):
        return f"is right to {_error(cell):.0e} only, as after float32 arithmetic"
    return None


def _error(cell: Cell) -> float:
    return float(np.abs(cell.found - cell.expected).max() / cell.scale)


def rounded(cell: Cell) -> str | None:
    """Matches the mean up to rounding, of its parts before they were added or of itself."""
    if not np.isfinite(cell.found).all():
        return None
    error = float(np.abs(cell.found - cell.expected).max())
    for unit in (unit for unit in UNITS if error <= cell.world * unit):
        for divisor, done in ((cell.world, "divided, rounded"), (1, "rounded")):
            if any(cell.holds(_sum_of_rounded(cell, how, unit, divisor), SINGLE)
                   for how in (np.trunc, np.floor, np.round)):
                return (f"is a sum of parts that were {done} to multiples of {unit:.4g} and then "
                        "added")
        if _is_near_multiples(cell.found, unit):
            return f"was rounded to multiples of {unit:.4g}"
    if cell.holds(cell.expected, ROUNDED) and (_has_16_bits(cell.found)
                                               or _has_16_bits(cell.found * cell.world)):
        return "was rounded to 16 bits"
    return None


def _sum_of_rounded(cell: Cell, how: Callable, unit: float, divisor: int) -> Values:
    parts = cell.locals_of(cell.step, cell.tensor)
    return np.sum([how(part / divisor / unit) for part in parts], 0) * unit * divisor / cell.world


def _is_near_multiples(row: Values, unit: float) -> bool:
    steps = row / unit
    error, most = np.abs(steps - steps.round()).max(), np.abs(steps).max()
    return bool(error < min(0.01, 1e-6 + SINGLE * most))


def _has_16_bits(row: Values) -> bool:
    """True if the numbers are float16's, or bfloat16's, up to float32 arithmetic."""
    as_bfloat = torch.from_numpy(row).bfloat16().double().numpy()
    return any(np.allclose(row, coarse, rtol=SINGLE, atol=0)
               for coarse in (row.astype(np.float16).astype(float), as_bfloat))


def near(cell: Cell) -> str | None:
    """Matches a result near the mean: compressed, perhaps."""
    if cell.holds(cell.expected, ROUNDED):
        return (f"is right to {_error(cell):.0e} only, as after rounding (a compressed strategy "
                "must declare a tolerance, and be graded with one)")
    return None
