"""Text and conversations to token ids, in a process of its own, whose time and memory are limited.

A tokenizer and a chat template come from anywhere, and a document may be anything: regular expressions, code
in Rust and a program in Jinja run on it. In the process of a run any of them could take hours, all memory, or
the process with it. Here it ends, and the document that it was for has a name.
"""
