"""Scenarios and profiles as JSON and back; a damaged file is refused with a reason."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator import codec
from simulator.backend import Backend, gloo, nccl
from simulator.errors import InputError
from simulator.presets.backends import backend_for
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Host, Scenario, SingleDevice
from tests.samples import layers_of, preset, star
from tests.test_laws import scenarios

SMALL = Scenario(layers_of([400, 800], 1e-3, 1e-3), star(2, 1e9), DistributedDataParallel())


@given(scenarios())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_scenario_comes_back_equal(scenario: Scenario) -> None:
    text = codec.to_json(scenario)
    assert codec.from_json(text) == scenario
    assert codec.to_json(codec.from_json(text)) == text


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_preset_cluster_and_its_library_come_back_equal(name: str) -> None:
    cluster = load_cluster(name)
    for value in (cluster, backend_for(cluster)):
        assert codec.from_json(codec.to_json(value)) == value


@pytest.mark.parametrize(
    "value",
    [preset("resnet18"), preset("gpt2-128"), Host(hook_s=0.1 + 0.2), OPTIMIZERS["adam"], nccl(1 / 3), gloo(), Backend(),
     DataParallel("peer_copy", 1, True), SingleDevice()],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_part_comes_back_equal(value: object) -> None:
    again = codec.from_json(codec.to_json(value))
    assert (again, type(again)) == (value, type(value))


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(codec.to_json(preset("mlp-small")), encoding="utf-8")
    assert codec.read_profile(path) == preset("mlp-small")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "A readable profile is needed"),
        ("", "Valid JSON is needed"),
        ("[]", "A ModelProfile is needed"),
        (codec.to_json(star(2, 1.0)), "mine.json: holds a Cluster. A ModelProfile is needed"),
    ],
)
def test_a_file_without_a_profile_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        codec.read_profile(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="A readable profile is needed"):
        codec.read_profile(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Valid JSON is needed"),
        ("{", "Valid JSON is needed"),
        ("NaN", "NaN is no number"),
        ('{"type": "Cost", "fixed_s": Infinity}', "Infinity is no number"),
        ('{"type": "Cost", "fixed_s": 1e999}', "fixed_s = inf: must be finite"),
        ("1" * 5000, "Valid JSON is needed"),
        ("[" * 100_000, "Valid JSON is needed"),
        ("{}", "^JSON: it has no type. Known: "),
        ('{"type": null}', r"type is null\. Known: "),
        ('{"type": "Gpu"}', 'type is "Gpu". Known: .*Device'),
        ('{"type": ["Cost"]}', "type is a list. Known: "),
        ('{"type": "Cost", "seconds": 1}', "Cost has no 'seconds'. Known: fixed_s, per_sample_s"),
        ('{"type": "Cost", "fixed_s": "1"}', 'fixed_s of Cost is "1". It must be a number. '),
        ('{"type": "Cost", "fixed_s": true}', "fixed_s of Cost is true. It must be a number. "),
        ('{"type": "Cost", "fixed_s": -1}', "must be finite and 0 or more"),
        ('{"type": "Link", "source": "a"}', "Link lacks 'target'. It must be text. Add it."),
        ('{"type": "Layer", "name": "l", "forward": 3}', "forward of Layer is 3. It must be an object of type Cost. "),
        ('{"type": "Layer", "name": "l", "parameters": "ab"}', "It must be a list, each entry text. "),
        ('{"type": "Scenario", "model": null}', "Scenario lacks 'cluster'"),
        ('{"type": "Scenario", "global_batch": "9", "model": 1, "cluster": 1, "strategy": 1}', "It must be"),
        ('{"type": "BucketOptions", "bucket_cap_mb": "9"}', "It must be a number or null. "),
        ("[" * 900 + "]" * 900, "too deep|Valid JSON"),
        ('{"type": "Device", "name": "a\\u001b[31m"}', r"name of Device holds '\\x1b': control characters"),
        ('{"type": "Device", "name": "a\\ud800"}', r"name of Device holds '\\ud800': control characters"),
        ('{"type": "Cluster", "name": "c", "devices": [], "hosts": ["a\\n"]}', r"hosts of Cluster holds '\\n'"),
        ('{"type": "Parameter", "name": "p", "shape": [1, null]}', "shape of Parameter"),
        ('{"type": "Parameter", "name": "p", "shape": 3}', "shape of Parameter"),
    ],
)
def test_damaged_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        codec.from_json(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Valid JSON is needed"),
        ("{}", "it has no type"),
        ('{"type": "Cost", "fixed_s": -1}', "must be finite and 0 or more"),
        ('{"type": "Cost", "fixed_s": "1"}', "It must be a number"),
        ('{"type": "ModelProfile", "name": "a"}', "ModelProfile lacks 'parameters'. It must be a list, each entry an object"),
    ],
)  # fmt: skip
def test_every_error_of_a_profile_begins_with_the_files_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        codec.read_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "JSON: " not in str(caught.value) and "<class" not in str(caught.value)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    text = codec.to_json(preset("mlp-small"))
    path.write_text(text, encoding="utf-8-sig")
    assert codec.read_profile(path) == preset("mlp-small") == codec.from_json("\ufeff" + text)


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InputError, match="A readable profile is needed"):
        codec.read_profile(Path("a\0b"))


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([]), st.just({}),
                   st.just({"type": "Cost"}), st.just([[1]]), st.just(10**400))  # fmt: skip


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Where in a JSON value something stands."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


PLACES = places(json.loads(codec.to_json(SMALL)))


@given(st.sampled_from(PLACES), VALUES)
@settings(max_examples=300, deadline=None)
def test_a_scenario_with_one_value_replaced_is_a_scenario_or_refused(place: tuple, value: object) -> None:
    data = json.loads(codec.to_json(SMALL))
    if place:
        *way, last = place
        inside = data
        for key in way:
            inside = inside[key]
        inside[last] = value
    else:
        data = value
    try:
        read = codec.from_json(json.dumps(data))
    except InputError:
        return
    assert codec.from_json(codec.to_json(read)) == read


@given(st.integers(0, 400), st.integers(1, 40))
def test_a_scenario_with_a_piece_cut_out_is_refused_or_whole(start: int, count: int) -> None:
    text = codec.to_json(SMALL)
    start %= len(text)
    try:
        codec.from_json(text[:start] + text[start + count :])
    except InputError as problem:
        assert str(problem)
