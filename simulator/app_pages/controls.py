"""The bench's controls, in the order of thought: model, cluster, batch, strategy; the rest folded.

Not modelled: nothing of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from simulator.app_pages.address import Address, flag, number, one_of, whole
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
    draw = _Controls(address, language)
    with st.container(key="first"):
        draw.first()
    machine = load_cluster(st.session_state["cluster"])
    with st.container(key="rest"):
        devices = st.session_state.get("devices", 0)
        used = machine.take(devices) if 0 < devices < machine.world_size else machine
        draw.strategies(impossible=data_parallel_obstacle(used) is not None)
        with st.expander(text("more", language)):
            draw.folded(machine)
            profile, problem = uploaded(language)
    chosen = {name: st.session_state[name] for name in NAMES}
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

    def say(self, key: str) -> str:
        return text(key, self.language)

    def select(self, name: str, options: Sequence[str], default: str, show: Callable[[str], str] = str) -> None:
        """One of a list, by its own name in the address."""
        self.address.begin(name, default, one_of(options), options)
        st.selectbox(self.say(name), options, format_func=show, key=name)

    def segments(self, name: str, options: Sequence[str], show: Callable[[str], str] = str, **more: Any) -> None:
        """One of two, both in sight. The first is the default."""
        self.address.begin(name, options[0], one_of(options), options)
        st.segmented_control(self.say(name), options, format_func=show, required=True, key=name, **more)

    def toggle(self, name: str, label: str, **more: Any) -> None:
        """On or off; off is the default."""
        st.toggle(label, key=self.address.begin(name, False, flag), **more)

    def first(self) -> None:
        """What is trained, where, and how many samples at once."""
        models = [
            *(name for name in FIRST if name in MODEL_NAMES),
            *(name for name in MODEL_NAMES if name not in FIRST),
        ]
        self.select("model", models, "resnet50", model_name)
        self.select("cluster", list(CLUSTERS), "4xA100", lambda name: cluster_name(name, self.language))
        self.address.begin("batch", 32, whole(1, MOST_ROWS))
        st.number_input(self.say("batch"), 1, MOST_ROWS, step=1, help=self.say("batch_help"), key="batch")

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

    def folded(self, machine: Cluster) -> None:
        """What a first look does not need."""
        counts = [0, *range(2, machine.world_size)]
        self.address.begin("devices", 0, whole(0, 4096), counts)
        everything = f"{self.say('all_of_them')} ({machine.world_size})"
        st.selectbox(self.say("devices"), counts, format_func=lambda n: str(n) if n else everything, key="devices")
        self.select("optimizer", list(OPTIMIZERS), "momentum")
        self.select("precision", list(MACHINES[machine.devices[0].kind].peak_flops_per_s), "fp32")
        self.select("algorithm", [name for name in ALGORITHMS if name != "nvls" or machine.multicast], "auto")
        self.select("inputs", INPUT_PLACES, "device", lambda place: self.say(f"inputs_{place}"))
        self.segments("iteration", ("steady", "first"), lambda name: self.say(f"iteration_{name}"))
        self.toggle("serial", self.say("serial"))
        self.address.begin("global_batch", None, whole(1, MOST_ROWS))
        st.number_input(self.say("global_batch"), 1, MOST_ROWS, value=None, step=1, help=self.say("global_help"),
                        key="global_batch")  # fmt: skip


def uploaded(language: str) -> tuple[str, str]:
    """A user's own profile as checked JSON, and what is wrong with it; both empty without a file."""
    file = st.file_uploader(text("upload", language), type="json", help=text("upload_help", language), key="profile")
    if file is None:
        return "", ""
    try:
        source = file.getvalue().decode("utf-8")
        read_profile(source)
    except UnicodeDecodeError:
        return "", text("upload_not_text", language)
    except InputError as error:
        return "", str(error)
    return source, ""
