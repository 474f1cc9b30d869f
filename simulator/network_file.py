"""Runs transfers and computations that are written down in a file, to compare the network with other simulators.

The format is that of the reference cases in `tests/data/simgrid`: each case has a platform (hosts, one-way links,
routes as lists of links) and tasks (`transfer` or `compute`, with `after` and `not_before_s`). Other keys are left
alone.

Not modelled: anything but the network; a computation lasts its given duration.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from simulator.cluster import Device, Link, Route
from simulator.engine import Engine
from simulator.errors import InputError, number, parse_json, require, whole
from simulator.model import in_words, printable
from simulator.verbs import Handle, Program, busy, fire, isend, wait

FORMAT = "Compare it with tests/data/simgrid"


class _Platform(NamedTuple):
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    routes: dict[tuple[str, str], Route]

    def route(self, source: int, target: int) -> Route:
        names = self.devices[source].name, self.devices[target].name
        if names not in self.routes:
            raise InputError(f"no route from {names[0]} to {names[1]}. Every transfer needs a route. Add one.")
        return self.routes[names]


class _Task(NamedTuple):
    id: str
    after: tuple[str, ...]
    not_before_s: float
    transfer: bool
    hosts: tuple[int, ...]
    """Source and target of a transfer."""
    amount: float
    """Bytes of a transfer, seconds of a computation."""


def run_file(path: str | Path) -> dict[str, dict[str, Any]]:
    """`{case name: {"finish_s": [in task order], "makespan_s": ...}}`. Raises InputError that names file and case."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"{path}: {reason}. A readable JSON file is needed. Check the path.") from None
    content = parse_json(text, str(path))
    try:
        cases = _list(_object(content, "the file"), "cases", "")
        names = [_text(_object(case, f"cases[{place}]"), "name", f"cases[{place}]") for place, case in enumerate(cases)]
        _unique(names, "case name")
        return {name: run_case(case) for name, case in zip(names, cases)}
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """The finish of each task of one case, in task order, and the last of them. Raises InputError."""
    name = _text(_object(case, "the case"), "name", "the case")
    try:
        return _run(case)
    except InputError as problem:
        raise InputError(f"case {name!r}: {problem}") from None


def _run(case: dict[str, Any]) -> dict[str, Any]:
    platform = _platform(_object(_field(case, "platform", ""), "platform"))
    hosts = {device.name: index for index, device in enumerate(platform.devices)}
    tasks = [_task(_object(task, f"tasks[{place}]"), f"tasks[{place}]", hosts)
             for place, task in enumerate(_list(case, "tasks", ""))]  # fmt: skip
    engine = Engine(platform)
    _unique([task.id for task in tasks], "task id")
    done = {task.id: Handle(task.id) for task in tasks}
    finish: dict[str, float] = {}
    for task in tasks:
        for name in task.after:
            require(name in done, f"task {task.id!r} waits for {name!r}", "no such task", "Correct `after`")
        program = _program(engine, task, done, finish)
        engine.start(program, name=task.id, rank=0, device=0, resource=task.id, at_s=task.not_before_s)
    trace = engine.run()
    require(trace.outcome == "finished", "tasks wait for each other in a circle", "`after` must not form one",
            "Correct `after`")  # fmt: skip
    times = [finish[task.id] for task in tasks]
    return {"finish_s": times, "makespan_s": max(times, default=0.0)}


def _platform(data: dict[str, Any]) -> _Platform:
    hosts = _names(data, "hosts", "platform")
    _unique(hosts, "host", "platform.hosts")
    links: list[Link] = []
    index: dict[str, int] = {}
    for place, item in enumerate(_list(data, "links", "platform")):
        where = f"platform.links[{place}]"
        link = _object(item, where)
        name = _text(link, "name", where)
        require(name not in index, f"{where}.name repeats link {name!r}", "names are unique", "Rename one")
        index[name] = place
        links.append(Link(name, "", number(_field(link, "bandwidth_bytes_per_s", where),
                                           f"{where}.bandwidth_bytes_per_s of {name!r}", exclusive=True),
                          number(_field(link, "latency_s", where), f"{where}.latency_s of {name!r}")))  # fmt: skip
    routes: dict[tuple[str, str], Route] = {}
    for place, item in enumerate(_list(data, "routes", "platform")):
        where = f"platform.routes[{place}]"
        route = _object(item, where)
        names = _names(route, "links", where)
        for name in names:
            require(name in index, f"{where}: a route uses link {name!r}", "no such link", "Add it to links")
        _unique(names, "link", f"{where}.links")
        ends = _host(route, "src", where, hosts), _host(route, "dst", where, hosts)
        require(ends not in routes, f"{where} is a second route from {ends[0]!r} to {ends[1]!r}",
                "a pair has one route", "Remove one")  # fmt: skip
        path = tuple(index[name] for name in names)
        routes[ends] = Route(path, sum(links[i].latency_s for i in path),
                             min((links[i].bandwidth_bytes_per_s for i in path), default=float("inf")))  # fmt: skip
    return _Platform(tuple(Device(name) for name in hosts), tuple(links), routes)


def _task(task: dict[str, Any], where: str, hosts: dict[str, int]) -> _Task:
    name, kind = _text(task, "id", where), _text(task, "kind", where)
    after = _names(task, "after", where) if "after" in task else ()
    start = number(task.get("not_before_s", 0.0), f"not_before_s of {name!r}")
    if kind == "compute":
        _host(task, "host", where, hosts)
        return _Task(
            name, after, start, False, (), number(_field(task, "duration_s", where), f"duration_s of {name!r}")
        )
    if kind == "transfer":
        ends = tuple(hosts[_host(task, end, where, hosts)] for end in ("src", "dst"))
        return _Task(
            name, after, start, True, ends, whole(_field(task, "size_bytes", where), f"size_bytes of {name!r}")
        )
    raise InputError(f"task {name!r} is of kind {kind!r}. Known: transfer, compute. Correct `kind`.")


def _program(engine: Engine, task: _Task, done: dict[str, Handle], finish: dict[str, float]) -> Program:
    yield wait(*(done[name] for name in task.after))
    if task.transfer:
        sent = yield isend(engine.channel(task.hosts[0], task.hosts[1], "copy"), int(task.amount))
        yield wait(sent)
    else:
        yield busy(task.amount, task.id)
    finish[task.id] = engine.now
    yield fire(done[task.id])


def _object(value: object, where: str) -> dict[str, Any]:
    require(isinstance(value, dict), f"{where} is {in_words(value)}", "an object is needed", FORMAT)
    assert isinstance(value, dict)
    return value


def _field(data: dict[str, Any], key: str, where: str) -> Any:
    require(key in data, f"{where or 'it'} has no {key!r}", "it is needed", FORMAT)
    return data[key]


def _list(data: dict[str, Any], key: str, where: str) -> list[Any]:
    value = _field(data, key, where)
    require(isinstance(value, list), f"{_join(where, key)} is {in_words(value)}", "a list is needed", FORMAT)
    assert isinstance(value, list)
    return value


def _text(data: dict[str, Any], key: str, where: str) -> str:
    return printable(_field(data, key, where), _join(where, key))


def _names(data: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    return tuple(printable(name, f"{_join(where, key)}[{place}]") for place, name in enumerate(_list(data, key, where)))


def _host(data: dict[str, Any], key: str, where: str, hosts: Iterable[str]) -> str:
    name = _text(data, key, where)
    require(name in hosts, f"{_join(where, key)} names host {name!r}", "no such host", "Add it to hosts")
    return name


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _unique(names: Iterable[str], what: str, where: str = "it") -> None:
    seen: set[str] = set()
    for name in names:
        require(name not in seen, f"{where} repeats a {what}, {name!r}", "they are unique", "Rename or remove one")
        seen.add(name)
