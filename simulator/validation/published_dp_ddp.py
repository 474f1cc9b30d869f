"""DataParallel beside DistributedDataParallel on one machine: GPT-2 on two TITAN RTX, with and without NVLink.

The authors state model, tokens, batch, link and the step of one GPU. The DDP rows of 128 tokens fixed what NCCL
reaches of both links, and that nothing overlaps there (`serial`); DataParallel's rows, 256, 512 and 1024 tokens are
predicted. The Trainer computes the loss inside the module, so that one number a replica is gathered.

Not modelled: the logits, which the Trainer gathers too, without a gradient: 3 to 9 ms.
"""

from collections.abc import Iterator
from functools import cache

from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.presets.machines import host_for
from simulator.presets.models import load_model
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Scenario, SingleDevice, Strategy
from simulator.simulate import simulate
from simulator.validation.published_rows import FITTED, PREDICTED, Family, Prediction, left_of, published

LONGEST, FIXED = 1024, 128


def families() -> list[Family]:
    """Steps, and what DataParallel's takes over DDP's."""
    rows = tuple(_rows())
    return [Family("DP against DDP, steps", rows, {PREDICTED: 0.10}, "the aim", inputs=4, left=left_of("dp_ddp"),
                   fit="DDP at 128 tokens, with and without NVLink, fixed both links and that nothing overlaps")]  # fmt: skip


def _rows() -> Iterator[Prediction]:
    for source, entry in published("dp_ddp")["sets"].items():
        for mode, tokens, ms in entry["rows"]:
            if mode != "1 GPU":
                how = FITTED if tokens == FIXED and mode.startswith("DDP") else PREDICTED
                yield Prediction(mode, f"GPT-2, {tokens} tokens, {mode}", how, step_s(mode, tokens), ms * 1e-3, source)


@cache
def step_s(mode: str, tokens: int) -> float:
    """Seconds of a step of 4 sequences a GPU."""
    cluster = load_cluster("2xTITAN-RTX-pcie" if mode.endswith("access") else "2xTITAN-RTX-nvlink")
    strategy: Strategy = DataParallel(loss_inside=True) if mode == "DP" else DistributedDataParallel()
    if mode == "1 GPU":
        cluster, strategy = cluster.take(1), SingleDevice()
    model = load_model("gpt2" if tokens == LONGEST else f"gpt2-{tokens}", "TITAN-RTX")
    return simulate(Scenario(model, cluster, strategy, backend_for(cluster, serial=True), 4,
                             optimizer=OPTIMIZERS["adam"], host=host_for(cluster))).end_s  # fmt: skip
