"""The Hugging Face hub without a network: model names, cache paths, and the policy on remote code."""
