"""The parameter table as a file: what it may hold, and the error for each way to damage it."""

import json
from pathlib import Path

import pytest

from simulator.bucket_file import ParameterTable, bucket_lists, parameter_table, read_parameter_table
from simulator.buckets import MIB, BucketOptions, buckets_at
from simulator.errors import InputError
from simulator.model import Parameter

DATA = Path(__file__).parent / "data" / "buckets"


def entry(name: str, *shape: int, **more: object) -> dict:
    """One tensor as in the file."""
    return {"name": name, "shape": list(shape), "dtype": "float32", "requires_grad": True, **more}


GOOD = {"params": [entry("a", 3), entry("b", 4)], "ready_order": ["b", "a"], "observed": "left alone"}


def write(folder: Path, content: object) -> Path:
    """The file that holds it."""
    path = folder / "table.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_table_is_read_in_order(tmp_path: Path) -> None:
    assert read_parameter_table(write(tmp_path, GOOD)) == ParameterTable(
        (Parameter("a", (3,)), Parameter("b", (4,))), ("b", "a")
    )


def test_tied_frozen_sparse_and_torch_dtypes_are_read() -> None:
    table = parameter_table({"params": [
        entry("e", 5, 2, dtype="torch.float16", sparse=True), entry("f", requires_grad=False, dtype="int64"),
        entry("h", 5, 2, dtype="float16", tied_to="e"), entry("g", 1, tied_to=None)]})  # fmt: skip
    assert table == ParameterTable((
        Parameter("e", (5, 2), "float16", sparse=True), Parameter("f", (), "int64", False),
        Parameter("h", (5, 2), "float16", tied_to="e"), Parameter("g", (1,))))  # fmt: skip


def test_many_equal_tensors_are_written_once() -> None:
    params = {"repeat": 3000, "shape": [50], "dtype": "float32", "name_pattern": "ps.{i}"}
    table = parameter_table({"params": params})
    assert (len(table.parameters), table.parameters[2999]) == (3000, Parameter("ps.2999", (50,)))
    lists = bucket_lists(table.parameters, table.ready_order, BucketOptions())
    assert lists == {"iterations": [[3000 * 50 * 4]] * 3}


def test_lists_follow_iterations_and_options() -> None:
    table = read_parameter_table(DATA / "resnet18.json")
    total = 4 * 11_689_512
    default = bucket_lists(table.parameters, table.ready_order, BucketOptions(), 2)
    assert default == {"iterations": [[total], [2052000, 28852224, 15853824]]}
    static = bucket_lists(table.parameters, table.ready_order, BucketOptions(static_graph=True))
    assert static == {"iterations": [[total], [total], default["iterations"][1]]}
    assert json.loads(json.dumps(static)) == static


def test_an_empty_bucket_is_listed() -> None:
    table = parameter_table({"params": [entry("a", 0), entry("b", 2), entry("c", 2, tied_to="b")]})
    assert bucket_lists(table.parameters, None, BucketOptions(0)) == {"iterations": [[8], [8, 0], [8, 0]]}
    empty = parameter_table({"params": [entry("a", 0)]})
    assert bucket_lists(empty.parameters, None, BucketOptions(), 1) == {"iterations": [[0]]}


@pytest.mark.parametrize("iterations", [0, -1, 1.5, "3", True])
def test_iterations_are_a_whole_number_above_zero(iterations: object) -> None:
    with pytest.raises(InputError, match="iterations"):
        bucket_lists([Parameter("a", (MIB,))], None, BucketOptions(), iterations)


def without(key: str) -> dict:
    """A table whose first entry lacks a key."""
    return {"params": [{k: v for k, v in entry("a", 3).items() if k != key}]}


@pytest.mark.parametrize(("content", "message"), [
    ("", "is not JSON"), ("{", "is not JSON"), ('{"params": [', "is not JSON"), ("[" * 100_000, "is not JSON"),
    ([], 'object with "params"'), (None, 'object with "params"'), ({}, 'object with "params"'),
    ({"params": 3}, "params is a number"), ({"params": [3]}, r"params\[0\] is a number"),
    (without("name"), r"params\[0\] has no 'name'"), (without("shape"), "has no 'shape'"),
    (without("dtype"), "has no 'dtype'"), (without("requires_grad"), "has no 'requires_grad'"),
    ({"params": [{**entry("a", 3), "name": 7}]}, "text is needed"),
    ({"params": [entry("a", shape=3)]}, "list of sizes"), ({"params": [entry("a", -3)]}, "0 or more"),
    ({"params": [entry("a", 2.5)]}, "whole number"), ({"params": [entry("a", shape=["3"])]}, "whole number"),
    ({"params": [entry("a", 3, dtype="float23")]}, "float23' is not known. Did you mean 'float32'"),
    ({"params": [entry("a", 3, requires_grad="yes")]}, "true or false"),
    ({"params": [entry("a", 3, sparse=1)]}, "true or false"),
    ({"params": [entry("a", 3), entry("a", 3)]}, "'a': a name must not occur twice"),
    ({"params": [entry("a", 3, tied_to="b"), entry("b", 3)]}, "tied to 'b': that must be the name of an earlier"),
    ({"params": [entry("a", 3, tied_to="a")]}, "earlier entry"),
    ({"params": [entry("a", 3), entry("b", 4, tied_to="a")]}, "one shape and one dtype"),
    ({"params": {"repeat": 3, "shape": [1], "dtype": "float32"}}, "has no 'name_pattern'"),
    ({"params": {"repeat": -1, "shape": [1], "dtype": "float32", "name_pattern": "p{i}"}}, "repeat"),
    ({"params": {"repeat": 10**9, "shape": [1], "dtype": "float32", "name_pattern": "p{i}"}}, "at most 100,000"),
    ({"params": {"repeat": 2, "shape": [1], "dtype": "float32", "name_pattern": "p"}}, r"must hold \{i\}"),
    ({**GOOD, "ready_order": ["a", "b", "c"]}, "ready_order invents 'c'"),
    ({**GOOD, "ready_order": ["a"]}, "ready_order misses 'b'"),
    ({**GOOD, "ready_order": ["a", "b", "a"]}, "ready_order repeats 'a'"),
    ({"params": [entry("a\x1b[31m", 3)]}, "control characters"), ({"params": [entry("a\ud800", 3)]}, "lone surrogates"),
    ({"params": [{**entry("a", 3), "name": None}]}, "name is nothing"),
    ({**GOOD, "ready_order": "ba"}, "list of names"), ({**GOOD, "ready_order": [1, 2]}, "list of names"),
    ({"params": [], "ready_order": []}, "none of 0 parameters is trained")],
    ids=range(38),
)  # fmt: skip
def test_a_damaged_file_is_named_with_the_rule(tmp_path: Path, content: object, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=message) as caught:
        read_parameter_table(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=f"{path}: cannot be read"):
            read_parameter_table(path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_parameter_table(binary)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8-sig")
    assert read_parameter_table(path) == parameter_table(GOOD)


def test_what_would_take_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="iterations = 10001: at most 10,000"):
        bucket_lists([Parameter("a", (1,))], None, BucketOptions(), 10_001)
    many = [Parameter(f"p{i}", (1,)) for i in range(1000)]
    with pytest.raises(InputError, match="10000 iterations of 1000 buckets: at most 5,000,000"):
        bucket_lists(many, None, BucketOptions(0), 10_000)


@pytest.mark.parametrize("options", [BucketOptions(), BucketOptions(static_graph=True), BucketOptions(0),
                                     BucketOptions(find_unused_parameters=True)])  # fmt: skip
def test_many_iterations_equal_each_one_alone(options: BucketOptions) -> None:
    parameters = [Parameter(f"p{i}", (MIB // 8 + i,)) for i in range(9)]
    lists = bucket_lists(parameters, None, options, 10_000)["iterations"]
    for iteration in (0, 1, 2, 3, 4, 9_999):
        found = [bucket.nbytes for bucket in buckets_at(parameters, None, options, iteration)]
        assert lists[iteration] == found
    assert len(lists) == 10_000
