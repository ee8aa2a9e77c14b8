"""A transformer of one's own: a gate on the output of each attention, whose heads share keys and values."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from planc.extend import model


class GatedAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        kv_width = config.num_key_value_heads * self.head_dim
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.value = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.gate = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        frequencies = config.rope_theta ** -torch.linspace(0, 1, self.head_dim // 2)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def rotate(self, heads, positions):
        angles = positions[:, None, :, None] * self.frequencies.float()
        one, other = heads.chunk(2, dim=-1)
        turned = (one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos())
        return torch.cat(turned, dim=-1).to(heads.dtype)

    def forward(self, hidden, positions):
        layers = (self.query, self.key, self.value)
        query, key, value = (one(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for one in layers)
        query, key = self.rotate(query, positions), self.rotate(key, positions)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(seen.transpose(1, 2).flatten(2) * self.gate(hidden).sigmoid())


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_attention, self.norm_mlp = (nn.RMSNorm(config.hidden_size) for _ in range(2))
        self.attention = GatedAttention(config)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden, positions):
        hidden = hidden + self.attention(self.norm_attention(hidden), positions)
        return hidden + self.down(silu(self.up(self.norm_mlp(hidden))))


@model("gated")
class Gated(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, position_ids):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, position_ids)
        return self.head(self.norm(hidden))
