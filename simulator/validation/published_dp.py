"""DataParallel's steps of 32 torchvision models on two machines, at 1 to 4 GPUs, forward alone and training.

The authors state the model, 12 images a GPU and the step of one GPU. A model's profile is built from its counts of
parameters and buffers and its two steps at one GPU. Whether the host or the device sets their pace is not printed; a
host's launches take at most a line over the number of tensors (LINES, through the even models that the host bounds):
a step above it is the device's, a step below it the host's, and then the device's seconds are taken as half.

Fitted: the host's constants of both machines (`simulator.presets.machines`), on the even models (sorted names) in fp32
at 2 and 4 GPUs. Predicted: the odd models, 3 GPUs, and every model in float16 and float64.

Not modelled: three RTX 2080 Ti that take longer than four whenever a model is large; cuDNN's choice of an algorithm.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from simulator.model import DTYPE_BYTES, Cost, Layer, ModelProfile, Parameter
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.presets.machines import host_for
from simulator.scenario import OPTIMIZERS, DataParallel, Scenario
from simulator.simulate import simulate
from simulator.validation.published_rows import FITTED, PREDICTED, Family, Prediction, left_of, published, shared

MACHINES = ("4xA100", "4x2080Ti-pcie")
PHASES = ("train", "forward_only")
BATCH, IMAGE_ELEMENTS, CLASSES = 12, 3 * 224 * 224, 1000
LINES = {("4xA100", "forward_only"): (2.2e-3, 56e-6), ("4xA100", "train"): (2.5e-3, 210e-6),
         ("4x2080Ti-pcie", "forward_only"): (0.0, 50e-6), ("4x2080Ti-pcie", "train"): (0.0, 232e-6)}  # fmt: skip
"""Seconds, and seconds per parameter tensor, that the host takes at most to launch a step."""
COUNTS_BATCHES = 227 / 174
"""Kernels of ResNet-50's forward in training, where normalisation counts its batches, over those without."""
HIDDEN = 0.5
LAYERS = 32
THREE = "three of these GPUs take longer than four whenever a model is large; not explained"
CAUSES = {
    "4xA100": "the part of a step that the host takes is bounded, not known: a few large kernels launch faster",
    "4x2080Ti-pcie, train, 3": THREE,
    "4x2080Ti-pcie, forward_only, 3": THREE,
    "4x2080Ti-pcie": "10 ms of the host for any forward, as the fit has it, are too many for small ResNets",
}  # fmt: skip
LINK = {"4xA100": 25e9, "4x2080Ti-pcie": 12e9}
"""Bytes per second from the host, over which the images come."""


def families() -> list[Family]:
    """Steps in fp32, then in the other precisions."""
    fit = "host constants: even models at 2 and 4 GPUs, fp32"
    return [
        Family("DataParallel, fp32", tuple(_rows("float32")), {PREDICTED: 0.10},
               "the aim; odd models and 3 GPUs", inputs=2 * 2 * 32, left=left_of("dpweak"), fit=fit,
               causes=CAUSES),
        Family("DataParallel, fp16 and fp64", tuple(row for dtype in ("float16", "float64") for row in _rows(dtype)),
               {PREDICTED: 0.15}, "no row of these precisions fixed anything", inputs=2 * 2 * 2 * 32, fit=fit,
               causes=CAUSES),
    ]  # fmt: skip


def models() -> list[str]:
    """Sorted names: every second one is fitted."""
    return sorted(shared("dpweak")["models"])


@cache
def steps_ms(dtype: str) -> dict[tuple[str, str, str], list[float]]:
    """By machine, phase and model the milliseconds at 1, 2, 3 and 4 GPUs."""
    if dtype == "float32":
        data = shared("dpweak")
        columns = {name: index for index, name in enumerate(data["columns"])}
        return {(machine, phase, model): row[columns[f"{machine} {phase}"]] for machine in MACHINES for phase in PHASES
                for model, row in data["models"].items()}  # fmt: skip
    return {(entry["machine"], row[2], row[0]): row[3:] for entry in published("dpweak")["sets"].values()
            for row in entry["rows"] if row[1] == dtype}  # fmt: skip


def _rows(dtype: str) -> Iterator[Prediction]:
    source = shared("dpweak")["source"]
    for (machine, phase, model), ms in steps_ms(dtype).items():
        even = models().index(model) % 2 == 0
        for gpus in (2, 3, 4):
            how = FITTED if even and gpus != 3 and dtype == "float32" else PREDICTED
            yield Prediction(f"{machine}, {phase}, {gpus} GPUs",
                             f"{model}, {gpus} GPUs, {machine}, {phase}, {dtype}", how,
                             simulated_s(machine, phase, model, gpus, dtype), ms[gpus - 1] * 1e-3, source)  # fmt: skip


def pieces(model: str, dtype: str = "float32") -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Parameters and buffers of the right number, sum and maximum."""
    tensors, buffers, elements, nbytes, largest = shared("dpweak")["models"][model][:5]
    size, more = divmod(nbytes // 4 - largest, tensors - 1)
    sizes = [size + (index < more) for index in range(tensors - 1)]
    sizes.insert(tensors // 2, largest)
    return (tuple(Parameter(f"p{index}", (size,), dtype) for index, size in enumerate(sizes)),
            tuple(Parameter(f"b{index}", (elements // buffers,), dtype) for index in range(buffers)))  # fmt: skip


@cache
def profile(machine: str, phase: str, model: str, dtype: str = "float32") -> ModelProfile:
    """A model whose step at one GPU is the published one."""
    parameters, buffers = pieces(model, dtype)
    image = IMAGE_ELEMENTS * DTYPE_BYTES[dtype]

    def split(phase: str) -> tuple[float, float]:
        """Seconds of the host and of the device."""
        step = steps_ms(dtype)[machine, phase, model][0] * 1e-3 - BATCH * image / LINK[machine]
        start, slope = LINES[machine, phase]
        line = start + slope * len(parameters)
        return (step, HIDDEN * step) if step < line else (line, step)

    host, forward = split("forward_only")
    backward_host = backward = 0.0
    if phase == "train":
        whole_host, whole = split("train")
        host = min(host * (COUNTS_BATCHES if buffers else 1.0), 0.8 * whole_host)
        forward = min(forward, 0.5 * whole)
        # A device that sets the pace of the step may still have waited for the host in the forward.
        backward_host, backward = whole_host - host, whole - (max(host, forward) if whole > whole_host else forward)
    count = min(LAYERS, len(parameters))
    bounds = [len(parameters) * index // count for index in range(count + 1)]
    layers = tuple(
        Layer(f"layer {index}", tuple(p.name for p in parameters[bounds[index] : bounds[index + 1]]),
              Cost(0.0, forward / count / BATCH), Cost(0.0, backward / count / BATCH),
              host / count, backward_host / count)
        for index in range(count)
    )  # fmt: skip
    return ModelProfile(model, parameters, layers, (), buffers, image, CLASSES * DTYPE_BYTES[dtype])


def simulated_s(machine: str, phase: str, model: str, gpus: int, dtype: str = "float32") -> float:
    """Seconds of a step."""
    cluster = load_cluster(machine).take(gpus)
    scenario: dict[str, Any] = {"optimizer": OPTIMIZERS["none"], "host": host_for(cluster), "inputs": "host"}
    trace = simulate(Scenario(profile(machine, phase, model, dtype), cluster, DataParallel(), backend_for(cluster),
                              BATCH, **scenario))  # fmt: skip
    if phase == "train":
        return trace.end_s
    return max(span.end_s or 0.0 for span in trace.spans if span.kind in ("forward", "gather"))
