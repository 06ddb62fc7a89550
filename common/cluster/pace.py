"""How often a rank uses the run's store: less often on many ranks, because the store is one.

    python3 -c "from common.cluster.pace import *; print(beat_seconds(4), beat_seconds(1024))"
"""

BEAT_SECONDS = 0.5
HURRIED_SECONDS = 0.05
BEATS_PER_SECOND = 1024  # of all ranks together, each five requests; a store answers 55,000


def beat_seconds(ranks: int) -> float:
    """The time between two heartbeats of a rank: half a second, and more above 512 ranks."""
    return max(BEAT_SECONDS, ranks / BEATS_PER_SECOND)


def hurried_seconds(ranks: int) -> float:
    """The time between two looks at the store while something is going on that cannot wait."""
    return max(HURRIED_SECONDS, ranks / BEATS_PER_SECOND)


def poll_seconds(ranks: int, looks: int) -> float:
    """The time until the next look at a key that a rank waits for, after so many looks."""
    return hurried_seconds(ranks) * min(1.0, 0.2 * 1.1 ** min(looks, 20))
