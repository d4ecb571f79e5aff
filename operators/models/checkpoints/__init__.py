"""The files of a model: how they are found, downloaded and checked."""
