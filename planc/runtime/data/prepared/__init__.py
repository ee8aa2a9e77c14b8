"""Prepared data: a source's tokens in sharded, hashed files, made once and read in place."""
