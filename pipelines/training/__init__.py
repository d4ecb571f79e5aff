"""CLIP-FlanT5 trained on Ray: its two stages over sharded Parquet, and its finetuning on people's ratings."""
