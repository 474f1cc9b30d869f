"""Every word that the app's pages show, in English and in Chinese beside it. Names of torch, NCCL and errors stay English.

Not modelled: languages that need plural forms.
"""

import re

from simulator.app_pages.texts_player import ON_CPU, PLAYER, SPAN_NAMES

LANGUAGES = {"en": "English", "zh": "中文"}

TEXTS: dict[str, tuple[str, str]] = {
    # ---- the router
    "question_page": ("The question", "一道题"),
    "bench_page": ("The bench", "实验台"),
    # ---- the question
    "question": (
        "VGG-16 has five times ResNet-50's bytes. Which of the two does DataParallel hurt more?",
        "VGG-16 的参数字节数是 ResNet-50 的五倍。DataParallel 拖慢得更厉害的是哪一个？",
    ),
    "question_setting": (
        "Four A100s joined by NVLink, 12 images on each, one training step. Hurt means: how many times as long as the "
        "same step on one GPU alone.",
        "四张 A100，NVLink 互联，每卡 12 张图，训练一步。“拖慢”指：这一步用时是单卡跑同样一步的几倍。",
    ),
    "answer_button": ("{model} is hurt more", "{model} 更受拖累"),
    "tensors": ("{count} tensors", "{count} 个张量"),
    "right": ("Yes: {model}.", "对，是 {model}。"),
    "wrong": ("You said {said}. It is {model}.", "你选了 {said}，实际是 {model}。"),
    "both_alike": ("Neither: both are hurt alike.", "都不是：两者被拖慢的程度一样。"),
    "link_flips": ("Over {link} the answer is {model}.", "换成 {link}，答案变成 {model}。"),
    "link_keeps": ("Over {link} it is still {model}.", "换成 {link}，仍然是 {model}。"),
    "factors": (
        "DataParallel makes a step of {first} {first_factor} times as long as on one GPU, of {second} {second_factor} times.",
        "在 DataParallel 下，{first} 的一步是单卡的 {first_factor} 倍，{second} 是 {second_factor} 倍。",
    ),
    "why_python": (
        "{model}'s {tensors} tensors hold the step up by {host}: one Python thread builds {n} replicas of them (GPU 0 gets one "
        "too) and launches for {n} GPUs under one GIL, while its {bytes} cost {link} on {name}.",
        "{model} 有 {tensors} 个张量：唯一的 Python 线程要逐个建出 {n} 份副本（0 号卡也有一份），"
        "还要在一把 GIL 下替 {n} 张卡启动 kernel，这一步因此多等 {host}；而 {bytes} 参数在 {name} 上只多花 {link}。",
    ),
    "why_link": (
        "{model}'s {bytes} leave GPU 0 in every forward and return as gradients in every backward, which costs {link} on {name}; "
        "its {tensors} tensors cost the Python thread {host}.",
        "{model} 的 {bytes} 参数每次前向都从 0 号卡发出，反向时再以梯度的形式归约回来，在 {name} 上多花 {link}；"
        "{tensors} 个张量只让 Python 线程多花 {host}。",
    ),
    "why_memory": ("{model} does not fit GPU 0's memory.", "{model} 超出了 0 号卡的显存。"),
    "why_compute": ("Neither waits for much but compute.", "两者主要都在计算，几乎不等别的。"),
    "link": ("Link between the GPUs", "卡间链路"),
    "link_hint": ("Swap the link: same models, same GPUs", "换一种链路：模型和卡都不变"),
    "measured": (
        "Measured on such a machine (DGX A100, PyTorch 1.7, 12 images a GPU): ResNet-50 from 36.0 to 103 ms, VGG-16 from "
        "27.7 to 43.5 ms (ryujaehun/pytorch-gpu-benchmark). This page simulates; nothing runs on a GPU.",
        "真机实测（DGX A100，PyTorch 1.7，每卡 12 张图）：ResNet-50 从 36.0 ms 到 103 ms，VGG-16 从 27.7 ms 到 43.5 ms"
        "（ryujaehun/pytorch-gpu-benchmark）。本页是仿真，不占用 GPU。",
    ),
    "simulated": (
        "This page simulates; nothing runs on a GPU. No published run of this machine is known.",
        "本页是仿真，不占用 GPU；这种机器没有公开的实测数据。",
    ),
    "to_bench": ("Take {model} to the bench →", "到实验台细看 {model} →"),
    "ask_again": ("Ask me again", "重新作答"),
    "result": ("{time}, {one} alone {alone}", "{time}，{one} {alone}"),
    # ---- the bench: controls
    "model": ("Model", "模型"),
    "cluster": ("Cluster", "集群"),
    "batch": ("Batch per device", "每卡 batch"),
    "batch_help": (
        "What each DDP rank gets. DataParallel gets this times the number of devices as one batch.",
        "每个 DDP rank 拿到的样本数；DataParallel 拿到的一个 batch 是它乘以卡数。",
    ),
    "dp_options": ("DataParallel", "DataParallel"),
    "ddp_options": ("DistributedDataParallel", "DistributedDataParallel"),
    "transport": ("Transport", "传输方式"),
    "transport_help": (
        "nccl: one broadcast or reduce for each piece. peer_copy: N - 1 copies through device 0, one at a time.",
        "nccl：每块数据一次 broadcast 或 reduce。peer_copy：全部经过 0 号卡，逐个拷贝 N - 1 次。",
    ),
    "loss_inside": ("Loss inside the module", "loss 放在模型里"),
    "cap_help": (
        "MiB at which a bucket closes. Empty is torch's default: 1 for the first bucket, 25 for the others.",
        "bucket 达到多少 MiB 就封口。留空为 torch 默认值：第一个 1，其余 25。",
    ),
    "cap_default": ("1, then 25", "先 1，后 25"),
    "more": ("More", "更多"),
    "devices": ("Devices", "卡数"),
    "all_of_them": ("all", "全部"),
    "nothing": ("none", "不设"),
    "on": ("on", "开"),
    "off": ("off", "关"),
    "unanswered": ("the question", "题目"),
    "optimizer": ("Optimizer", "优化器"),
    "precision": ("Precision", "精度"),
    "algorithm": ("All-reduce algorithm", "all-reduce 算法"),
    "serial": ("No overlap at all", "完全不重叠"),
    "inputs": ("Inputs lie", "输入在"),
    "inputs_device": ("on the device", "显存里"),
    "inputs_host": ("in host memory", "主机一侧"),
    "iteration": ("Iteration", "第几步"),
    "iteration_steady": ("steady", "稳定后"),
    "iteration_first": ("the first", "第一步"),
    "global_batch": ("Global batch instead", "改用总 batch"),
    "global_help": (
        "Both strategies get this many rows in all; the batch per device is then ignored.",
        "两种方式都一共拿这么多样本；此时忽略每卡 batch。",
    ),
    "upload": ("Your own model (profile as JSON)", "用自己的模型（JSON profile）"),
    "upload_help": ("What simulator.codec.to_json wrote.", "由 simulator.codec.to_json 写出的文件。"),
    "from_file": ("{name} (your file)", "{name}（你的文件）"),
    "from_file_help": ("The file below takes the place of the list. Remove it to choose again.",
                       "“更多”里的文件代替了列表；移除它即可重新选择。"),
    "upload_used": ("Shown: {name} from your file. Remove the file to return to the list.",
                    "正在显示文件里的 {name}。移除文件即回到列表。"),
    "upload_bad": ("This file cannot be read, so {model} stays. ", "读不了这个文件，仍显示 {model}。"),
    "upload_not_text": ("It is not UTF-8 text.", "它不是 UTF-8 文本。"),
    "upload_not_profile": ("It holds {kind}, not a ModelProfile.", "里面是 {kind}，不是 ModelProfile。"),
    # ---- the bench: answers
    "bad_value": ("{name} = {given} is not possible here; shown is {used}.", "这里不能用 {name} = {given}，改为 {used}。"),
    "cannot_run": ("This combination cannot run. ", "这个组合跑不了。"),
    "one_machine": (
        "DataParallel cannot run here: it is one process and sees the GPUs of one machine, and {cluster} has {nodes} machines.",
        "DataParallel 在这里跑不了：它是单进程，只看得到一台机器上的卡，而 {cluster} 有 {nodes} 台机器。",
    ),
    "no_gpus": (
        "DataParallel would change nothing here: on a CPU it has no device_ids and calls the module as it is.",
        "DataParallel 在这里不起作用：在 CPU 上没有 device_ids，它只是原样调用模型。",
    ),
    "alone_only": ("One device: there is nothing to communicate.", "只有一张卡：没有通信。"),
    "both_batches": (
        "Batches: DDP gives each of {n} ranks {rows}; DataParallel takes {total} as one batch and cuts it into {chunks}.",
        "batch：DDP 的 {n} 个 rank 各拿 {rows}；DataParallel 把 {total} 当作一个 batch，切成 {chunks}。",
    ),
    "batches_ddp": ("Batches: {n} ranks with {rows} each, {total} in all.", "batch：{n} 个 rank 各拿 {rows}，一共 {total}。"),
    "memory_colours": ("Memory:", "显存："),
    "numbers": ("Numbers", "数字"),
    "one_gpu": ("one GPU", "单卡"),
    "one_rank": ("one rank", "单进程"),
    "row_step": ("step", "一步用时"),
    "row_rate": ("samples/s", "样本/秒"),
    "row_speedup": ("speed-up, same batch per device", "加速比（每卡 batch 相同）"),
    "row_same": ("speed-up, same global batch", "加速比（总 batch 相同）"),
    "row_exposed": ("exposed communication", "未被掩盖的通信"),
    "row_overlap": ("overlap", "计算通信重叠"),
    "row_sent": ("bytes sent, busiest device", "发送最多的卡发出"),
    "row_first": ("peak memory, {first}", "显存峰值，{first}"),
    "row_others": ("peak memory, the others", "显存峰值，其余"),
    "does_not_fit": ("does not fit", "放不下"),
    "context_note": (
        "Peaks are what torch.cuda.max_memory_allocated shows; nvidia-smi shows {context} more for the CUDA context.",
        "峰值对应 torch.cuda.max_memory_allocated；nvidia-smi 还会多出 {context} 的 CUDA context。",
    ),
    "path": ("What the step waits for", "这一步在等什么"),
    "path_more": ("{count} more", "另有 {count} 项"),
    "buckets": ("Buckets, in launch order", "bucket（梯度桶），按发起顺序"),
    "bucket_row": ("bucket", "bucket"),
    "bucket_bytes": ("bytes", "字节"),
    "bucket_sent": ("all-reduced", "all-reduce 区间"),
    "bucket_hidden": ("hidden", "被掩盖"),
    "first_iteration": (
        "In the first iteration there is one bucket for each dtype and nothing overlaps; torch builds the others after it.",
        "第一步里每种 dtype 只有一个 bucket，没有任何重叠；之后 torch 才重建 bucket。",
    ),
    "unverified": ("not verified on GPUs", "未在 GPU 上验证"),
    "NEVER_RUN": (
        "DataParallel's transport over NCCL was read in torch's source and never run on several GPUs here.",
        "DataParallel 走 NCCL 的这段是读 torch 源码得出的，没有在多张卡上跑过。",
    ),
    "sources": ("Where the figures come from", "数字从哪里来"),
    "source_model": ("Model", "模型"),
    "source_cluster": ("Cluster", "集群"),
    "source_library": ("Communicator", "通信库"),
}  # fmt: skip

TEXTS_ON_CPU: dict[str, tuple[str, str]] = {
    "batch": ("Batch per rank", "每个 rank 的 batch"),
    "batch_help": ("What each DDP rank gets.", "每个 DDP rank 拿到的样本数。"),
    "devices": ("Ranks", "rank 数"),
    "inputs_device": ("in place", "已就位"),
    "inputs_host": ("to be copied first", "先要拷贝"),
    "global_help": (
        "The ranks get this many rows in all; the batch per rank is then ignored.",
        "所有 rank 一共拿这么多样本；此时忽略每个 rank 的 batch。",
    ),
    "alone_only": ("One rank: there is nothing to communicate.", "只有一个 rank：没有通信。"),
    "memory_colours": ("Memory:", "内存："),
    "row_speedup": ("speed-up, same batch per rank", "加速比（每个 rank 的 batch 相同）"),
    "row_sent": ("bytes sent, busiest rank", "发送最多的 rank 发出"),
    "row_first": ("peak memory, {first}", "内存峰值，{first}"),
    "row_others": ("peak memory, the others", "内存峰值，其余"),
}  # fmt: skip
"""What replaces the texts above where ranks train on a CPU: there is no card and no memory of its own."""

MODEL_NAMES = {
    "alexnet": "AlexNet", "bert-base": "BERT-base", "densenet121": "DenseNet-121", "gpt2": "GPT-2 small",
    "gpt2-128": "GPT-2 small, 128 tokens", "gpt2-256": "GPT-2 small, 256 tokens", "gpt2-512": "GPT-2 small, 512 tokens",
    "mlp-small": "MLP, small", "mlp-wide": "MLP, wide", "resnet18": "ResNet-18", "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
}  # fmt: skip

_LINKS = {
    "pcie": ("PCIe 3", "PCIe 3"), "pcie3": ("PCIe 3", "PCIe 3"), "pcie4": ("PCIe 4", "PCIe 4"),
    "dgx1": ("DGX-1, NVLink mesh", "DGX-1，NVLink 网格"), "nvlink": ("NVLink bridge", "NVLink 桥"),
    "1nic": ("one 100 Gb NIC", "单张 100 Gb 网卡"), "8nic": ("eight 100 Gb NICs", "八张 100 Gb 网卡"),
    "nopeer": ("PCIe 4, no peer access", "PCIe 4，卡间不能直连"),
    "staged": ("PCIe 3, no peer access", "PCIe 3，卡间不能直连"),
    "10gbe": ("10 Gb Ethernet", "10 Gb 以太网"), "": ("NVSwitch", "NVSwitch"),
}  # fmt: skip


def text(key: str, language: str, *, on_cpu: bool = False, **values: object) -> str:
    """The text of a key in "en" or "zh", with its blanks filled."""
    pair = TEXTS_ON_CPU.get(key, TEXTS[key]) if on_cpu else TEXTS[key]
    return pair[language == "zh"].format(**values)


def model_name(name: str) -> str:
    """A preset's name as people write it; another name as it is."""
    return MODEL_NAMES.get(name, name)


def cluster_name(name: str, language: str) -> str:
    """A cluster preset in words; a name of another form as it is."""
    if name == "laptop":
        return ("A laptop's CPU, 4 ranks, gloo", "笔记本 CPU，4 个 rank，gloo")[language == "zh"]
    found = re.fullmatch(r"(?:(2)x)?(\d+)x(V100|A100|H100|2080Ti|4090|TITAN-RTX)(?:-(\w+))?", name)
    if not found or (found[4] or "") not in _LINKS:
        return name
    staged = found[4] == "pcie" and found[3] in ("2080Ti", "TITAN-RTX")
    nodes, count, kind = found[1], found[2], found[3].replace("-", " ")
    link = _LINKS["staged" if staged else found[4] or ""]
    if language == "zh":
        many = f"2 机 × {count} {kind}" if nodes else f"{count} × {kind}"
        return f"{many}，{link[1]}"
    many = f"2 × {count} {kind}" if nodes else f"{count} × {kind}"
    return f"{many}, {link[0]}"


def player_words(language: str, *, on_cpu: bool = False) -> dict[str, str]:
    """All texts of the drawing; ranks on a CPU are not called GPUs."""
    return {key: pair[language == "zh"] for key, pair in (PLAYER | (ON_CPU if on_cpu else {})).items()}


def span_name(name: str, language: str) -> str:
    """The name of a piece of work in the language; layers, buckets and API names stay as they are."""
    if language != "zh":
        return name
    for pattern, chinese in SPAN_NAMES:
        found = pattern.fullmatch(name)
        if found:
            return chinese.format(*found.groups())
    return name
