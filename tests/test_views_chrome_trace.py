"""The Chrome trace: slices nest, arrows end on slices, and what HolisticTraceAnalysis reads is there and right."""

import gzip
import itertools
import json
import re
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from simulator.errors import InputError
from simulator.trace import COMMUNICATION, Trace
from simulator.views.chrome_trace import chrome_trace, overlap_fraction, write_chrome_trace, write_comparison
from simulator.views.launches import launchers, shared_out
from tests.views_samples import STRATEGIES, hand_made, scenario, simulated, span


def ns(microseconds: float) -> int:
    """Whole nanoseconds; the file has three decimals of a microsecond."""
    return round(microseconds * 1000)


def slices(data: dict) -> list[dict]:
    return [event for event in data["traceEvents"] if event["ph"] == "X"]


def tracks(data: dict) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end in ns of every slice, by process and thread, in the order of the file."""
    found = defaultdict(list)
    for event in slices(data):
        found[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    return found


def assert_nested(data: dict) -> None:
    """Any two slices of a track are apart, or one holds the other: the format has no other overlap."""
    for track, found in tracks(data).items():
        open_: list[int] = []
        for start, end in sorted(found, key=lambda item: (item[0], -item[1])):
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1], (track, start, end)
            open_.append(end)


def kernels(data: dict) -> list[dict]:
    return [event for event in slices(data) if event["cat"] in ("kernel", "gpu_memcpy")]


ALL = [(name, rank) for name in STRATEGIES for rank in (None, 0)] + [("DDP", 3)]


# ---- the format


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_slices_of_one_track_nest(name, rank):
    data = chrome_trace(simulated(name), scenario(name), rank=rank)
    assert_nested(data)
    assert all(ns(event["dur"]) >= 0 for event in slices(data))


def test_slices_nest_over_several_iterations():
    assert_nested(chrome_trace(simulated("DDP", iterations=(0, 1, 2)), rank=1))


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_every_arrow_has_two_ends_that_lie_on_slices_and_points_forward(name, rank):
    data = chrome_trace(simulated(name), rank=rank)
    where = tracks(data)
    ends = defaultdict(dict)
    for event in data["traceEvents"]:
        if event["ph"] in "sf":
            assert event["ph"] not in ends[event["cat"], event["id"]]
            ends[event["cat"], event["id"]][event["ph"]] = event
            moment = ns(event["ts"])
            assert any(start == moment for start, _ in where[event["pid"], event["tid"]])
    assert {category for category, _ in ends} == {"ac2g", "cause"}
    for pair in ends.values():
        assert set(pair) == {"s", "f"}
        assert pair["f"]["bp"] == "e"
        assert pair["s"]["ts"] <= pair["f"]["ts"]


def test_an_arrow_leads_from_the_last_all_reduce_to_what_waited_for_it():
    data = chrome_trace(simulated("DDP"), rank=2)
    at = {(event["pid"], event["tid"], ns(event["ts"])): event for event in kernels(data)}
    pairs = defaultdict(dict)
    for event in data["traceEvents"]:
        if event["ph"] in "sf" and event["cat"] == "cause":
            pairs[event["id"]][event["ph"]] = at.get((event["pid"], event["tid"], ns(event["ts"])))
    names = {(pair["s"]["args"]["span"], pair["f"]["args"]["span"]) for pair in pairs.values() if all(pair.values())}
    assert ("all_reduce bucket 4", "copy bucket 4 back") in names
    assert ("copy fc into buckets", "all_reduce bucket 0") in names


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_slices_of_each_kind_last_as_long_as_in_the_trace(name):
    trace = simulated(name)
    expected, shown, count = defaultdict(float), defaultdict(float), Counter()
    for item in trace.spans:
        expected[item.kind] += item.end_s - item.start_s
    data = chrome_trace(trace, scenario(name))
    for event in slices(data):
        kind = "host" if event["cat"] == "cpu_op" else event.get("args", {}).get("kind")
        if kind and event["cat"] != "cuda_runtime":
            shown[kind] += event["dur"] * 1e-6
            count[kind] += 1
    assert set(shown) == {kind for kind, length in expected.items() if length > 0}
    for kind, length in shown.items():
        assert length == pytest.approx(expected[kind], abs=1e-9 * count[kind] + 1e-12)


def test_processes_and_threads_have_names():
    data = chrome_trace(simulated("DDP"), rank=1)
    names = {(event["name"], event["pid"], event["tid"]): event["args"] for event in data["traceEvents"]
             if event["ph"] == "M"}  # fmt: skip
    assert names["process_name", 1, 0] == {"name": "device 1 (gpu1)"}
    assert names["process_labels", 1, 0] == {"labels": "GPU 1"}
    assert names["thread_name", 1, 7] == {"name": "stream 7 compute"}
    for process, thread in tracks(data):
        assert ("thread_name", process, thread) in names


def test_transfers_are_shown_in_the_file_of_all_ranks_only():
    trace = simulated("DDP")
    whole = [event for event in slices(chrome_trace(trace)) if event["cat"] == "transfer"]
    assert sum(event["args"]["bytes"] for event in whole) == sum(transfer.nbytes for transfer in trace.transfers)
    assert not any(event["cat"] == "transfer" for event in slices(chrome_trace(trace, rank=0)))


def test_work_on_one_resource_that_overlaps_gets_threads_of_its_own():
    spans = [span(1, "forward", 0.0, 2.0), span(2, "backward", 1.0, 3.0), span(3, "optimizer", 2.0, 4.0)]
    data = chrome_trace(Trace(("gpu0",), raw_spans=spans, end_s=4.0))
    assert_nested(data)
    threads = {event["name"]: event["tid"] for event in kernels(data)}
    assert threads["forward"] == threads["optimizer"] != threads["backward"]


def test_work_that_never_finished_begins_and_does_not_end():
    spans = [span(1, "forward", 0.0, 1.0), span(2, "all_reduce", 1.0, None, resource="communication")]
    data = chrome_trace(Trace(("gpu0",), raw_spans=spans, end_s=2.0))
    assert [event["args"]["span"] for event in data["traceEvents"] if event["ph"] == "B"] == ["all_reduce"]
    assert not any(event["ph"] == "E" for event in data["traceEvents"])


def test_the_memory_counter_is_what_torch_calls_allocated():
    counters = [event for event in chrome_trace(hand_made())["traceEvents"] if event["ph"] == "C"]
    assert {(event["ts"], event["args"]["bytes"]) for event in counters} == {
        (0.0, 100), (2000.0, 100 + 300), (4000.0, 100 + 300 + 100), (6000.0, 100 + 100)}  # fmt: skip


# ---- what HolisticTraceAnalysis reads


def test_the_rank_stands_before_the_events_where_a_line_search_finds_it(tmp_path):
    file = tmp_path / "rank5.json"
    write_chrome_trace(simulated("DDP"), file, scenario("DDP"), rank=5)
    text = file.read_text()
    assert int(re.search(r'"rank":\s+(\d+)', text)[1]) == 5
    assert json.loads(text)["distributedInfo"]["world_size"] == 8


def test_a_rank_s_file_has_its_devices_only():
    assert {event["args"]["device"] for event in kernels(chrome_trace(simulated("DDP"), rank=3))} == {3}
    assert {event["args"]["device"] for event in kernels(chrome_trace(simulated("DataParallel"), rank=0))} == set(
        range(8)
    )


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_every_kernel_after_the_first_launch_was_launched_once_by_a_slice_that_ended_before_it(name, rank):
    data = chrome_trace(simulated(name), rank=rank)
    launches = defaultdict(list)
    for event in slices(data):
        if event["cat"] == "cuda_runtime":
            launches[event["args"]["correlation"]].append(event)
    first = min(ns(event["ts"]) + ns(event["dur"]) for event in slices(data) if event["cat"] == "cpu_op")
    for kernel in kernels(data):
        assert kernel["tid"] == kernel["args"]["stream"] > 0
        found = launches[kernel["args"]["correlation"]]
        if not found and ns(kernel["ts"]) < first:
            continue
        assert len(found) == 1
        assert ns(found[0]["ts"]) + ns(found[0]["dur"]) <= ns(kernel["ts"])


def test_runtime_slices_lie_inside_host_slices():
    data = chrome_trace(simulated("DDP"), rank=0)
    hosts = defaultdict(list)
    for event in slices(data):
        if event["cat"] == "cpu_op":
            hosts[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    for event in slices(data):
        if event["cat"] == "cuda_runtime":
            start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            assert any(a <= start and end <= b for a, b in hosts[event["pid"], event["tid"]])


def test_each_iteration_is_a_profiler_step_that_holds_its_host_slices():
    data = chrome_trace(simulated("DDP", iterations=(0, 1, 2)), rank=0)
    steps = {event["name"]: (ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])) for event in slices(data)
             if event["cat"] == "user_annotation"}  # fmt: skip
    assert list(steps) == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    for (_, end), (start, _) in itertools.pairwise(steps.values()):
        assert end == start
    hosts = [event for event in slices(data) if event["cat"] == "cpu_op"]
    assert all(any(a <= ns(event["ts"]) < b for a, b in steps.values()) for event in hosts)


def test_collectives_carry_nccl_s_names_and_message_sizes():
    data = chrome_trace(simulated("DDP"), scenario("DDP"), rank=0)
    reduces = [event for event in kernels(data) if event["args"]["kind"] == "all_reduce"]
    assert {event["name"] for event in reduces} == {"ncclDevKernel_AllReduce_Sum_f32"}
    for event in reduces:
        assert event["args"]["Collective name"] == "allreduce"
        assert event["args"]["Group size"] == 8
        assert event["args"]["In msg nelems"] * 4 == event["args"]["bytes"]
    assert [event["args"]["bucket"] for event in reduces] == [0, 1, 2, 3, 4]


def test_copies_by_one_device_are_memory_copies_and_collectives_of_several_are_nccl_kernels():
    names = {
        event["args"]["kind"]: (event["cat"], event["name"]) for event in kernels(chrome_trace(simulated("peer_copy")))
    }
    assert names["replicate"] == names["reduce"] == ("gpu_memcpy", "Memcpy PtoP (Device -> Device)")
    names = {event["args"]["kind"]: event["name"] for event in kernels(chrome_trace(simulated("DataParallel")))}
    assert names["replicate"] == "ncclDevKernel_Broadcast"
    assert names["reduce"] == "ncclDevKernel_Reduce_Sum"
    assert names["scatter"].startswith("Memcpy")


def overlap_by_sweep(data: dict) -> float:
    """HolisticTraceAnalysis' overlap, from the file alone and by its own patterns, one step of time after another."""
    events = []
    for kernel in kernels(data):
        name = kernel["name"]
        if re.match(r"^nccl.*Kernel", name):
            communicates = True
        elif not re.match(r"(^Memcpy)|(^Memset)|(^dma)|(.*Sync)", name):
            communicates = False
        else:
            continue
        events += [(ns(kernel["ts"]), 1, communicates), (ns(kernel["ts"]) + ns(kernel["dur"]), -1, communicates)]
    running, total, both, last = Counter(), 0, 0, 0
    for moment, change, communicates in sorted(events):
        if running[True] > 0:
            total += moment - last
            both += moment - last if running[False] > 0 else 0
        running[communicates] += change
        last = moment
    return both / total


@pytest.mark.parametrize(("name", "rank"), [("DDP", 0), ("DDP", 5), ("DataParallel", 0)])
def test_the_overlap_in_the_file_is_the_overlap_of_the_trace(name, rank):
    trace = simulated(name)
    assert overlap_by_sweep(chrome_trace(trace, rank=rank)) == pytest.approx(overlap_fraction(trace, rank), abs=1e-4)


def test_overlap_is_the_share_of_communication_during_which_something_computes():
    assert overlap_fraction(hand_made(), 0) == pytest.approx(2 / 4)
    assert overlap_fraction(simulated("peer_copy"), 0) is None


# ---- launches


def test_work_belongs_to_the_host_span_that_names_it_then_to_its_cause_then_to_the_launch_before():
    hosts = [span(1, "host", 0.0, 1.0, resource="host", name="launch conv"),
             span(2, "host", 1.0, 2.0, resource="host", name="training loop"),
             span(3, "host", 2.0, 3.0, resource="host", name="launch backward of conv")]  # fmt: skip
    works = [span(4, "forward", 1.0, 1.5, name="conv"), span(5, "loss", 2.0, 2.5, name="loss", cause=2),
             span(6, "copy", 2.5, 2.7, name="copy"),
             span(7, "backward", 3.0, 4.0, name="conv backward", cause=6)]  # fmt: skip
    trace = Trace(("gpu0",), raw_spans=[*hosts, *works], end_s=4.0)
    found = launchers([s for s in trace.spans if s.kind == "host"], [s for s in trace.spans if s.kind != "host"])
    assert {work: host.id for work, host in found.items()} == {4: 1, 5: 2, 6: 2, 7: 3}
    assert shared_out(found) == {4: (0.0, 1.0), 5: (1.0, 1.5), 6: (1.5, 2.0), 7: (2.0, 3.0)}


# ---- files


def test_files_are_plain_or_compressed_json_without_nan(tmp_path):
    for ending in ("json", "json.gz"):
        file = tmp_path / f"trace.{ending}"
        write_chrome_trace(hand_made(), file)
        text = gzip.decompress(file.read_bytes()) if ending.endswith("gz") else file.read_bytes()
        assert json.loads(text) == json.loads(json.dumps(chrome_trace(hand_made())))
        assert b"NaN" not in text


def test_another_ending_or_an_unknown_rank_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"\.json"):
        write_chrome_trace(hand_made(), tmp_path / "trace.txt")
    with pytest.raises(InputError, match="rank 9"):
        chrome_trace(hand_made(), rank=9)


def test_a_comparison_keeps_its_runs_apart_in_one_file(tmp_path):
    runs = {name: SimpleNamespace(scenario=scenario(name), trace=simulated(name)) for name in ("DataParallel", "DDP")}
    file = tmp_path / "both.json"
    write_comparison(SimpleNamespace(runs=runs), file)
    data = json.loads(file.read_text())
    assert_nested(data)
    owners = defaultdict(set)
    for event in data["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            owners[event["args"]["name"].split(":")[0]].add(event["pid"])
    assert set(owners) == {"DataParallel", "DDP"}
    assert not owners["DataParallel"] & owners["DDP"]
    flows = Counter((event["cat"], event["id"], event["ph"]) for event in data["traceEvents"] if event["ph"] in "sf")
    assert set(flows.values()) == {1}


def test_the_same_trace_gives_the_same_file():
    assert json.dumps(chrome_trace(hand_made())) == json.dumps(chrome_trace(hand_made()))


def test_an_empty_trace_gives_an_empty_file_that_can_be_read():
    assert chrome_trace(Trace(("gpu0",)))["traceEvents"] == []


def test_every_kind_of_communication_that_several_devices_share_has_a_kernel_s_name():
    from simulator.views.chrome_events import COPIES, NCCL_KERNELS

    assert set(COPIES) | set(NCCL_KERNELS) == COMMUNICATION
