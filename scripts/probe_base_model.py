"""Measure the embedded base model on public text: router balance, probes and short fine-tuning.

Prints one JSON object. The tasks are the origin of public docstrings that the model has not seen, and
labelled sets in Parquet files (columns `text`, `label`, `split`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F
from train_base_model import EXPERTS, HELD_OUT, WORDS, encode, pool, watch_routers
from transformers import AutoTokenizer
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
)

from raptor.text.docstrings import public_docstrings

CLASSES = 8


def owners(encoder: nn.Module, ids: Tensor) -> list[dict[str, list[float]]]:
    """Per sparse layer: the share of records that every expert owns, for both votes, and of tokens."""
    logits = watch_routers(encoder)
    layers: list[dict[str, np.ndarray]] = []
    with torch.inference_mode():
        for part in ids.split(256):
            logits.clear()
            pool(encoder, part)
            mask = (part != 0)[..., None].float()
            for i, layer in enumerate(logits):
                p = layer.softmax(-1)
                hard = F.one_hot(p.argmax(-1), EXPERTS) * mask
                if len(layers) <= i:
                    layers.append({k: np.zeros(EXPERTS) for k in ("weight", "count", "tokens")})
                for name, votes in (("weight", hard * p), ("count", hard)):
                    owner = votes.sum(1).argmax(-1)
                    layers[i][name] += np.bincount(owner.numpy(), minlength=EXPERTS)
                layers[i]["tokens"] += hard.sum((0, 1)).numpy()
    return [{k: (v / v.sum()).tolist() for k, v in layer.items()} for layer in layers]


def relative_entropy(shares: list[float]) -> float:
    return -sum(q * math.log(q) for q in shares if q > 0) / math.log(len(shares))


def features(encoder: nn.Module, ids: Tensor) -> np.ndarray:
    with torch.inference_mode():
        return torch.cat([pool(encoder, part) for part in ids.split(512)]).numpy()


def linear_probe(encoder: nn.Module, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    x, z = features(encoder, train[0]), features(encoder, test[0])
    mean, scale = x.mean(0), x.std(0) + 1e-6
    model = LogisticRegression(max_iter=300, C=0.3).fit((x - mean) / scale, train[1].numpy())
    return float(model.score((z - mean) / scale, test[1].numpy()))


def fine_tune(
    directory: Path,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
    rate: float,
    steps: int,
) -> tuple[float, float]:
    """Accuracy after `steps` Adam steps of 512 records on everything but experts and routers, and seconds."""
    torch.manual_seed(0)
    encoder = SwitchTransformersEncoderModel.from_pretrained(directory, dtype=torch.float32).train()
    head = nn.Linear(encoder.config.d_model, classes)
    nn.init.zeros_(head.weight)
    shared = [p for n, p in encoder.named_parameters() if "experts" not in n and "router" not in n]
    for p in encoder.parameters():
        p.requires_grad_(False)
    for p in shared:
        p.requires_grad_(True)
    optimizer = torch.optim.Adam([*shared, *head.parameters()], lr=rate)
    start = time.time()
    for _ in range(steps):
        pick = torch.randint(0, len(train[0]), (512,))
        loss = F.cross_entropy(head(pool(encoder, train[0][pick])), train[1][pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.time() - start
    encoder.eval()
    with torch.inference_mode():
        guess = torch.cat([head(pool(encoder, part)).argmax(-1) for part in test[0].split(512)])
    return float((guess == test[1]).float().mean()), spent


def labelled(
    path: Path, tokenizer: object, test_split: str
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], int]:
    table = pq.read_table(path, columns=["text", "label", "split"]).to_pylist()
    train = [r for r in table if r["split"] == "train"][:20000]
    test = [r for r in table if r["split"] == test_split]
    pair = [
        (encode(tokenizer, [r["text"] for r in s]), torch.tensor([r["label"] for r in s]))
        for s in (train, test)
    ]
    return pair[0], pair[1], max(r["label"] for r in train) + 1


def library_task(tokenizer: object) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], int]:
    """Which of the eight largest public packages holds a docstring; the held-out ones are the test."""
    rows = public_docstrings().to_pylist()
    names = [name for name, _ in Counter(r["library"] for r in rows).most_common(CLASSES)]
    sets = []
    for part in (rows[HELD_OUT:], rows[:HELD_OUT]):
        kept = [r for r in part if r["library"] in names]
        ids = encode(tokenizer, [r["text"] for r in kept])
        sets.append((ids, torch.tensor([names.index(r["library"]) for r in kept])))
    return sets[0], sets[1], CLASSES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sets", type=Path, help="directory with trec/trec.parquet and sst2/sst2.parquet")
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-3, 3e-3])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    encoder = SwitchTransformersEncoderModel.from_pretrained(args.model, dtype=torch.float32).eval()
    held_out = public_docstrings()["text"].to_pylist()[:HELD_OUT]
    result: dict[str, object] = {"parameters": sum(p.numel() for p in encoder.parameters())}
    routers = {}
    for name, texts in (("full", held_out), ("short", [" ".join(t.split()[: WORDS // 2]) for t in held_out])):
        for i, layer in enumerate(owners(encoder, encode(tokenizer, texts))):
            for vote, shares in layer.items():
                routers[f"{name} layer {i} {vote}"] = {
                    "relative_entropy": round(relative_entropy(shares), 4),
                    "smallest": round(min(shares), 4),
                    "largest": round(max(shares), 4),
                }
    result["routers"] = routers
    batch = encode(tokenizer, held_out[:512])
    pool(encoder, batch)
    start = time.time()
    with torch.inference_mode():
        for _ in range(3):
            pool(encoder, batch)
    result["seconds_per_forward_512x32"] = round((time.time() - start) / 3, 3)
    tasks = {"public library": library_task(tokenizer)}
    if args.sets:
        tasks["trec"] = labelled(args.sets / "trec" / "trec.parquet", tokenizer, "test")
        tasks["sst2"] = labelled(args.sets / "sst2" / "sst2.parquet", tokenizer, "validation")
    for name, (train, test, classes) in tasks.items():
        largest = float(torch.bincount(test[1]).max() / len(test[1]))
        entry: dict[str, object] = {"largest_class": round(largest, 4)}
        entry["linear_probe"] = round(linear_probe(encoder, (train[0][:10000], train[1][:10000]), test), 4)
        for rate in args.rates:
            accuracy, seconds = fine_tune(args.model, train, test, classes, rate, args.steps)
            entry[f"fine_tuned_{args.steps}_steps_rate_{rate}"] = round(accuracy, 4)
            entry["seconds"] = round(seconds, 1)
        result[name] = entry
        print(json.dumps({name: entry}), flush=True)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
