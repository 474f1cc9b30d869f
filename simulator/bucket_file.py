"""A table of parameters as a JSON file, and the sizes of its gradient buckets: `python -m simulator buckets FILE.json`.

The file names each tensor in registration order, for a model that need not be here:

    {"params": [{"name": "fc.weight", "shape": [10, 512], "dtype": "float32", "requires_grad": true},
                {"name": "head.weight", "shape": [10, 512], "dtype": "float32", "requires_grad": true,
                 "tied_to": "fc.weight"}],
     "ready_order": ["fc.weight"]}

`ready_order`, the trained parameters as their gradients become ready in a real backward, may be left out: then it is
the reverse of registration, which gives the same sizes for most models but not for all (VGG-16 and AlexNet differ: a
convolution's weight is ready before its bias, a Linear's bias before its weight). `sparse` may mark a sparse gradient.
Many equal tensors: `"params": {"repeat": 3000, "shape": [50], "dtype": "float32", "name_pattern": "ps.{i}"}`. Other
keys are left alone.

Not modelled: several devices, as in `buckets`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.buckets import BucketOptions, buckets_at, rebuild_iteration, trained
from simulator.errors import InputError, require, unknown, whole
from simulator.model import DTYPE_BYTES, Parameter, check_ready_order, check_ties, in_words

FORMAT = 'Give {"params": [{"name", "shape", "dtype", "requires_grad"}, ...]}, see `simulator/bucket_file.py`'
MOST_REPEATS = 100_000
DEFAULT_ITERATIONS = 3
MOST_ITERATIONS = 10_000
MOST_SIZES = 5_000_000
"""In all iterations together: what a list of them may hold."""


@dataclass(frozen=True)
class ParameterTable:
    """What a file holds."""

    parameters: tuple[Parameter, ...]
    ready_order: tuple[str, ...] | None = None


def read_parameter_table(path: str | Path) -> ParameterTable:
    """Read a file. Raises InputError, whose message begins with the file's name."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}. Give a JSON file with a table of parameters.") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}). Repair it or write it again.") from error
    try:
        return parameter_table(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parameter_table(content: object) -> ParameterTable:
    """The table in a file's JSON value. Raises InputError."""
    require(isinstance(content, dict) and "params" in content, "the file", 'it must be an object with "params"', FORMAT)
    assert isinstance(content, dict)
    params = content["params"]
    if isinstance(params, dict):
        parameters = _repeated(params)
    else:
        given = f"params is {in_words(params)}"
        require(isinstance(params, list), given, "a list or an object is needed", FORMAT)
        parameters = tuple(_parameter(entry, f"params[{position}]") for position, entry in enumerate(params))
    check_ties(parameters)
    ready_order = content.get("ready_order")
    if ready_order is None:
        return ParameterTable(parameters)
    require(isinstance(ready_order, list) and all(isinstance(name, str) for name in ready_order), "ready_order",
            "a list of names is needed", "Leave it out to use the reverse order of registration")  # fmt: skip
    check_ready_order(ready_order, {parameter.name for parameter in trained(parameters)}, "ready_order")
    return ParameterTable(parameters, tuple(ready_order))


def _fields(entry: object, where: str, needed: Sequence[str]) -> Mapping[str, object]:
    require(isinstance(entry, dict), f"{where} is {in_words(entry)}", "an object is needed", FORMAT)
    assert isinstance(entry, dict)
    missing = [key for key in needed if key not in entry]
    require(not missing, f"{where} has no {', '.join(map(repr, missing))}", f"it needs {', '.join(needed)}", FORMAT)
    return entry


def _text(value: object, where: str) -> str:
    require(isinstance(value, str), f"{where} is {in_words(value)}", "text is needed", "Put it in quotes")
    assert isinstance(value, str)
    return value


def _flag(value: object, where: str) -> bool:
    require(isinstance(value, bool), f"{where} is {in_words(value)}", "true or false is needed", f"Change {where}")
    return bool(value)


def _shape(value: object, where: str) -> tuple[int, ...]:
    require(
        isinstance(value, list),
        f"{where} is {in_words(value)}",
        "a list of sizes is needed",
        "Write it like [64, 3, 7, 7]",
    )
    assert isinstance(value, list)
    return tuple(whole(size, f"a size in {where}") for size in value)


def _dtype(value: object, where: str) -> str:
    dtype = _text(value, where).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise unknown(where, dtype, DTYPE_BYTES)
    return dtype


def _parameter(entry: object, where: str) -> Parameter:
    fields = _fields(entry, where, ("name", "shape", "dtype", "requires_grad"))
    tied_to = fields.get("tied_to")
    return Parameter(
        _text(fields["name"], f"{where}.name"),
        _shape(fields["shape"], f"{where}.shape"),
        _dtype(fields["dtype"], f"{where}.dtype"),
        _flag(fields["requires_grad"], f"{where}.requires_grad"),
        None if tied_to is None else _text(tied_to, f"{where}.tied_to"),
        _flag(fields.get("sparse", False), f"{where}.sparse"),
    )


def _repeated(params: object) -> tuple[Parameter, ...]:
    fields = _fields(params, "params", ("repeat", "shape", "dtype", "name_pattern"))
    repeat = whole(fields["repeat"], "params.repeat")
    require(repeat <= MOST_REPEATS, f"params.repeat = {repeat}", f"at most {MOST_REPEATS:,}", "Use a smaller number")
    pattern = _text(fields["name_pattern"], "params.name_pattern")
    require("{i}" in pattern, f"params.name_pattern = {pattern!r}", "it must hold {i}, which becomes the number",
            'Write it like "ps.{i}"')  # fmt: skip
    shape, dtype = _shape(fields["shape"], "params.shape"), _dtype(fields["dtype"], "params.dtype")
    requires_grad = _flag(fields.get("requires_grad", True), "params.requires_grad")
    return tuple(Parameter(pattern.replace("{i}", str(i)), shape, dtype, requires_grad) for i in range(repeat))


def bucket_lists(
    parameters: Sequence[Parameter],
    ready_order: Sequence[str] | None,
    options: BucketOptions,
    iterations: int = DEFAULT_ITERATIONS,
) -> dict[str, list[list[int]]]:
    """Bytes of each bucket in launch order, for each of the first iterations. Raises InputError."""
    whole(iterations, "iterations", minimum=1)
    require(iterations <= MOST_ITERATIONS, f"iterations = {iterations}", f"at most {MOST_ITERATIONS:,}",
            "Use a smaller number: the buckets are the same after the third iteration")  # fmt: skip
    rebuilt = rebuild_iteration(options)
    changes = {0} if rebuilt is None else {0, rebuilt}
    sizes: list[int] = []
    lists: list[list[int]] = []
    for iteration in range(iterations):
        if iteration in changes:
            sizes = [bucket.nbytes for bucket in buckets_at(parameters, ready_order, options, iteration)]
            require(len(sizes) * iterations <= MOST_SIZES, f"{iterations} iterations of {len(sizes)} buckets",
                    f"at most {MOST_SIZES:,} sizes are listed", "List fewer iterations")  # fmt: skip
        lists.append(list(sizes))
    return {"iterations": lists}
