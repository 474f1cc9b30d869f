"""The same ring over many ranks at once, for more ranks than anyone wants to see step by step.

With a link of its own for every edge the ring has no choice of order, so its times are a recurrence:
`end[s, r] = (max(own end, left neighbour's end) + latency) + nbytes / bandwidth`. The operations are those of the
engine in the same order, so the two agree bit for bit.

Not modelled: shared links, protocols; the engine does those.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulator.errors import InputError

Times = npt.NDArray[np.float64]


def ring_times(sizes: Sequence[int], starts: Sequence[float], latency_s: Sequence[float],
               bandwidth_bytes_per_s: Sequence[float], steps_out: list[Times] | None = None) -> Times:  # fmt: skip
    """When each rank's last send of a ring all-reduce has ended; float64, shape (N,).

    sizes: bytes of the N chunks. starts: when each rank joins. Latency and bandwidth belong to the edge from rank r
    to r + 1. `steps_out` gets the ends of every step. Raises InputError when the lengths differ.
    """
    n = len(sizes)
    if not n == len(starts) == len(latency_s) == len(bandwidth_bytes_per_s):
        raise InputError(f"{n} chunks, {len(starts)} starts, {len(latency_s)} latencies, {len(bandwidth_bytes_per_s)} "
                         "bandwidths: one of each for every rank. Give lists of one length.")  # fmt: skip
    nbytes = np.asarray(sizes, dtype=np.float64)
    latency = np.asarray(latency_s, dtype=np.float64)
    bandwidth = np.asarray(bandwidth_bytes_per_s, dtype=np.float64)
    joined = np.asarray(starts, dtype=np.float64)
    ranks = np.arange(n)
    end: Times = np.maximum(joined, np.roll(joined, -1))
    if n == 1:
        return np.asarray(starts, dtype=np.float64)
    for step in range(2 * (n - 1)):
        # Reduce-scatter sends chunk r - s; all-gather goes on with r + 1 - (s - (N-1)), which is the same mod N.
        chunk = (ranks - step) % n
        ready = end if step == 0 else np.maximum(end, np.roll(end, 1))
        end = (ready + latency) + nbytes[chunk] / bandwidth
        if steps_out is not None:
            steps_out.append(end)
    return end
