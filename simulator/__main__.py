"""The command line: `python -m simulator compare | network | buckets | topology | nccl-tests | list`.

Exit status 0; 2 with one line on standard error when an input breaks a rule; 1 when the output cannot be written.
Files that a command writes are named on standard error.
"""

import argparse
import io
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simulator.buckets import NEWEST_TORCH, BucketOptions, torch_release
from simulator.errors import InputError

DEFAULT_BATCH = 32
"""Rows per device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # µ on a terminal that knows only ASCII
    try:
        try:
            options = _parser().parse_args(arguments)
            options.run(options)
        finally:
            sys.stdout.flush()
    except InputError as problem:
        _say(f"error: {problem}")
        return 2
    except BrokenPipeError:
        _silence()
    except OSError as problem:
        _silence()
        _say(f"error: {problem.strerror or problem}: the output could not be written. Write it elsewhere or make room.")
        return 1
    return 0


def _say(line: str) -> None:
    """One line on standard error; what a terminal would obey instead of show is escaped."""
    print("".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line), file=sys.stderr)


def _silence() -> None:
    """Let nothing more be written to standard output, which would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """argparse keeps silent when its help cannot be written."""

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file or sys.stdout)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m simulator", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compare(commands.add_parser("compare", help="one training step under both strategies, side by side"))
    network = commands.add_parser("network", help="run the transfers of a file through the network model")
    network.add_argument("file")
    network.set_defaults(run=_network)
    buckets = commands.add_parser("buckets", help="the gradient buckets of a model, in launch order")
    buckets.add_argument("model", help="a parameter table (*.json) or a preset's name")
    _add_bucket_options(buckets)
    buckets.add_argument("--iterations", type=int, default=3, help="how many iterations to list (default 3)")
    buckets.set_defaults(run=_buckets)
    topology = commands.add_parser("topology", help="GPUs, links and the best ring of a `nvidia-smi topo -m` matrix")
    topology.add_argument("file", help="the matrix as text, or NCCL's topology XML")
    topology.add_argument("--complete", action="store_true", help="fill missing rows by symmetry, where that is safe")
    topology.add_argument("--json", action="store_true", help="print facts for another program")
    topology.set_defaults(run=_topology)
    tables = commands.add_parser("nccl-tests", help="the tables of nccl-tests' or gloo's benchmark output")
    tables.add_argument("file")
    tables.add_argument("--in-place", action="store_true", help="the in-place columns (default: out of place)")
    tables.add_argument("--json", action="store_true", help="print numbers for another program")
    tables.set_defaults(run=_nccl_tests)
    names = commands.add_parser("list", help="the models and clusters that are known by name")
    names.set_defaults(run=_list)
    return parser


def _add_bucket_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bucket-cap-mb", type=float, help="MiB, as in torch; left out: 1 MiB first, then 25")
    parser.add_argument("--find-unused-parameters", action="store_true")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--torch-version", help="whose bucket rule applies (default: the installed torch's, else 2.14)")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="resnet50", help="a preset's name, or a profile (*.json)")
    parser.add_argument("--cluster", default="8xV100-pcie", help="a preset's name")
    parser.add_argument("--devices", type=int, help="use only the first so many devices")
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--batch", type=int, help="rows per device (default 32); DataParallel gets N times as many")
    rows.add_argument("--global-batch", type=int, help="rows in all, for both strategies")
    parser.add_argument("--iteration", type=int, default=3, help="which iteration; 0 is the first (default: steady)")
    parser.add_argument("--precision", help="fp32 (default), amp, ...; a profile has its own")
    parser.add_argument("--optimizer", default="momentum", help="none, sgd, momentum or adam")
    parser.add_argument("--algorithm", default="auto", help="auto, ring, tree or nvls")
    parser.add_argument("--serial", action="store_true", help="no overlap: all-reduce after the whole backward")
    parser.add_argument("--inputs", default="device", help="where the batch lies when the step begins: device or host")
    parser.add_argument("--transport", default="nccl", help="DataParallel: nccl or peer_copy")
    parser.add_argument("--loss-inside", action="store_true", help="DataParallel: the module computes its loss")
    _add_bucket_options(parser)
    parser.add_argument("--gradient-as-bucket-view", action="store_true")
    parser.add_argument("--keep-gradients", action="store_true", help="zero_grad(set_to_none=False)")
    parser.add_argument("--construction", action="store_true", help="show DDP's constructor before the iteration")
    parser.add_argument("--json", action="store_true", help="print numbers for another program")
    parser.add_argument("--chrome-trace", metavar="FILE", help="write the steps for Perfetto")
    parser.add_argument("--figure", metavar="FILE", help="write the timeline as *.svg or *.png")
    parser.add_argument("--language", default="en", choices=("en", "zh"))
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> None:
    from simulator.compare import compare
    from simulator.presets.build import build_scenario
    from simulator.scenario import DataParallel, DistributedDataParallel

    _check_files(options)
    base = build_scenario(
        options.model, options.cluster, devices=options.devices,
        batch_per_device=DEFAULT_BATCH if options.batch is None else options.batch,
        global_batch=options.global_batch, optimizer=options.optimizer, algorithm=options.algorithm,
        serial=options.serial, inputs=options.inputs, iterations=(options.iteration,),
        precision="fp32" if options.precision is None else options.precision,
        construction=options.construction, set_to_none=not options.keep_gradients,
    )  # fmt: skip
    own = base.model.precision
    if options.precision not in (None, own) and options.model.endswith(".json"):
        raise InputError(f"--precision {options.precision} with {options.model}, whose precision is {own!r}: a profile's "
                         "times hold for one precision. Leave --precision out, or give another profile.")  # fmt: skip
    comparison = compare(base, (
        DataParallel(options.transport, loss_inside=options.loss_inside),
        DistributedDataParallel(_bucket_options(options), options.gradient_as_bucket_view),
    ))  # fmt: skip
    if options.chrome_trace is not None:
        from simulator.views.chrome_trace import write_comparison

        write_comparison(comparison, Path(options.chrome_trace))
        _say(f"wrote {options.chrome_trace}")
    if options.figure is not None:
        from simulator.views.comparison_figure import save_comparison

        save_comparison(comparison, Path(options.figure), options.language)
        _say(f"wrote {options.figure}")
    if options.json:
        print(json.dumps(comparison.as_json(), allow_nan=False))
        return
    from simulator.views.report import comparison_text

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(comparison_text(comparison, language=options.language, colour=colour))


def _check_files(options: argparse.Namespace) -> None:
    """What cannot be written is said before the simulation takes its time."""
    if options.chrome_trace is not None:
        from simulator.views.chrome_trace import check_trace_file

        check_trace_file(options.chrome_trace)
    if options.figure is not None:
        from simulator.views.save import check_figure

        check_figure(options.figure)


def _network(options: argparse.Namespace) -> None:
    from simulator.network_file import run_file

    print(json.dumps(run_file(options.file), allow_nan=False))


def _buckets(options: argparse.Namespace) -> None:
    from simulator.bucket_file import bucket_lists, read_parameter_table
    from simulator.presets.facts import load_facts

    if options.model.endswith(".json") or Path(options.model).exists():
        table = read_parameter_table(options.model)
        parameters, ready_order = table.parameters, table.ready_order
    else:
        facts = load_facts(options.model)
        parameters, ready_order = facts.parameters, facts.ready_order
    print(json.dumps(bucket_lists(parameters, ready_order, _bucket_options(options), options.iterations)))


def _topology(options: argparse.Namespace) -> None:
    from simulator.importers.topology import topology_json, topology_text

    if options.json:
        print(json.dumps(topology_json(options.file, complete=options.complete), allow_nan=False))
    else:
        print(topology_text(options.file, complete=options.complete))


def _nccl_tests(options: argparse.Namespace) -> None:
    from simulator.importers.nccl_tests import nccl_tests_json, nccl_tests_text

    if options.json:
        print(json.dumps(nccl_tests_json(options.file, in_place=options.in_place), allow_nan=False))
    else:
        print(nccl_tests_text(options.file, in_place=options.in_place))


def _bucket_options(options: argparse.Namespace) -> BucketOptions:
    return BucketOptions(options.bucket_cap_mb, find_unused_parameters=options.find_unused_parameters,
                         static_graph=options.static_graph, torch_version=_torch_version(options))  # fmt: skip


def _torch_version(options: argparse.Namespace) -> str:
    """The version whose bucket rule applies: the one asked for, else the installed one, else the newest known."""
    if options.torch_version is not None:
        return str(options.torch_version)
    newest = ".".join(map(str, NEWEST_TORCH))
    try:
        installed = version("torch")
        torch_release(installed)
    except PackageNotFoundError:
        return newest
    except InputError:
        print(f"note: torch {installed} is not known here; the bucket rule is that of {newest}", file=sys.stderr)
        return newest
    return installed


def _list(_: argparse.Namespace) -> None:
    from simulator.presets.clusters import CLUSTERS
    from simulator.presets.facts import MODEL_NAMES

    for title, names in (("Models", MODEL_NAMES), ("Clusters", CLUSTERS)):
        lines = textwrap.TextWrapper(78, initial_indent=f"{title}: ", subsequent_indent="  ", break_on_hyphens=False)
        print(lines.fill(", ".join(names)))


if __name__ == "__main__":
    sys.exit(main())
