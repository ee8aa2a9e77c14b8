"""What planc makes of tokenizers and chat templates, compared with transformers in this process.

`python -m tests.data.against_transformers` compares all of it, and exits with 1 on a difference.
"""
