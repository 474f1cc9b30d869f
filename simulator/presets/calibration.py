"""Published steps of one device: the row that fixes each preset, and the rows that it predicts.

A row is one training step, or a throughput, as its source prints it. Every step contains forward, loss and backward,
and the optimizer that is named. `work` is the work of one published sample beside one of the recorded model, where
they differ: BERT-base on 384 tokens beside 128 is 3 * (1 + 384 / 4608) / (1 + 128 / 4608), since attention's products
grow with the square of the tokens (T / (6 * 768) of the others').

Not modelled: nothing; these are data.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One published number."""

    value: float
    unit: str
    """"s": seconds a step; "ms"; "samples/s"; "tokens/s"."""
    batch: int
    source: str
    optimizer: str = "momentum"
    work: float = 1.0
    inputs_s: float = 0.0
    """Seconds of copying the inputs from the host, where that is inside the step."""
    batch_printed: bool = True
    """False: the source does not print the batch, and it is taken to be this one."""

    def step_s(self, tokens_per_sample: int = 1) -> float:
        """Seconds of one step."""
        if self.unit in ("s", "ms"):
            return self.value * (1e-3 if self.unit == "ms" else 1.0)
        return self.batch * (tokens_per_sample if self.unit == "tokens/s" else 1) / self.value

    @property
    def text(self) -> str:
        """The row in words."""
        return f"{self.value:g} {self.unit} at batch {self.batch} ({self.source})"


@dataclass(frozen=True)
class Calibration:
    """The row that fixes a preset's slowness, and the rows that then follow."""

    row: Row
    predicts: tuple[Row, ...] = ()


_PYTORCH = "pytorch/pytorch benchmarks/distributed/ddp/README.md, torch 1.4"
_DLE = "NVIDIA/DeepLearningExamples ResNet-50 v1.5"
_LAMBDA = "lambdal/deeplearning-benchmark ResNet-50, containers 20.01 and 20.10"
_LAMBDA_BERT = "lambdal/deeplearning-benchmark BERT SQuAD, sequence 384"
_DPWEAK = "ryujaehun/pytorch-gpu-benchmark, train step without optimizer, inputs copied from the host"
_IMAGES = 12 * 602_112
"""Bytes of 12 images of 224 x 224."""
_HF = "huggingface/transformers#9371, 1 GPU"
_GPT2_A100 = "public benchmark notes, gpt2 at sequence 512 on one cloud A100"
_LONG = 3 * (1 + 384 / 4608) / (1 + 128 / 4608)

CALIBRATION: dict[tuple[str, str, str], Calibration] = {
    ("resnet50", "V100", "fp32"): Calibration(
        Row(0.097, "s", 32, f"{_PYTORCH}, no DDP"),
        (Row(367, "samples/s", 256, f"{_DLE}, NGC 21.03, V100-SXM2-16GB"),
         Row(356, "samples/s", 256, f"{_DLE}, NGC 21.03, V100-SXM2-32GB"),
         Row(370.75, "samples/s", 296, _LAMBDA),
         Row(402.23, "samples/s", 256, f"{_DLE}, NGC 19.09, V100-SXM3 (DGX-2)", batch_printed=False)),
    ),
    ("resnet50", "V100", "amp"): Calibration(
        Row(844.96, "samples/s", 608, _LAMBDA),
        (Row(1200, "samples/s", 256, f"{_DLE}, NGC 21.03, V100-SXM2-16GB"),
         Row(856.52, "samples/s", 256, f"{_DLE}, NGC 20.06, V100-SXM2-16GB", batch_printed=False)),
    ),
    ("bert-base", "V100", "fp32"): Calibration(
        Row(42.3873, "samples/s", 16, _LAMBDA_BERT, "adam", _LONG, batch_printed=False),
    ),
    ("resnet50", "A100", "fp32"): Calibration(
        Row(806.1, "samples/s", 360, f"{_LAMBDA}, A100-SXM4-40GB, TF32"),
        (Row(938, "samples/s", 256, f"{_DLE}, NGC 21.03, A100-SXM4-80GB, TF32"),
         Row(929.52, "samples/s", 720, f"{_LAMBDA}, A100-SXM4-80GB, TF32"),
         Row(680.15, "samples/s", 256, f"{_DLE}, NGC 20.06, A100-SXM4-40GB, TF32", batch_printed=False),
         Row(35.9591, "ms", 12, _DPWEAK, "none", inputs_s=_IMAGES / 25e9)),
    ),
    ("resnet50", "A100", "amp"): Calibration(
        Row(1222.39, "samples/s", 720, f"{_LAMBDA}, A100-SXM4-40GB"),
        (Row(2470, "samples/s", 256, f"{_DLE}, NGC 21.03, A100-SXM4-80GB"),
         Row(1240.81, "samples/s", 256, f"{_DLE}, NGC 20.06, A100-SXM4-40GB", batch_printed=False)),
    ),
    ("vgg16", "A100", "fp32"): Calibration(Row(27.6802, "ms", 12, _DPWEAK, "none", inputs_s=_IMAGES / 25e9)),
    ("gpt2-512", "A100", "fp32"): Calibration(
        Row(19633.2, "tokens/s", 16, _GPT2_A100, "adam"),
        (Row(17921.3, "tokens/s", 4, _GPT2_A100, "adam"), Row(20603.2, "tokens/s", 64, _GPT2_A100, "adam")),
    ),
    ("resnet50", "H100", "fp32"): Calibration(
        Row(23.9 + 46.0 + 0.8, "ms", 128, "sarchlab/triosim, sum of kernel times, torch 2.1, one H100"),
    ),
    ("resnet50", "2080Ti", "fp32"): Calibration(
        Row(276.19, "samples/s", 100, _LAMBDA), (Row(55.9123, "ms", 12, _DPWEAK, "none", inputs_s=_IMAGES / 12e9),)
    ),
    ("resnet50", "2080Ti", "amp"): Calibration(Row(530.83, "samples/s", 160, _LAMBDA)),
    ("vgg16", "2080Ti", "fp32"): Calibration(Row(85.3597, "ms", 12, _DPWEAK, "none", inputs_s=_IMAGES / 12e9)),
    ("bert-base", "2080Ti", "fp32"): Calibration(Row(30.8737, "samples/s", 10, _LAMBDA_BERT, "adam", _LONG)),
    ("resnet50", "TITAN-RTX", "fp32"): Calibration(Row(307.94, "samples/s", 224, _LAMBDA)),
    ("resnet50", "TITAN-RTX", "amp"): Calibration(Row(648.82, "samples/s", 448, _LAMBDA)),
    ("bert-base", "TITAN-RTX", "fp32"): Calibration(
        Row(39.8315, "samples/s", 24, _LAMBDA_BERT, "adam", _LONG, batch_printed=False)
    ),
    ("gpt2-128", "TITAN-RTX", "fp32"): Calibration(Row(48.9, "ms", 4, f"{_HF}, block 128", "adam")),
    ("gpt2-256", "TITAN-RTX", "fp32"): Calibration(Row(76.1, "ms", 4, f"{_HF}, block 256", "adam")),
    ("gpt2-512", "TITAN-RTX", "fp32"): Calibration(Row(145.2, "ms", 4, f"{_HF}, block 512", "adam")),
    ("gpt2", "TITAN-RTX", "fp32"): Calibration(
        Row(510, "ms", 4, "huggingface/transformers#9824, 102 s for 200 steps, block 1024", "adam")
    ),
}  # fmt: skip
