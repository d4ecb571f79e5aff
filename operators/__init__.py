"""How one stage computes: tables in, tables out, plain Python that runs without Ray."""
