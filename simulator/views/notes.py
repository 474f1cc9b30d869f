"""Sentences that travel with a trace or a comparison in English, and their Chinese."""

import re

_CHINESE = (
    (r"DataParallel's transport over NCCL was read in torch's source and never run on several GPUs here\.",
     "DataParallel 走 NCCL 的这段是读 torch 源码得出的，没有在多张 GPU 上跑过。"),
    (r"it is one process and sees one machine, here are (\d+) nodes", r"它是单进程，只能用一台机器，这里有 \1 台"),
    (r"without GPUs it has no device_ids and calls the module as it is", "没有 GPU 时 device_ids 为空，只是直接调用模块"),
)  # fmt: skip


def in_language(note: str, language: str) -> str:
    """The sentence in "en" or "zh"; English where there is no Chinese of it."""
    if language == "zh":
        for english, chinese in _CHINESE:
            if re.fullmatch(english, note):
                return re.sub(english, chinese, note)
    return note
