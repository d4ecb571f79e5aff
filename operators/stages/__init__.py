"""Stages, each of which turns a shard's rows and other stages' tables into one table."""
