"""Runs transfers and computations that are written down in a file, to compare the network with other simulators.

The format is that of the reference cases in `tests/data/simgrid`: each case has a platform (hosts, one-way links,
routes as lists of links) and tasks (`transfer` or `compute`, with `after` and `not_before_s`).

Not modelled: anything but the network; a computation lasts its given duration.
"""

from pathlib import Path
from typing import Any, NamedTuple

from simulator.cluster import Device, Link, Route
from simulator.engine import Engine
from simulator.errors import InputError, number, parse_json, require, whole
from simulator.verbs import Handle, Program, busy, fire, isend, wait


class _Platform(NamedTuple):
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    routes: dict[tuple[str, str], Route]

    def route(self, source: int, target: int) -> Route:
        names = self.devices[source].name, self.devices[target].name
        if names not in self.routes:
            raise InputError(f"no route from {names[0]} to {names[1]}. Every transfer needs a route. Add one.")
        return self.routes[names]


def run_file(path: str | Path) -> dict[str, dict[str, Any]]:
    """`{case name: {"finish_s": [in task order], "makespan_s": ...}}`. Raises InputError on a damaged file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"{path}: {problem}. A readable JSON file is needed. Check the path.") from None
    try:
        cases = parse_json(text, str(path))["cases"]
        return {case["name"]: run_case(case) for case in cases}
    except (KeyError, TypeError, AttributeError) as problem:
        raise InputError(f"{path}: {problem!r} is missing or damaged. A file of cases with platform and tasks is "
                         "needed. Compare it with tests/data/simgrid.") from None  # fmt: skip


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """The finish of each task of one case, in task order, and the last of them."""
    platform = _platform(case["platform"])
    hosts = {device.name: index for index, device in enumerate(platform.devices)}
    engine = Engine(platform)
    tasks = case["tasks"]
    done = {task["id"]: Handle(task["id"]) for task in tasks}
    require(len(done) == len(tasks), f"case {case['name']!r} repeats a task id", "ids are unique", "Rename one")
    finish: dict[str, float] = {}
    for task in tasks:
        for name in task.get("after", ()):
            require(name in done, f"task {task['id']!r} waits for {name!r}", "no such task", "Correct `after`")
        start = number(task.get("not_before_s", 0.0), f"not_before_s of {task['id']!r}")
        program = _task(engine, task, done, hosts, finish)
        engine.start(program, name=task["id"], rank=0, device=0, resource=task["id"], at_s=start)
    trace = engine.run()
    require(trace.outcome == "finished", f"case {case['name']!r}: tasks wait for each other in a circle",
            "`after` must not form one", "Correct `after`")  # fmt: skip
    times = [finish[task["id"]] for task in tasks]
    return {"finish_s": times, "makespan_s": max(times, default=0.0)}


def _platform(data: dict[str, Any]) -> _Platform:
    links = tuple(Link(link["name"], "", link["bandwidth_bytes_per_s"], link["latency_s"]) for link in data["links"])
    index = {link["name"]: number for number, link in enumerate(data["links"])}
    routes = {}
    for route in data["routes"]:
        for name in route["links"]:
            require(name in index, f"a route uses link {name!r}", "no such link", "Add it to links")
        path = tuple(index[name] for name in route["links"])
        routes[route["src"], route["dst"]] = Route(path, sum(links[i].latency_s for i in path),
                                                   min((links[i].bandwidth_bytes_per_s for i in path),
                                                       default=float("inf")))  # fmt: skip
    return _Platform(tuple(Device(name) for name in data["hosts"]), links, routes)


def _task(engine: Engine, task: dict[str, Any], done: dict[str, Handle], hosts: dict[str, int],
          finish: dict[str, float]) -> Program:  # fmt: skip
    yield wait(*(done[name] for name in task.get("after", ())))
    if task["kind"] == "compute":
        yield busy(number(task["duration_s"], f"duration_s of {task['id']!r}"), task["id"])
    elif task["kind"] == "transfer":
        size = whole(task["size_bytes"], f"size_bytes of {task['id']!r}")
        for end in (task["src"], task["dst"]):
            require(end in hosts, f"task {task['id']!r} names host {end!r}", "no such host", "Add it to hosts")
        channel = engine.channel(hosts[task["src"]], hosts[task["dst"]], "copy")
        sent = yield isend(channel, size)
        yield wait(sent)
    else:
        raise InputError(f"task {task['id']!r} is of kind {task['kind']!r}. Known: transfer, compute. Correct `kind`.")
    finish[task["id"]] = engine.now
    yield fire(done[task["id"]])
