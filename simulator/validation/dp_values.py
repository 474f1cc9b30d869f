"""DataParallel's arithmetic beside one device's: the rows of each device, and the gradients.

The simulator says that torch.chunk's rule decides the rows (so a device may stay idle even when there are more rows
than devices), and that the sum of the replicas' gradients is the gradient of the whole batch. Of whole numbers it is so
bit for bit, of real numbers to rounding.

Not modelled: BatchNorm, which makes DataParallel's gradient another one.
"""

from collections.abc import Sequence

from simulator.scenario import chunk_rows
from simulator.validation.launch import Workers
from simulator.validation.records import DpCase, DpRecord
from simulator.validation.rows import Row, exact, rounding

WORKER = "simulator.validation.dp_worker:run"
CASES = tuple(
    DpCase(rows, devices) for rows, devices in ((30, 4), (7, 4), (9, 4), (3, 4), (1, 4), (10, 8), (17, 8), (8, 2))
)


def record(workers: Workers) -> list[DpRecord]:
    """All cases, in one process."""
    found: list[DpRecord] = workers.run(WORKER, CASES, world_size=1)[0]
    return found


def compare(records: Sequence[DpRecord]) -> list[Row]:
    """Rows, gradients of whole numbers, gradients of real numbers."""
    rows: dict[str, object] = {}
    found: dict[str, object] = {}
    one: dict[str, object] = {}
    parallel: dict[str, object] = {}
    errors: dict[str, float] = {}
    for case, record in zip(CASES, records, strict=True):
        label = f"{case.rows} rows on {case.devices} devices"
        rows[label] = chunk_rows(case.rows, case.devices)
        found[label] = record.rows + (0,) * (case.devices - len(record.rows))
        for number, (ours, theirs) in enumerate(record.whole):
            parallel[f"{label}, tensor {number}"], one[f"{label}, tensor {number}"] = ours, theirs
        errors |= {f"{label}, tensor {number}": error for number, error in enumerate(record.rounding)}
    return [exact("DP: rows of each device", rows, found, "batches"),
            exact("DP: sum of gradients, whole numbers", one, parallel, "tensors"),
            rounding("DP: sum of gradients, real numbers", errors, "tensors")]  # fmt: skip
