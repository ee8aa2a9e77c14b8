"""The Hugging Face hub without a network: names, cache and tokenizer files, and the policy on remote code."""
