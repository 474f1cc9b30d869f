"""How a step's time divides over the layers, when only the whole step was measured.

A kernel is bound by arithmetic or by memory, whichever takes longer (the roofline):

    weight = max(FLOPs / peak_flops_per_s, bytes / memory_bytes_per_s)

The weights are seconds on a device that reaches both peaks. No device does, so use them as proportions.

Not modelled: kernels inside a layer one by one; that small kernels, and some shapes, reach less of the peak.
"""

from simulator.errors import number, whole
from simulator.presets.facts import ModelFacts


def layer_shares(facts: ModelFacts, peak_flops_per_s: float, memory_bytes_per_s: float, batch: int
                 ) -> tuple[tuple[float, float], ...]:  # fmt: skip
    """Per layer in forward order: (forward_weight_s, backward_weight_s). Raises InputError on an impossible rate."""
    peak = number(peak_flops_per_s, "peak_flops_per_s", exclusive=True)
    memory = number(memory_bytes_per_s, "memory_bytes_per_s", exclusive=True)
    whole(batch, "batch", minimum=1)
    return tuple(
        (
            max(batch * layer.forward_flops_per_sample / peak, layer.forward_bytes(batch) / memory),
            max(batch * layer.backward_flops_per_sample / peak, layer.backward_bytes(batch) / memory),
        )
        for layer in facts.layers
    )
