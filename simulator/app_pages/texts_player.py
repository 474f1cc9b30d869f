"""The words inside the drawing, and the Chinese of what its bars are called.

Not modelled: names of a learner's own programs; they are shown as they were given.
"""

import re

PLAYER: dict[str, tuple[str, str]] = {
    "picture": (
        "Timelines on one clock. Space plays, arrow keys step, plus and minus zoom, question mark lists all keys.",
        "同一时钟下的时间线。空格播放，方向键逐步，加减号缩放，问号列出全部按键。",
    ),
    "hint": (
        "Space plays. Point at a bar for its details, or walk with the arrow keys. Ctrl and wheel zoom.",
        "空格播放。指向色块看细节，也可用方向键逐个走。按住 Ctrl 滚轮缩放。",
    ),
    "play": ("Play", "播放"),
    "pause": ("Pause", "暂停"),
    "speed": ("Time shown in one second", "每秒播放多长时间"),
    "rate": ("{time} a second", "每秒 {time}"),
    "fit": ("Fit", "全部"),
    "zoom_in": ("Zoom in", "放大"),
    "zoom_out": ("Zoom out", "缩小"),
    "keys": ("Keys", "按键"),
    "key_list": (
        "Space|play or pause\n← →|previous or next piece of work in the lane\n↑ ↓|another lane\nHome End|start or end\n"
        "+ −|zoom (also Ctrl and wheel, or pinch)\n0|fit\nShift ← →|move the view\nEnter|zoom to the chosen piece\n"
        "b|back to its cause\np|critical path on or off\n[ ]|slower or faster\nEsc|clear",
        "空格|播放或暂停\n← →|本行的上一段或下一段\n↑ ↓|换一行\nHome End|开头或结尾\n+ −|缩放（也可 Ctrl 加滚轮，或双指）\n"
        "0|看全部\nShift ← →|移动视野\nEnter|放大到选中的一段\nb|回到它的起因\np|关键路径开关\n[ ]|慢一点或快一点\nEsc|清除",
    ),
    "device": ("GPU {device}", "{device} 号卡"),
    "process": ("Python", "Python"),
    "lane_python": ("one GIL", "一把 GIL"),
    "lane_host": ("host", "主机"),
    "lane_compute": ("compute", "计算"),
    "lane_communication": ("comm", "通信"),
    "memory": ("memory", "显存"),
    "hidden_one": ("GPU {from}", "{from} 号卡"),
    "hidden_many": ("GPU {from} to {to}", "{from} 到 {to} 号卡"),
    "all_devices": ("All GPUs", "所有卡"),
    "fewer_devices": ("Fewer GPUs", "只看几张"),
    "peak": (
        "torch allocates {allocated} at most, {peak} with the CUDA context",
        "torch 分配峰值 {allocated}，连同 CUDA context 共 {peak}",
    ),
    "peak_of": (
        "torch allocates {allocated} at most, {peak} with the CUDA context, of {limit}",
        "torch 分配峰值 {allocated}，连同 CUDA context 共 {peak}，上限 {limit}",
    ),
    "full_at": ("full at {bytes}", "上限 {bytes}"),
    "all": ("in all", "合计"),
    "waits": ("waiting", "等待"),
    "waits_for": ("waits for {what}", "等 {what}"),
    "python_thread": ("the Python thread", "Python 线程"),
    "host_thread": ("its host thread", "主机线程"),
    "unfinished": ("never finished: {what}", "没有结束：{what}"),
    "over": ("done", "完成"),
    "alone": ("one GPU alone", "单卡一步"),
    "path_line": ("the step waits for this", "关键路径"),
    "on_path": ("The step waits for this.", "在关键路径上。"),
    "begins": ("begins", "开始"),
    "lasts": ("lasts", "时长"),
    "until": ("until", "等到"),
    "bytes": ("bytes", "字节"),
    "bucket": ("bucket", "bucket"),
    "torch": ("in torch", "torch 中"),
    "after": ("starts after", "起因"),
    "zoom_more": ("{count} pieces share this pixel: zoom in.", "这一像素里有 {count} 段：请放大。"),
    "which_does": ("{text} ({what})", "{text}（{what}）"),
    "on_device": ("{device} {text}", "{device}{text}"),
    "colon": (": ", "："),
    "comma": (", ", "，"),
    "semicolon": ("; ", "；"),
    "host Module.forward": ("launches the forward", "启动前向"),
    "host Engine::evaluate_function": ("launches the backward", "启动反向"),
    "host replicate": ("builds the replicas", "构建副本"),
    "host comm.broadcast_coalesced": ("flattens parameters", "展平参数"),
    "host comm.reduce_add_coalesced": ("flattens gradients", "展平梯度"),
    "host Reducer::autograd_hook": ("hooks", "hook"),
    "host ": ("training loop", "训练循环"),
}  # fmt: skip

SPAN_NAMES: tuple[tuple[re.Pattern[str], str], ...] = tuple((re.compile(pattern), chinese) for pattern, chinese in (
    (r"launch backward of (.+)", "启动 {0} 的反向"),
    (r"launch (all_reduce|broadcast)(.*)", "发起 {0}{1}"),
    (r"launch (.+)", "启动 {0}"),
    (r"(.+) backward", "{0} 反向"),
    (r"copy (.+) into buckets", "{0} 的梯度拷入 bucket"),
    (r"copy bucket (\d+) back", "bucket {0} 拷回梯度"),
    (r"wait for (.+)", "等 {0}"),
    (r"hooks of (.+)", "{0} 的 hook"),
    (r"replicate parameters, piece (\d+)", "replicate 参数，第 {0} 块"),
    (r"broadcast buffers, piece (\d+)", "broadcast buffer，第 {0} 块"),
    (r"reduce gradients, piece (\d+)", "归约梯度，第 {0} 块"),
    (r"flatten parameters and buffers", "展平参数和 buffer"),
    (r"flatten gradients", "展平梯度"),
    (r"build the replicas", "构建副本"),
    (r"copy inputs to the device", "输入拷到显存"),
    (r"scatter inputs", "scatter 输入"),
    (r"gather outputs", "gather 输出"),
    (r"scatter output gradients", "scatter 输出的梯度"),
    (r"training loop", "训练循环"),
    (r"optimizer \((.+)\)", "优化器（{0}）"),
    (r"loss", "损失"),
))  # fmt: skip

ON_CPU: dict[str, tuple[str, str]] = {
    "device": ("rank {device}", "rank {device}"),
    "hidden_one": ("rank {from}", "rank {from}"),
    "hidden_many": ("rank {from} to {to}", "rank {from} 到 {to}"),
    "all_devices": ("All ranks", "所有 rank"),
    "fewer_devices": ("Fewer ranks", "只看几个"),
    "alone": ("one rank alone", "单进程一步"),
    "memory": ("memory", "内存"),
    "peak": ("torch allocates {allocated} at most", "torch 分配峰值 {allocated}"),
    "peak_of": ("torch allocates {allocated} at most, of {limit}", "torch 分配峰值 {allocated}，上限 {limit}"),
}
"""What replaces the words above where ranks train on a CPU."""
