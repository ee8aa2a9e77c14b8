"""A transformer of one's own, whose attention has no softmax: squared positive scores, by the tokens seen."""

import torch
from torch import nn

from planc.extend import model


class Attention(nn.Module):
    def __init__(self, width, head_dim):
        super().__init__()
        self.head_dim = head_dim
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, hidden):
        layers = (self.query, self.key, self.value)
        query, key, value = (one(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in layers)
        weights = (query @ key.transpose(2, 3) / self.head_dim).relu().square().tril()
        seen = weights @ value / torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
        return self.out(seen.transpose(1, 2).flatten(2))


@model("counting")
class Counting(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, head_dim = config.hidden_size, config.hidden_size // config.num_attention_heads
        self.embed = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(width), Attention(width, head_dim))
            for _ in range(config.num_hidden_layers)
        )
        self.head = nn.Linear(width, config.vocab_size, bias=False)

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(hidden)
