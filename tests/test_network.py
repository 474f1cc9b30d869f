"""The network against SimGrid, against exact rational arithmetic, and against what defines max-min fairness."""

import itertools
import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import Engine
from simulator.errors import InputError
from simulator.network_file import run_case, run_file
from simulator.trace import Trace
from simulator.verbs import busy, isend, wait
from tests.samples import Wires, rate_steps, run

SIMGRID = Path(__file__).parent / "data" / "simgrid"
CASES = [(path.name, case["name"]) for path in sorted(SIMGRID.glob("*.json"))
         for case in json.loads(path.read_text())["cases"]]  # fmt: skip


@cache
def expected(file: str) -> dict[str, dict]:
    return {case["name"]: case["expected"] for case in json.loads((SIMGRID / file).read_text())["cases"]}


@cache
def found(file: str) -> dict[str, dict]:
    return run_file(SIMGRID / file)


def test_there_are_52_reference_cases() -> None:
    assert len(CASES) == 52


@pytest.mark.parametrize(("file", "case"), CASES)
def test_every_finish_equals_simgrids(file: str, case: str) -> None:
    wanted = expected(file)[case]
    ours = found(file)[case]
    assert ours["finish_s"] == pytest.approx([task["finish_s"] for task in wanted["tasks"]], rel=1e-9, abs=0)
    assert ours["makespan_s"] == pytest.approx(wanted["makespan_s"], rel=1e-9, abs=0)


# ---- random traffic


@dataclass(frozen=True)
class Sent:
    """One transfer of a random scenario: which links, how many bytes, when issued, its latency, a protocol's share."""

    links: tuple[int, ...]
    nbytes: int
    issue_s: float
    latency_s: float
    fraction: float = 1.0


BANDWIDTHS = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@st.composite
def traffic(draw: st.DrawFn, fractions: tuple[float, ...] = (1.0,)) -> tuple[list[int], list[Sent]]:
    """Links in bytes per second and transfers on them. Times on a coarse grid, so that many things coincide."""
    bandwidths = draw(BANDWIDTHS)
    links = st.lists(st.integers(0, len(bandwidths) - 1), min_size=1, max_size=3, unique=True).map(tuple)
    grid = st.integers(0, 12).map(lambda n: n / 4)
    sent = st.builds(Sent, links, st.integers(0, 40), grid, grid, st.sampled_from(fractions))
    return bandwidths, draw(st.lists(sent, min_size=1, max_size=7))


def run_traffic(bandwidths: list[int], sent: list[Sent]) -> Trace:
    wires = Wires.of(bandwidths, devices=len(sent))
    engine = Engine(wires)
    for index, item in enumerate(sent):
        channel = engine.channel(index, index, "copy", route=wires.path(item.links, item.latency_s),
                                 bandwidth_fraction=item.fraction)  # fmt: skip

        def program(channel=channel, item=item):
            yield wait((yield isend(channel, item.nbytes)))

        engine.start(program(), name="copy", rank=index, device=index, resource="host", at_s=item.issue_s)
    return engine.run()


def exact_finishes(bandwidths: list[int], sent: list[Sent]) -> list[Fraction]:
    """The same traffic in rational arithmetic: the textbook's progressive filling between any two events."""
    begins = [Fraction(item.issue_s) + Fraction(item.latency_s) for item in sent]
    left = [Fraction(item.nbytes) for item in sent]
    ends: dict[int, Fraction] = {}
    now = min(begins)
    while len(ends) < len(sent):
        flowing = [i for i in range(len(sent)) if i not in ends and begins[i] <= now]
        rates: dict[int, Fraction] = {}
        room = [Fraction(bandwidth) for bandwidth in bandwidths]
        while len(rates) < len(flowing):
            unfixed = [i for i in flowing if i not in rates]
            users = {link: [i for i in unfixed if link in sent[i].links] for link in range(len(room))}
            tightest = min((link for link in users if users[link]), key=lambda link: room[link] / len(users[link]))
            share = room[tightest] / len(users[tightest])
            for i in users[tightest]:
                rates[i] = share
                for link in sent[i].links:
                    room[link] -= share
        later = [begins[i] for i in range(len(sent)) if begins[i] > now]
        until = min([now + left[i] / rates[i] for i in flowing] + later)
        for i in flowing:
            left[i] -= rates[i] * (until - now)
            if left[i] == 0:
                ends[i] = until
        now = until
    return [ends[i] for i in range(len(sent))]


@given(traffic())
@settings(max_examples=300, deadline=None)
def test_random_traffic_ends_when_exact_arithmetic_says(scenario: tuple[list[int], list[Sent]]) -> None:
    bandwidths, sent = scenario
    trace = run_traffic(bandwidths, sent)
    ours = {transfer.source: transfer.end_s for transfer in trace.transfers}
    for index, end in enumerate(exact_finishes(bandwidths, sent)):
        assert ours[index] == pytest.approx(float(end), rel=1e-9, abs=1e-12)
    assert trace.end_s == max(ours.values())


@given(traffic(fractions=(1.0, 0.5, 0.92)))
@settings(max_examples=200, deadline=None)
def test_at_every_moment_each_flow_has_a_full_link_on_which_none_is_faster(scenario) -> None:
    """The definition of max-min fairness (Bertsekas and Gallager); a protocol's share is shared as wire."""
    bandwidths, sent = scenario
    trace = run_traffic(bandwidths, sent)
    pieces = [(t.source, *step) for t in trace.transfers for step in rate_steps(t)]
    moments = sorted({time for _, start, end, _ in pieces for time in (start, end)})
    for start, end in itertools.pairwise(moments):
        middle = (start + end) / 2
        if not start < middle < end:
            continue
        wire = {i: rate / sent[i].fraction for i, since, until, rate in pieces if since <= middle < until}
        carried = [sum(rate for i, rate in wire.items() if link in sent[i].links) for link in range(len(bandwidths))]
        for link, bandwidth in enumerate(bandwidths):
            assert carried[link] <= bandwidth * (1 + 1e-9)
        for i, rate in wire.items():
            assert any(
                carried[link] >= bandwidths[link] * (1 - 1e-9)
                and all(rate >= other * (1 - 1e-9) for j, other in wire.items() if link in sent[j].links)
                for link in sent[i].links
            )


@given(traffic(fractions=(1.0, 0.5, 0.92)))
@settings(max_examples=200, deadline=None)
def test_the_steps_of_a_rate_carry_exactly_the_bytes(scenario) -> None:
    for transfer in run_traffic(*scenario).transfers:
        carried = sum((end - start) * rate for start, end, rate in rate_steps(transfer))
        assert carried == pytest.approx(transfer.nbytes, rel=1e-9, abs=1e-9)


@given(traffic())
@settings(max_examples=50, deadline=None)
def test_equal_traffic_gives_equal_traces(scenario) -> None:
    assert run_traffic(*scenario) == run_traffic(*scenario)


@given(st.floats(1e-3, 1e12), st.floats(0, 10), st.integers(0, 10**12), st.floats(0, 1e6))
def test_a_flow_alone_ends_after_two_additions_and_one_division(bandwidth, latency, nbytes, issue) -> None:
    wires = Wires.of([bandwidth])
    engine = Engine(wires)
    channel = engine.channel(0, 1, "copy", route=wires.path([0], latency))

    def program():
        yield wait((yield isend(channel, nbytes)))

    engine.start(program(), name="copy", rank=0, device=0, resource="host", at_s=issue)
    assert engine.run().end_s == (issue + latency) + nbytes / bandwidth


# ---- by hand


def ends_of(bandwidths: list[float], sent: list[Sent]) -> list[float]:
    transfers = run_traffic(bandwidths, sent).transfers
    return [transfer.end_s for transfer in sorted(transfers, key=lambda transfer: transfer.source)]


def test_a_flow_that_meets_another_halfway_shares_from_then_on() -> None:
    assert ends_of([10.0], [Sent((0,), 20, 0.0, 0.0), Sent((0,), 10, 0.0, 1.0)]) == [1.0 + 2.0, 1.0 + 2.0]


def test_a_flow_that_begins_during_anothers_latency_is_alone_until_the_latency_is_over() -> None:
    assert ends_of([10.0], [Sent((0,), 10, 0.0, 2.0), Sent((0,), 30, 1.0, 0.0)]) == [2.0 + 2.0, 1.0 + 1.0 + 2.0 + 1.0]


def test_a_flow_that_ends_as_another_begins_does_not_share() -> None:
    assert ends_of([10.0], [Sent((0,), 10, 0.0, 0.0), Sent((0,), 10, 1.0, 0.0)]) == [1.0, 2.0]


def test_an_end_that_moved_forward_does_not_leave_its_old_time_behind() -> None:
    """The longer flow is first due at 3 s; when the other has ended, at 2 s. Nothing happens at 3 s."""
    trace = run_traffic([10.0], [Sent((0,), 5, 0.0, 0.0), Sent((0,), 15, 0.0, 0.0)])
    assert [transfer.end_s for transfer in trace.transfers] == [1.0, 2.0]
    assert trace.end_s == 2.0


def test_a_faster_link_can_lengthen_a_whole_schedule() -> None:
    """Fair sharing is greedy: the side flow takes bandwidth from the one that a second's work waits for."""

    def makespan(side: float) -> float:
        wires = Wires.of([1e9, side], devices=2)

        def programs(engine: Engine):
            long = engine.channel(0, 0, "copy", route=wires.path([0]))
            aside = engine.channel(1, 1, "copy", route=wires.path([0, 1]))

            def first():
                yield wait((yield isend(long, 1_000_000_000)))
                yield busy(1.0, "what waits for it")

            def second():
                yield wait((yield isend(aside, 150_000_000)))

            return [first(), second()]

        return run(wires, programs).end_s

    assert makespan(0.1e9) == pytest.approx(1 / 0.9 + 1, rel=1e-12)
    assert makespan(1e9) == pytest.approx(2 * 0.15 + (1 - 0.15) + 1, rel=1e-12)
    assert makespan(1e9) > makespan(0.1e9)


def test_a_protocols_fraction_takes_its_inverse_of_the_wire() -> None:
    assert ends_of([10.0], [Sent((0,), 10, 0.0, 0.0, 0.5)]) == [10 / (10 * 0.5)]
    # Two share the wire: 5 each, of which one carries all and one half.
    assert ends_of([10.0], [Sent((0,), 10, 0.0, 0.0), Sent((0,), 5, 0.0, 0.0, 0.5)]) == [10 / 5, 5 / 2.5]


def test_messages_of_one_channel_leave_one_at_a_time_in_order() -> None:
    wires = Wires.of([10.0])

    def programs(engine: Engine):
        channel = engine.channel(0, 1, "copy", route=wires.path([0], 0.5))

        def sender():
            handles = []
            for chunk in range(3):
                handle = yield isend(channel, 10, chunk=chunk)
                handles.append(handle)
            yield wait(*handles)

        return [sender()]

    transfers = run(wires, programs).transfers
    assert [(t.chunk, t.issue_s, t.end_s) for t in transfers] == [(0, 0.0, 1.5), (1, 1.5, 3.0), (2, 3.0, 4.5)]
    assert [t.cause for t in transfers] == [None, transfers[0].id, transfers[1].id]


# ---- files


def case_of(**changes) -> dict:
    case = {
        "name": "one",
        "platform": {
            "hosts": ["a", "b"],
            "links": [{"name": "l", "bandwidth_bytes_per_s": 10.0, "latency_s": 1.0}],
            "routes": [{"src": "a", "dst": "b", "links": ["l"]}],
        },
        "tasks": [{"id": "t", "kind": "transfer", "src": "a", "dst": "b", "size_bytes": 20}],
    }
    return {**case, **changes}


def task(**changes) -> list[dict]:
    return [{**case_of()["tasks"][0], **changes}]


def test_a_case_gives_finishes_in_task_order_and_the_last_of_them() -> None:
    tasks = [*task(id="second", after=["first"]), {"id": "first", "kind": "compute", "host": "a", "duration_s": 4.0}]
    assert run_case(case_of(tasks=tasks)) == {"finish_s": [4.0 + 1.0 + 2.0, 4.0], "makespan_s": 7.0}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (case_of(tasks=task(src="nobody")), "names host 'nobody': no such host"),
        (case_of(tasks=task(dst="a", src="b")), "no route from b to a"),
        (case_of(tasks=task(kind="magic")), "is of kind 'magic'. Known: transfer, compute"),
        (case_of(tasks=task(size_bytes=-1)), "size_bytes of 't' = -1: must be 0 or more"),
        (case_of(tasks=task(size_bytes=1.5)), "a whole number is needed"),
        (case_of(tasks=task(not_before_s=float("nan"))), "must be finite and 0 or more"),
        (case_of(tasks=task(after=["ghost"])), "waits for 'ghost': no such task"),
        (case_of(tasks=task(after=["t"])), "tasks wait for each other in a circle"),
        (case_of(tasks=[*task(), *task()]), "repeats a task id"),
        (case_of(platform={**case_of()["platform"], "links": [{"name": "l", "bandwidth_bytes_per_s": 0.0,
                                                              "latency_s": 0.0}]}), "must be finite and above 0"),
        (case_of(platform={**case_of()["platform"], "routes": [{"src": "a", "dst": "b", "links": ["m"]}]}),
         "a route uses link 'm': no such link"),
    ],
)  # fmt: skip
def test_a_case_that_breaks_a_rule_is_refused(case: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_case(case)


def platform(**changes) -> dict:
    return case_of(platform={**case_of()["platform"], **changes})


LINK, ROUTE = case_of()["platform"]["links"][0], case_of()["platform"]["routes"][0]
COMPUTE = {"id": "c", "kind": "compute", "duration_s": 1.0}


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([case_of(), case_of()], "repeats a case name, 'one'"),
        ([case_of(name=None)], r"cases\[0\]\.name is nothing \(null\): text is needed"),
        ([case_of(name="a\x1b")], r"cases\[0\]\.name holds .*control characters"),
        ([case_of(name=["one"])], r"cases\[0\]\.name is a list"),
        ([case_of(), 3], r"cases\[1\] is a number: an object is needed"),
        ([{}], r"cases\[0\] has no 'name'"),
        ({}, "cases is an object: a list is needed"),
        ([platform(links=[LINK, LINK])], r"case 'one': platform\.links\[1\]\.name repeats link 'l'"),
        ([platform(routes=[{**ROUTE, "links": ["l", "l"]}])], r"case 'one': platform\.routes\[0\]\.links repeats a link, 'l'"),
        ([platform(routes=[ROUTE, ROUTE])], r"platform\.routes\[1\] is a second route from 'a' to 'b'"),
        ([platform(routes=[{**ROUTE, "src": "z"}])], r"platform\.routes\[0\]\.src names host 'z': no such host"),
        ([platform(routes=[{**ROUTE, "links": "l"}])], r"platform\.routes\[0\]\.links is text: a list is needed"),
        ([platform(routes={})], r"case 'one': platform\.routes is an object: a list is needed"),
        ([platform(hosts=["a", "b", "a"])], r"case 'one': platform\.hosts repeats a host, 'a'"),
        ([platform(hosts="ab")], r"case 'one': platform\.hosts is text: a list is needed"),
        ([platform(hosts=["a", "b", 3])], r"platform\.hosts\[2\] is a number: text is needed"),
        ([platform(hosts=None)], r"platform\.hosts is nothing"),
        ([platform(links="l")], r"platform\.links is text"),
        ([platform(links=["l"])], r"platform\.links\[0\] is text: an object is needed"),
        ([platform(links=[{**LINK, "latency_s": -1}])], r"case 'one': platform\.links\[0\]\.latency_s of 'l' = -1: must be"),
        ([platform(links=[{"name": "l"}])], r"platform\.links\[0\] has no 'bandwidth_bytes_per_s'"),
        ([case_of(platform=[])], "case 'one': platform is a list: an object is needed"),
        ([{"name": "one"}], "case 'one': it has no 'platform'"),
        ([case_of(tasks={})], "case 'one': tasks is an object: a list is needed"),
        ([case_of(tasks=["t"])], r"case 'one': tasks\[0\] is text"),
        ([case_of(tasks=[COMPUTE])], r"case 'one': tasks\[0\] has no 'host'"),
        ([case_of(tasks=[{**COMPUTE, "host": "z"}])], r"case 'one': tasks\[0\]\.host names host 'z': no such host"),
        ([case_of(tasks=[{**COMPUTE, "host": "a", "duration_s": -1}])], "case 'one': duration_s of 'c' = -1"),
        ([case_of(tasks=task(after="t"))], r"tasks\[0\]\.after is text: a list is needed"),
        ([case_of(tasks=task(after=[None]))], r"tasks\[0\]\.after\[0\] is nothing"),
        ([case_of(tasks=task(id=7))], r"tasks\[0\]\.id is a number: text is needed"),
        ([case_of(tasks=task(kind=[]))], r"tasks\[0\]\.kind is a list: text is needed"),
        ([case_of(tasks=task(size_bytes="9"))], "case 'one': size_bytes of 't' = '9': a whole number is needed"),
    ],
)  # fmt: skip
def test_damage_is_named_with_file_case_and_field(tmp_path: Path, cases: object, message: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": cases}))
    with pytest.raises(InputError, match=message) as caught:
        run_file(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "Error(" not in said


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_file_with_one_value_replaced_runs_or_is_refused(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    content = {"cases": [case_of(tasks=[*task(), {**COMPUTE, "host": "a", "after": ["t"]}])]}
    inside: list | dict = content
    while True:
        key = data.draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        if not isinstance(inside[key], (list, dict)) or not inside[key] or data.draw(st.booleans()):
            break
        inside = inside[key]
    inside[key] = data.draw(st.sampled_from([None, True, -1, 0, 1.5, "a", "l", "t", "", [], {}, ["a"], [[]], 10**400]))
    path = tmp_path_factory.getbasetemp() / "replaced.json"
    path.write_text(json.dumps(content))
    try:
        run_file(path)
    except InputError as problem:
        assert str(problem).startswith(f"{path}: ")


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": [case_of()]}), encoding="utf-8-sig")
    assert run_file(path)["one"]["makespan_s"] == 1.0 + 20 / 10


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"cases": 3}', '{"cases": [{"name": "x"}]}', '{"cases": NaN}',
                                  "[" * 10_000, '{"cases": [{"name": "x", "platform": {}, "tasks": []}]}'])  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text)
    with pytest.raises(InputError, match="needed"):
        run_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="A readable JSON file is needed"):
        run_file(tmp_path / "nothing.json")
