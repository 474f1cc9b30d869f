"""How a step's time divides over the layers, when only the whole step was measured.

A kernel is bound by arithmetic or by memory, whichever takes longer (the roofline):

    weight = max(FLOPs / peak_flops_per_s, bytes / memory_bytes_per_s)

The weights are seconds on a device that reaches both peaks. No device does, so use them as proportions.

A convolution's matrix product has as many columns as the convolution has output channels, and libraries compute it in
tiles of up to 128: with few channels the tile is partly empty, so its peak is multiplied by channels / (channels + 64).
That constant was chosen on five recordings (VGG-16, ResNet-18, ResNet-50; three GPU generations). It brings the
largest error of the cumulative backward from 0.27, 0.16 and 0.07 of the backward down to 0.19, 0.09 and 0.04, and for
ResNet-50 on a V100 the largest error of a DDP bucket's ready time from 0.054 to 0.017. `tile_channels=0` turns it off.
Where the host is slower than the device, layers take time in proportion to their kernels, not to this.

Not modelled: kernels inside a layer one by one; Winograd's fewer multiplications; small kernels that fill no device.
"""

from simulator.errors import number, whole
from simulator.presets.facts import LayerFacts, ModelFacts


def layer_shares(
    facts: ModelFacts, peak_flops_per_s: float, memory_bytes_per_s: float, batch: int, *, tile_channels: int = 64
) -> tuple[tuple[float, float], ...]:
    """Per layer in forward order: (forward_weight_s, backward_weight_s). Raises InputError on an impossible rate."""
    peak = number(peak_flops_per_s, "peak_flops_per_s", exclusive=True)
    memory = number(memory_bytes_per_s, "memory_bytes_per_s", exclusive=True)
    whole(batch, "batch", minimum=1)
    whole(tile_channels, "tile_channels")
    channels = {parameter.name: parameter.shape[0] for parameter in facts.parameters if len(parameter.shape) > 2}

    def weights(layer: LayerFacts) -> tuple[float, float]:
        found = [channels[name] for name in layer.parameters if name in channels]
        rate = peak * found[0] / (found[0] + tile_channels) if found else peak
        return (
            max(batch * layer.forward_flops_per_sample / rate, layer.forward_bytes(batch) / memory),
            max(batch * layer.backward_flops_per_sample / rate, layer.backward_bytes(batch) / memory),
        )

    return tuple(weights(layer) for layer in facts.layers)
