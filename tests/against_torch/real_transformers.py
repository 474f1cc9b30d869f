"""GPT-2 small and BERT base in plain torch, compact: parameters, names and order as in Hugging Face's transformers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """12 heads of 64 channels each."""
    batch, length, channels = query.shape
    heads = (t.view(batch, length, 12, 64).transpose(1, 2) for t in (query, key, value))
    mixed = F.scaled_dot_product_attention(*heads, is_causal=causal)
    return mixed.transpose(1, 2).reshape(batch, length, channels)


class Conv1D(nn.Module):
    """transformers.pytorch_utils.Conv1D: a Linear whose weight is stored transposed."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x W + b."""
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


def named(**children: nn.Module) -> nn.Module:
    """A module that only holds children."""
    holder = nn.Module()
    for name, child in children.items():
        holder.add_module(name, child)
    return holder


class GPT2(nn.Module):
    """transformers.GPT2LMHeadModel, small: the head's weight is the token embedding."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            named(
                ln_1=nn.LayerNorm(768),
                attn=named(c_attn=Conv1D(3 * 768, 768), c_proj=Conv1D(768, 768)),
                ln_2=nn.LayerNorm(768),
                mlp=named(c_fc=Conv1D(4 * 768, 768), c_proj=Conv1D(768, 4 * 768)),
            )
            for _ in range(12)
        ]
        self.transformer = named(wte=nn.Embedding(50257, 768), wpe=nn.Embedding(1024, 768),
                                 h=nn.ModuleList(blocks), ln_f=nn.LayerNorm(768))  # fmt: skip
        self.lm_head = nn.Linear(768, 50257, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        parts = self.transformer
        x = parts.wte(tokens) + parts.wpe(torch.arange(tokens.shape[1]))
        for block in parts.h:
            query, key, value = block.attn.c_attn(block.ln_1(x)).split(768, 2)
            x = x + block.attn.c_proj(attention(query, key, value, causal=True))
            x = x + block.mlp.c_proj(F.gelu(block.mlp.c_fc(block.ln_2(x)), approximate="tanh"))
        return self.lm_head(parts.ln_f(x))


class Bert(nn.Module):
    """transformers.BertForMaskedLM, base, uncased: the decoder's weight is the word embedding."""

    def __init__(self) -> None:
        super().__init__()
        embeddings = named(
            word_embeddings=nn.Embedding(30522, 768),
            position_embeddings=nn.Embedding(512, 768),
            token_type_embeddings=nn.Embedding(2, 768),
            LayerNorm=nn.LayerNorm(768),
        )
        layers = [
            named(
                attention=named(
                    self=named(query=nn.Linear(768, 768), key=nn.Linear(768, 768), value=nn.Linear(768, 768)),
                    output=named(dense=nn.Linear(768, 768), LayerNorm=nn.LayerNorm(768)),
                ),
                intermediate=named(dense=nn.Linear(768, 3072)),
                output=named(dense=nn.Linear(3072, 768), LayerNorm=nn.LayerNorm(768)),
            )
            for _ in range(12)
        ]
        self.bert = named(embeddings=embeddings, encoder=named(layer=nn.ModuleList(layers)))
        predictions = named(transform=named(dense=nn.Linear(768, 768), LayerNorm=nn.LayerNorm(768)),
                            decoder=nn.Linear(768, 30522))  # fmt: skip
        predictions.bias = nn.Parameter(torch.zeros(30522))
        predictions.decoder.bias = predictions.bias
        predictions.decoder.weight = embeddings.word_embeddings.weight
        self.cls = named(predictions=predictions)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        parts = self.bert.embeddings
        x = parts.word_embeddings(tokens) + parts.token_type_embeddings(torch.zeros_like(tokens))
        x = parts.LayerNorm(x + parts.position_embeddings(torch.arange(tokens.shape[1])))
        for layer in self.bert.encoder.layer:
            heads, end = layer.attention.get_submodule("self"), layer.attention.output
            mixed = attention(heads.query(x), heads.key(x), heads.value(x), causal=False)
            x = end.LayerNorm(end.dense(mixed) + x)
            x = layer.output.LayerNorm(layer.output.dense(F.gelu(layer.intermediate.dense(x))) + x)
        head = self.cls.predictions
        return head.decoder(head.transform.LayerNorm(F.gelu(head.transform.dense(x))))
