"""The stages: each turns a shard's rows, and what other stages made of them, into one table."""
