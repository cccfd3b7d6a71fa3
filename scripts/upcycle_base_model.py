"""Make a sparse base model out of a dense encoder, with routers trained and balanced on public text.

How to run it: scripts/README.md. The result is a directory for `base_model.source`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import AutoTokenizer

from raptor.moe.assembly import load_dense, settle_routers, upcycle
from raptor.moe.upcycled import feed_forward_layers
from raptor.text.docstrings import public_docstrings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dense", type=Path, required=True, help="directory of a dense encoder and its tokenizer"
    )
    parser.add_argument("--out", type=Path, required=True, help="where the model directory is written")
    parser.add_argument(
        "--corpus", type=Path, help="Parquet file with a column text; without it public docstrings"
    )
    parser.add_argument("--texts", type=int, default=2000, help="texts that the routers are trained on")
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=1)
    parser.add_argument(
        "--noise", type=float, default=0.02, help="of an expert's weights, relative to their spread"
    )
    parser.add_argument("--sparse", type=int, nargs="*", help="blocks that become sparse; all by default")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dense = load_dense(args.dense)
    sparse = args.sparse or [layer.index for layer in feed_forward_layers(dense)]
    encoder = upcycle(dense, experts=args.experts, top_k=args.top_k, layers=sparse, noise=args.noise)
    if args.corpus is None:
        texts = public_docstrings(limit=args.texts)["text"].to_pylist()
    else:
        texts = pq.read_table(args.corpus, columns=["text"])["text"].to_pylist()[: args.texts]
    tokenizer = AutoTokenizer.from_pretrained(args.dense, local_files_only=True)
    given = tokenizer(texts, padding=True, truncation=True, max_length=args.max_length, return_tensors="pt")
    shares = settle_routers(encoder, given["input_ids"], given["attention_mask"])
    for layer, share in zip(sparse, shares, strict=True):
        print(f"layer {layer}: shares of texts {' '.join(f'{value:.3f}' for value in share.tolist())}")
    encoder.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"{sum(p.numel() for p in encoder.parameters()):,} parameters in {args.out}")


if __name__ == "__main__":
    main()
