"""The plan of a run with two evaluations."""

TEXT = """\
model {
  hf = "models/tiny-llama"
  weights = random
  seed = 0
  dtype = float32
}

data {
  source = jsonl("rows.jsonl")
  sequence_length = 32
  micro_batch = 1

  eval "held" {
    source = text("held.txt")
    every = 2 steps
  }

  eval "share" {
    share = 10 %
    every = 2 steps
  }
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 2
  tokens_per_step = 128
  ema_decay = 0.5
}

checkpoint {
  save_every = 2 steps

  export "hf" {
  }
}
"""
