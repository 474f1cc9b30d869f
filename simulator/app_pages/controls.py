"""The bench's controls, in the order of thought: model, cluster, batch, strategy; the rest folded.

Not modelled: nothing of its own.
"""

import streamlit as st

from simulator.app_pages.address import Address, flag, number, one_of, whole
from simulator.app_pages.runs import Choice, read_profile
from simulator.app_pages.texts import cluster_name, model_name, text
from simulator.backend import ALGORITHMS
from simulator.errors import InputError
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.presets.facts import MODEL_NAMES
from simulator.presets.machines import MACHINES
from simulator.scenario import INPUT_PLACES, OPTIMIZERS, TRANSPORTS

MODELS = ("resnet50", "vgg16", "gpt2", "bert-base", "densenet121", "resnet18", "alexnet", "gpt2-512", "gpt2-256", "gpt2-128",
          "mlp-small", "mlp-wide")  # fmt: skip
"""The order of the list; models that are not named here follow."""
MOST_ROWS = 65_536
NAMES = ("model", "cluster", "batch", "transport", "loss_inside", "bucket_cap_mb", "find_unused_parameters",
         "static_graph", "gradient_as_bucket_view", "devices", "optimizer", "precision", "algorithm", "serial", "inputs",
         "iteration", "global_batch")  # fmt: skip
"""What the address may hold."""


def controls(address: Address, language: str) -> tuple[Choice, str]:
    """Draw them. Returns what is chosen, and what is wrong with an uploaded file."""

    def t(key: str) -> str:
        return text(key, language)

    models = [*(name for name in MODELS if name in MODEL_NAMES), *(name for name in MODEL_NAMES if name not in MODELS)]
    clusters = list(CLUSTERS)
    with st.container(key="first"):
        model = st.selectbox(t("model"), models, format_func=model_name, key=address.begin("model", "resnet50", one_of(models), models))
        cluster = st.selectbox(t("cluster"), clusters, format_func=lambda name: cluster_name(name, language),
                               key=address.begin("cluster", "4xA100", one_of(clusters), clusters))  # fmt: skip
        batch = st.number_input(t("batch"), 1, MOST_ROWS, step=1, help=t("batch_help"),
                                key=address.begin("batch", 32, whole(1, MOST_ROWS)))  # fmt: skip
    machine = load_cluster(cluster)
    several = machine.nodes > 1
    with st.container(key="rest"):
        st.html(f"<b>{t('dp_options')}</b>")
        transport = st.segmented_control(t("transport"), TRANSPORTS, required=True, help=t("transport_help"), disabled=several,
                                         key=address.begin("transport", "nccl", one_of(TRANSPORTS), TRANSPORTS))  # fmt: skip
        loss_inside = st.toggle(t("loss_inside"), disabled=several, key=address.begin("loss_inside", False, flag))
        st.html(f"<b>{t('ddp_options')}</b>")
        cap = st.number_input("bucket_cap_mb", 0.0, 1e6, step=5.0, value=None, placeholder=t("cap_default"), help=t("cap_help"),
                              format="%g", key=address.begin("bucket_cap_mb", None, number(0, 1e6)))  # fmt: skip
        unused, static, view = (
            st.toggle(name, key=address.begin(name, False, flag))
            for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
        )
        with st.expander(t("more")):
            counts = [0, *range(2, machine.world_size)]
            devices = st.selectbox(t("devices"), counts, format_func=lambda n: f"{t('all_of_them')} ({machine.world_size})" if n == 0 else str(n),
                                   key=address.begin("devices", 0, whole(0, 4096), counts))  # fmt: skip
            optimizer = st.selectbox(t("optimizer"), list(OPTIMIZERS),
                                     key=address.begin("optimizer", "momentum", one_of(list(OPTIMIZERS))))  # fmt: skip
            precisions = list(MACHINES[machine.devices[0].kind].peak_flops_per_s)
            precision = st.selectbox(t("precision"), precisions, key=address.begin("precision", "fp32", str, precisions))
            algorithms = [name for name in ALGORITHMS if name != "nvls" or machine.multicast]
            algorithm = st.selectbox(t("algorithm"), algorithms, key=address.begin("algorithm", "auto", one_of(ALGORITHMS), algorithms))
            inputs = st.selectbox(t("inputs"), INPUT_PLACES, format_func=lambda place: t(f"inputs_{place}"),
                                  key=address.begin("inputs", "device", one_of(INPUT_PLACES)))  # fmt: skip
            iteration = st.segmented_control(t("iteration"), ("steady", "first"), format_func=lambda name: t(f"iteration_{name}"),
                                             required=True, key=address.begin("iteration", "steady", one_of(("steady", "first"))))  # fmt: skip
            serial = st.toggle(t("serial"), key=address.begin("serial", False, flag))
            rows = st.number_input(t("global_batch"), 1, MOST_ROWS, step=1, value=None, help=t("global_help"),
                                   key=address.begin("global_batch", None, whole(1, MOST_ROWS)))  # fmt: skip
            profile, problem = uploaded(language)
    choice = Choice(
        model, cluster, batch, transport or "nccl", loss_inside, cap, unused, static, view, devices, optimizer, precision,
        algorithm, serial, inputs, iteration == "first", rows or 0, profile,
    )  # fmt: skip
    return choice, problem


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
