"""Write the preset models: `python -m simulator.presets.record [names]`; without names, all of them.

Each file in `models/` is what `simulator.importers.module.describe` reads off one real forward and backward on a CPU,
in training mode, fp32, with the loss outside the module. Only shapes matter, so weights are random and nothing is
downloaded. A test records ResNet-18 again and compares. gpt2 needs 6 GB of memory. In an environment of its own:

    pip install torch==2.14.1 torchvision==0.29.1 transformers==5.24.0

gpt2 is Hugging Face's GPT2LMHeadModel (124M, tied head) on 1024 tokens; gpt2-512, -256 and -128 on fewer.
bert-base is BertForSequenceClassification with two classes on 128 tokens (BertModel, its pooler, a linear head).
Dropout inside attention is 0 in both, elsewhere their default: with it a CPU has no fused attention as CUDA has.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from simulator.errors import unknown
from simulator.importers.module import describe
from simulator.presets.facts import MODELS, ModelFacts, to_json


@dataclass(frozen=True)
class Recipe:
    """How to build one model: the module, an example input, the loss; which package it comes from."""

    build: Callable[[], tuple[Any, Any, Callable[[Any], Any]]]
    package: str
    batches: tuple[int, int] = (2, 4)
    tokens_per_sample: int = 1


def record(name: str) -> ModelFacts:
    """The facts of one preset model, recorded now. Raises InputError for a name that has no recipe."""
    if name not in RECIPES:
        raise unknown("model", name, RECIPES)
    recipe = RECIPES[name]
    module, example_input, loss = recipe.build()
    _labels()
    versions = ", ".join(f"{package} {version(package)}" for package in dict.fromkeys((recipe.package, "torch")))
    source = f"{type(module).__name__}, {versions}, recorded on a CPU in training mode at batches %d and %d"
    facts = describe(module, example_input, name=name, loss=loss, batches=recipe.batches,
                     source=source % recipe.batches)  # fmt: skip
    return replace(facts, tokens_per_sample=recipe.tokens_per_sample)


def _cross_entropy(logits: Any) -> Any:
    flat = logits.flatten(0, -2)
    return _module("torch.nn.functional").cross_entropy(flat, _labels()[: len(flat)])


@cache
def _labels() -> Any:
    """Made before the recording begins: a training loop gets its labels from the loader."""
    torch = _module("torch")
    return torch.zeros(4096, dtype=torch.long)


def _torchvision(name: str) -> tuple[Any, Any, Callable[[Any], Any]]:
    module = getattr(_module("torchvision.models"), name)(weights=None)
    return module, _module("torch").randn(2, 3, 224, 224), _cross_entropy


def _gpt2(tokens: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    torch, transformers = _module("torch"), _module("transformers")
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_pdrop=0.0, use_cache=False))
    return module.train(), {"input_ids": torch.zeros(1, tokens, dtype=torch.long)}, lambda out: _cross_entropy(out[0])


def _bert_base(tokens: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    torch, transformers = _module("torch"), _module("transformers")
    config = transformers.BertConfig(num_labels=2, attention_probs_dropout_prob=0.0)
    ids = torch.zeros(2, tokens, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return transformers.BertForSequenceClassification(config).train(), inputs, lambda out: _cross_entropy(out[0])


def _mlp(*widths: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    nn = _module("torch.nn")
    linears = [nn.Linear(before, after) for before, after in pairwise(widths)]
    parts = [part for linear in linears for part in (linear, nn.ReLU())][:-1]
    return nn.Sequential(*parts), _module("torch").randn(2, widths[0]), _cross_entropy


def _module(name: str) -> Any:
    """Imported when a recipe needs it: the simulator itself runs without any of these packages."""
    return importlib.import_module(name)


RECIPES: dict[str, Recipe] = {
    **{
        name: Recipe(partial(_torchvision, name), "torchvision")
        for name in ("resnet50", "vgg16", "resnet18", "alexnet", "densenet121")
    },
    "gpt2": Recipe(partial(_gpt2, 1024), "transformers", (1, 2), 1024),
    "gpt2-512": Recipe(partial(_gpt2, 512), "transformers", (1, 2), 512),
    "gpt2-256": Recipe(partial(_gpt2, 256), "transformers", (1, 2), 256),
    "gpt2-128": Recipe(partial(_gpt2, 128), "transformers", (1, 2), 128),
    "bert-base": Recipe(partial(_bert_base, 128), "transformers", (2, 4), 128),
    "mlp-small": Recipe(partial(_mlp, 784, 512, 256, 10), "torch"),
    "mlp-wide": Recipe(partial(_mlp, 4096, 4096, 4096, 10), "torch"),
}


def main(names: list[str]) -> None:
    """Record the models named, or all, and write each file."""
    MODELS.mkdir(exist_ok=True)
    for name in names or list(RECIPES):
        facts = record(name)
        (MODELS / f"{name}.json").write_text(to_json(facts), encoding="utf-8")
        print(f"{name}: {len(facts.layers)} layers, {facts.parameter_bytes} parameter bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
