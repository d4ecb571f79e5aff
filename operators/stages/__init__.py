"""Stages. Each stage turns a shard's rows and other stages' tables into one table."""
