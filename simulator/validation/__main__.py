"""The simulator proves itself on your machine: `python -m simulator.validation`.

Starts real ranks with torch.distributed (gloo), runs what the simulator simulates, and prints what each says and how far
apart they are. `published` predicts other people's published measurements instead. Exit status 0; 1 when a verdict fails
or a rank does; 2 for a wrong call; 130 after Ctrl-C.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import InputError
from simulator.validation.launch import WorkerError, Workers
from simulator.validation.progress import Bar
from simulator.validation.report import Report
from simulator.validation.suite import Suite


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it all, or `published ...`. Returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["published"]:
        from simulator.validation.published import run_published

        return run_published(given[1:])
    options = _parser().parse_args(given)
    try:
        report = _validate(Suite(options.quick, (options.only,) if options.only else ("exact", "times")))
        _write(report, options)
    except InputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except WorkerError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; every worker has ended", file=sys.stderr)
        return 130
    return 0 if report.passes else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator.validation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer ranks, cases and rounds: under a minute")
    parser.add_argument("--only", choices=("exact", "times"), help="values, buckets and collectives alone; or times")
    parser.add_argument("--json", metavar="FILE", help="write rows and provenance; - prints them instead of the table")
    parser.add_argument(
        "--figure", metavar="FILE", help="write the predicted above the measured timeline, *.svg or *.png"
    )
    parser.add_argument("--trace", metavar="FILE", help="write the measured step as a trace (JSON)")
    return parser


def _validate(suite: Suite) -> Report:
    steps = suite.steps()
    bar = Bar(sum(weight for _, weight, _ in steps))
    try:
        with Workers() as workers:
            for name, weight, step in steps:
                bar.start(name, weight)
                step(workers, bar.show)
    finally:
        bar.close()
    return suite.report()


def _write(report: Report, options: argparse.Namespace) -> None:
    text = json.dumps(report.as_json(), indent=1, allow_nan=False)
    print(text if options.json == "-" else report.text())
    if options.json and options.json != "-":
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.trace and report.traces:
        Path(options.trace).write_text(report.traces[-1][1].to_json() + "\n", encoding="utf-8")
    if options.figure and report.traces:
        from simulator.views.gantt import timeline_figure
        from simulator.views.save import save_figure

        title = "One DDP step on this machine: predicted from compute and all-reduce alone, and measured"
        save_figure(timeline_figure(report.traces, title=title), Path(options.figure))


if __name__ == "__main__":
    sys.exit(main())
