"""The bench's controls, in the order of thought: model, cluster, batch, strategy; the rest folded.

Not modelled: nothing of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from simulator.app_pages.address import Address, flag, number, one_of, whole
from simulator.app_pages.blocks import short
from simulator.app_pages.runs import Choice, read_profile
from simulator.app_pages.texts import cluster_name, model_name, text
from simulator.backend import ALGORITHMS
from simulator.cluster import Cluster
from simulator.errors import InputError
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.presets.facts import MODEL_NAMES
from simulator.presets.machines import MACHINES
from simulator.scenario import INPUT_PLACES, OPTIMIZERS, TRANSPORTS, data_parallel_obstacle

FIRST = ("resnet50", "vgg16", "gpt2", "bert-base", "densenet121", "resnet18", "alexnet")
"""These models lead the list; the others follow by name."""
MOST_ROWS = 65_536
FLAGS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
NAMES = ("model", "cluster", "batch", "transport", "loss_inside", "bucket_cap_mb", *FLAGS, "devices", "optimizer",
         "precision", "algorithm", "inputs", "iteration", "serial", "global_batch")  # fmt: skip
"""What the address may hold."""


def controls(address: Address, language: str) -> tuple[Choice, str]:
    """Draw them. Returns what is chosen, and what is wrong with an uploaded file."""
    profile, file_name, problem = uploaded(language)
    draw = _Controls(address, language)
    with st.container(key="first"):
        machine = draw.first(file_name)
    with st.container(key="rest"):
        counts = draw.begin_devices(machine)
        devices = address.value("devices")
        used = machine.take(devices) if 0 < devices < machine.world_size else machine
        draw.strategies(impossible=data_parallel_obstacle(used) is not None)
        with st.expander(text("more", language), key="more"):
            draw.folded(machine, counts)
            st.file_uploader(text("upload", language), type="json", help=text("upload_help", language), key="profile")
    chosen = {name: address.value(name) for name in NAMES}
    unused, static, view = (bool(chosen[name]) for name in FLAGS)
    choice = Choice(
        chosen["model"], chosen["cluster"], chosen["batch"], chosen["transport"], chosen["loss_inside"],
        chosen["bucket_cap_mb"], unused, static, view, chosen["devices"], chosen["optimizer"], chosen["precision"],
        chosen["algorithm"], chosen["serial"], chosen["inputs"], chosen["iteration"] == "first",
        chosen["global_batch"] or 0, profile,
    )  # fmt: skip
    return choice, problem


@dataclass(frozen=True)
class _Controls:
    address: Address
    language: str

    def say(self, key: str, *, on_cpu: bool = False) -> str:
        return text(key, self.language, on_cpu=on_cpu)

    def select(self, name: str, options: Sequence[str], default: str, show: Callable[[str], str] = str) -> None:
        """One of a list, by its own name in the address."""
        key = self.address.begin(name, default, one_of(options), options, show)
        st.selectbox(self.say(name), options, format_func=show, key=key)

    def segments(self, name: str, options: Sequence[str], show: Callable[[str], str] = str, **more: Any) -> None:
        """One of two, both in sight. The first is the default."""
        key = self.address.begin(name, options[0], one_of(options), options, show)
        st.segmented_control(self.say(name), options, format_func=show, required=True, key=key, **more)

    def toggle(self, name: str, label: str, **more: Any) -> None:
        """On or off; off is the default."""
        st.toggle(label, key=self.address.begin(name, False, flag), **more)

    def first(self, file_name: str) -> Cluster:
        """What is trained, where, and how many samples at once. The Model box shows a user's file in place of the list."""
        models = [
            *(name for name in FIRST if name in MODEL_NAMES),
            *(name for name in MODEL_NAMES if name not in FIRST),
        ]
        if file_name:
            name = text("from_file", self.language, name=short(file_name))
            key = self.address.begin("model", "resnet50", one_of(models), models, lambda _: name)
            whole_name = f"{file_name}. " if short(file_name) != file_name else ""
            st.selectbox(self.say("model"), [st.session_state[key]], format_func=lambda _: name, key=key, disabled=True,
                         help=whole_name + self.say("from_file_help"))  # fmt: skip
        else:
            self.select("model", models, "resnet50", model_name)
        self.select("cluster", list(CLUSTERS), "4xA100", lambda name: cluster_name(name, self.language))
        machine = load_cluster(self.address.value("cluster"))
        cpu = _on_cpu(machine)
        self.address.begin("batch", 32, whole(1, MOST_ROWS))
        st.number_input(
            self.say("batch", on_cpu=cpu), 1, MOST_ROWS, step=1, help=self.say("batch_help", on_cpu=cpu), key="batch"
        )
        return machine

    def strategies(self, *, impossible: bool) -> None:
        """The options of both, in torch's names."""
        st.html("<b>DataParallel</b>")
        self.segments("transport", TRANSPORTS, help=self.say("transport_help"), disabled=impossible)
        self.toggle("loss_inside", self.say("loss_inside"), disabled=impossible)
        st.html("<b>DistributedDataParallel</b>")
        self.address.begin("bucket_cap_mb", None, number(0, 1e6))
        st.number_input("bucket_cap_mb", 0.0, 1e6, value=None, step=5.0, format="%g", placeholder=self.say("cap_default"),
                        help=self.say("cap_help"), key="bucket_cap_mb")  # fmt: skip
        for name in FLAGS:
            self.toggle(name, name)

    def begin_devices(self, machine: Cluster) -> dict[int, str]:
        """How many devices there may be, with their labels; 0 is all. What is drawn earlier asks for the value."""
        counts = {0: f"{self.say('all_of_them')} ({machine.world_size})"}
        counts |= {count: str(count) for count in range(1, machine.world_size)}
        self.address.begin("devices", 0, whole(0, 4096), list(counts), counts.__getitem__)
        return counts

    def folded(self, machine: Cluster, counts: dict[int, str]) -> None:
        """What a first look does not need."""
        cpu = _on_cpu(machine)
        st.selectbox(self.say("devices", on_cpu=cpu), list(counts), format_func=counts.__getitem__,
                     key=self.address.keys["devices"])  # fmt: skip
        self.select("optimizer", list(OPTIMIZERS), "momentum")
        self.select("precision", list(MACHINES[machine.devices[0].kind].peak_flops_per_s), "fp32")
        self.select("algorithm", [name for name in ALGORITHMS if name != "nvls" or machine.multicast], "auto")
        self.select("inputs", INPUT_PLACES, "device", lambda place: self.say(f"inputs_{place}", on_cpu=cpu))
        self.segments("iteration", ("steady", "first"), lambda name: self.say(f"iteration_{name}"))
        self.toggle("serial", self.say("serial"))
        self.address.begin("global_batch", None, whole(1, MOST_ROWS))
        st.number_input(self.say("global_batch"), 1, MOST_ROWS, value=None, step=1, help=self.say("global_help", on_cpu=cpu),
                        key="global_batch")  # fmt: skip


def _on_cpu(machine: Cluster) -> bool:
    return machine.devices[0].kind == "CPU"


def uploaded(language: str) -> tuple[str, str, str]:
    """A user's own profile as checked JSON, its model's name, and what is wrong with it; all empty without a file.

    The file is read before its control is drawn: the Model box stands above.
    """
    file = st.session_state.get("profile")
    if file is None:
        return "", "", ""
    try:
        source = file.getvalue().decode("utf-8")
        name = read_profile(source).name
    except UnicodeDecodeError:
        return "", "", text("upload_not_text", language)
    except InputError as error:
        return "", "", str(error)
    return source, name or "?", ""
