"""Steps of one device: the row that fixes each preset model on a device, and the rows that follow.

`simulator.presets.calibration` has both; a preset's one number is met at the fixing row and predicts other batches and
other authors' rows. Mixed precision stands apart: its rows differ by twice among themselves, by memory layout.

Not modelled: memory layouts, clocks, the software's age.
"""

from collections.abc import Iterator

from simulator.cluster import Cluster, Device
from simulator.presets.calibration import CALIBRATION, Row
from simulator.presets.clusters import load_cluster
from simulator.presets.facts import load_facts
from simulator.presets.machines import host_for
from simulator.presets.models import load_model
from simulator.scenario import OPTIMIZERS, Scenario, SingleDevice
from simulator.simulate import simulate
from simulator.validation.published_rows import FITTED, PREDICTED, Family, Prediction

MIXED = {"amp", "bf16"}
CAUSES = {"resnet50": "layout, software and clocks: published rows of one model on one device differ by as much"}
HOST_LINK = {"A100": "4xA100", "2080Ti": "4x2080Ti-pcie"}


def families() -> list[Family]:
    """fp32 (and TF32), then mixed precision."""
    rows = list(_rows())
    fit = "one row for each model, device and precision (simulator.presets.calibration)"
    return [
        Family("One device, fp32", tuple(row for mixed, row in rows if not mixed), {PREDICTED: 0.12},
               "published rows of one model and device differ by a fifth", fit=fit, causes=CAUSES),
        Family("One device, mixed precision", tuple(row for mixed, row in rows if mixed), {PREDICTED: 0.30},
               "channels-last programs are up to twice as fast as the rows that fix", fit=fit, causes=CAUSES),
    ]  # fmt: skip


def _rows() -> Iterator[tuple[bool, Prediction]]:
    for (model, kind, precision), calibration in CALIBRATION.items():
        for how, rows in ((FITTED, (calibration.row,)), (PREDICTED, calibration.predicts)):
            for row in rows:
                seconds = row.step_s(load_facts(model).tokens_per_sample) / row.work
                yield precision in MIXED, Prediction(f"{model}, {kind}", f"{model} {kind} {precision}: {row.text}", how,
                                                     step_s(model, kind, precision, row), seconds, row.source)  # fmt: skip


def step_s(model: str, kind: str, precision: str, row: Row) -> float:
    """Simulated seconds of the row's step, its sample as long as the recorded one."""
    cluster = load_cluster(HOST_LINK[kind]).take(1) if row.inputs_s else Cluster(kind, (Device("gpu0", kind),))
    return simulate(Scenario(load_model(model, kind, precision=precision), cluster, SingleDevice(),
                             batch_per_device=row.batch, optimizer=OPTIMIZERS[row.optimizer], host=host_for(cluster),
                             inputs="host" if row.inputs_s else "device")).end_s  # fmt: skip
