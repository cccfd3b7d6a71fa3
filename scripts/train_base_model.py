"""Train the embedded base model: a small Switch encoder, from public text only.

A student with eight experts per layer learns to give public texts the same similarities as a sentence encoder
(the teacher) does, while the load of every router is kept even over tokens and over records. The teacher is
needed here only; the shipped model does not depend on it. How to run it: scripts/README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast, SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersEncoderModel,
    SwitchTransformersTop1Router,
)

from raptor.text.docstrings import public_docstrings

WORDS = 24
TOKENS = 32
EXPERTS = 8
LAYERS = 3
WIDTH = 96
HIDDEN = 256
HEADS = 4
VOCABULARY = 8192
HELD_OUT = 2048


def docstring_texts(held_out: bool) -> list[str]:
    """Public docstrings for training, or those that are kept back to measure the routers."""
    texts = public_docstrings()["text"].to_pylist()
    return texts[:HELD_OUT] if held_out else texts[HELD_OUT:]


def corpus_texts(path: Path) -> list[str]:
    """Paragraphs of the training split of a Parquet corpus with the columns `text` and `split`."""
    table = pq.read_table(path, columns=["text", "split"])
    rows = zip(table["text"].to_pylist(), table["split"].to_pylist(), strict=True)
    return [text for text, split in rows if split == "train"]


def make_pieces(docs: list[str], corpus: list[str], corpus_pieces: int) -> list[str]:
    """Cut texts into pieces of at most `WORDS` words: starts and seconds of docstrings, starts of paragraphs."""
    pieces: set[str] = set()
    for text in docs:
        words = text.split()
        pieces.add(" ".join(words[:WORDS]))
        if len(words) >= WORDS + 10:
            pieces.add(" ".join(words[WORDS : 2 * WORDS]))
    cut = sorted({" ".join(t.split()[:WORDS]) for t in corpus if len(t.split()) >= 6} - pieces)
    generator = random.Random(0)
    chosen = sorted(pieces) + generator.sample(cut, min(corpus_pieces, len(cut)))
    generator.shuffle(chosen)
    return chosen


def embed(teacher: Path, pieces: list[str], out: Path) -> np.ndarray:
    """Mean-pooled unit embeddings of the teacher, float16, one row per piece; kept in `out` and continued."""
    done = np.load(out) if out.exists() else np.zeros((0, 384), np.float16)
    tokenizer, model = AutoTokenizer.from_pretrained(teacher), AutoModel.from_pretrained(teacher).eval()
    start, begin = time.time(), len(done)
    parts, rows = [done], begin
    block, size = 2048, 64
    while rows < len(pieces):
        texts = pieces[rows : rows + block]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        result = np.zeros((len(texts), 384), np.float16)
        with torch.inference_mode():
            for k in range(0, len(order), size):
                pick = order[k : k + size]
                batch = tokenizer(
                    [texts[i] for i in pick],
                    padding=True,
                    truncation=True,
                    max_length=40,
                    return_tensors="pt",
                )
                hidden = model(**batch).last_hidden_state
                mask = batch["attention_mask"][..., None]
                pooled = F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
                result[pick] = pooled.numpy().astype(np.float16)
        parts.append(result)
        rows += len(texts)
        np.save(out, np.concatenate(parts))
        print(
            f"teacher {rows}/{len(pieces)} {(rows - begin) / (time.time() - start):.0f} texts/s", flush=True
        )
    return np.concatenate(parts)


def build_tokenizer(
    teacher: Path, texts: list[str], max_length: int = TOKENS
) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Lower-case WordPiece over the teacher's most frequent pieces in public text, and their rows there."""
    source = AutoTokenizer.from_pretrained(teacher)
    counts: Counter[int] = Counter()
    for k in range(0, len(texts), 4096):
        for ids in source(texts[k : k + 4096], add_special_tokens=False, truncation=True, max_length=256)[
            "input_ids"
        ]:
            counts.update(ids)
    names = source.convert_ids_to_tokens(range(len(source)))
    # Single characters make sure that every word of plain text can be spelled.
    letters = {i for i, name in enumerate(names) if len(name.removeprefix("##")) == 1 and counts[i] > 0}
    common = [i for i, _ in counts.most_common() if i not in letters and not names[i].startswith("[")]
    kept = sorted(letters) + common[: VOCABULARY - 2 - len(letters)]
    vocabulary = {"[PAD]": 0, "[UNK]": 1} | {names[i]: k + 2 for k, i in enumerate(kept)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=64))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        padding_side="right",
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    )
    return fast, kept


def new_student(teacher: Path, rows: list[int], vocabulary: int) -> SwitchTransformersEncoderModel:
    """A Switch encoder whose embedding table starts as the main components of the teacher's."""
    config = SwitchTransformersConfig(
        vocab_size=vocabulary,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=HIDDEN,
        num_layers=LAYERS,
        num_sparse_encoder_layers=LAYERS,
        num_decoder_layers=1,
        num_sparse_decoder_layers=1,
        num_heads=HEADS,
        num_experts=EXPERTS,
        expert_capacity=4096,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
        router_bias=True,
        router_aux_loss_coef=0.0,
        router_z_loss_coef=0.0,
        pad_token_id=0,
        eos_token_id=None,
        use_cache=False,
        is_encoder_decoder=False,
    )
    student = SwitchTransformersEncoderModel(config)
    table = AutoModel.from_pretrained(teacher).get_input_embeddings().weight.detach()[rows]
    centred = table - table.mean(0)
    _, _, basis = torch.linalg.svd(centred, full_matrices=False)
    reduced = centred @ basis[:WIDTH].T
    with torch.no_grad():
        weight = student.get_input_embeddings().weight
        weight.normal_(std=0.02)
        weight[2:] = 0.3 * reduced / reduced.std()
        for router in routers(student):
            router.classifier.bias.zero_()
            # The default scale makes every choice certain from the start, and then nothing teaches the router.
            router.classifier.weight.mul_(0.25)
    return student


def routers(encoder: nn.Module) -> list[SwitchTransformersTop1Router]:
    """The routers of all sparse layers, first layer first."""
    return [module for module in encoder.modules() if isinstance(module, SwitchTransformersTop1Router)]


def record_shares(layer: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the experts, each (E,): of records by both votes (their mean), and of tokens."""
    p = layer.softmax(-1)
    hard = F.one_hot(p.argmax(-1), EXPERTS) * mask[..., None]
    owned = [torch.bincount(v.sum(1).argmax(-1), minlength=EXPERTS) / len(mask) for v in (hard, hard * p)]
    tokens = hard.sum((0, 1))
    return (owned[0] + owned[1]) / 2, tokens / tokens.sum()


def excess(share: Tensor) -> Tensor:
    """How far a share lies above an even one, on a log scale that a share of zero does not break."""
    return torch.log((share + 0.01) / (1 / EXPERTS + 0.01))


def correct_biases(encoder: nn.Module, logits: list[Tensor], mask: Tensor, pace: float) -> None:
    """Lower the bias of experts that own too much and raise that of the others.

    This is the balancing without an auxiliary gradient of "Auxiliary-Loss-Free Load Balancing Strategy for
    Mixture-of-Experts" (arXiv 2408.15664), with records as well as tokens as the load.
    """
    with torch.no_grad():
        for router, layer in zip(routers(encoder), logits, strict=True):
            records, tokens = record_shares(layer, mask)
            router.classifier.bias -= pace * excess(0.7 * records + 0.3 * tokens)


def settle_biases(encoder: nn.Module, ids: Tensor, rounds: int = 80) -> None:
    """Even out the owners of `ids`, one layer after the other, with all other weights as they are."""
    logits = watch_routers(encoder)
    for i, router in enumerate(routers(encoder)):
        bias = router.classifier.bias
        with torch.no_grad():
            seen = []
            for part in ids.split(512):
                logits.clear()
                pool(encoder, part)
                seen.append(logits[i] - bias)
            raw = torch.cat(seen)
            for k in range(rounds):
                records, _ = record_shares(raw + bias, ids != 0)
                bias -= (1 - k / rounds) * 0.2 * excess(records)
    logits.clear()


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """Token numbers, shape (N, TOKENS), int64, padded on the right with 0."""
    out = tokenizer(texts, padding="max_length", truncation=True, max_length=TOKENS)["input_ids"]
    return torch.tensor(out, dtype=torch.int64)


def pool(encoder: nn.Module, ids: Tensor) -> Tensor:
    """Mean of the last hidden states over the tokens that are not padding, shape (B, WIDTH)."""
    mask = (ids != 0).to(torch.int64)
    hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def watch_routers(encoder: nn.Module) -> list[Tensor]:
    """Collect the router logits of each forward pass, one tensor (B, T, E) per sparse layer."""
    logits: list[Tensor] = []
    for router in routers(encoder):
        router.register_forward_hook(lambda _module, _inputs, out: logits.append(out[2]))
    return logits


def balance_loss(logits: list[Tensor], mask: Tensor) -> Tensor:
    """Even loads over tokens and over records, and records that lean clearly to one expert."""
    total = torch.zeros(())
    weights = mask[..., None].float()
    for layer in logits:
        p = layer.softmax(-1)
        share = (p * weights).sum((0, 1)) / weights.sum()
        load = (F.one_hot(p.argmax(-1), EXPERTS) * weights).sum((0, 1)) / weights.sum()
        tokens = EXPERTS * (load * share).sum()
        # What a record votes for: the winning probability, as the product counts it, with a gradient.
        top = F.one_hot(p.argmax(-1), EXPERTS) * p
        for votes in (p, top):
            record = (votes * weights).sum(1)
            record = record / record.sum(-1, keepdim=True)
            owners = (12 * record).softmax(-1).mean(0)
            total = total + EXPERTS * (owners * owners).sum()
        lean = (p * weights).sum(1) / weights.sum(1)
        total = total + tokens - 0.02 * EXPERTS * (lean * lean).sum(-1).mean()
    return total


def isotropy_loss(pooled: Tensor) -> Tensor:
    """Distance of pooled outputs, shape (B, WIDTH), from mean zero and equal, uncorrelated coordinates.

    A linear head on such features learns in few steps, which is what noise leaves time for. After the covariance
    term of VICReg (arXiv 2105.04906).
    """
    mean = pooled.mean(0)
    centred = pooled - mean
    covariance = centred.T @ centred / (len(pooled) - 1)
    scale = covariance.diagonal().mean()
    return ((covariance / scale - torch.eye(WIDTH)) ** 2).sum() / WIDTH + (mean**2).mean() / scale


def train(
    student: SwitchTransformersEncoderModel,
    ids: Tensor,
    target: Tensor,
    seconds: float,
    batch: int,
    rate: float,
    isotropy: float,
) -> None:
    """Match the teacher: the vectors through a throw-away projection, the similarities without it."""
    projection = nn.Linear(WIDTH, target.shape[1])
    logits = watch_routers(student)
    for router in routers(student):
        router.classifier.bias.requires_grad_(False)
    parameters = [p for p in (*student.parameters(), *projection.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    start, step, off = time.time(), 0, torch.eye(batch, dtype=torch.bool)
    order = torch.randperm(len(ids))
    position = 0
    while (elapsed := time.time() - start) < seconds:
        if position + batch > len(order):
            order, position = torch.randperm(len(ids)), 0
        pick = order[position : position + batch]
        position += batch
        x, y = ids[pick], target[pick].float()
        logits.clear()
        pooled = pool(student, x)
        cosine = F.cosine_similarity(projection(pooled), y).mean()
        unit = F.normalize(pooled, dim=-1)
        mine = (unit @ unit.T / 0.1).masked_fill(off, -1e4).log_softmax(-1)
        theirs = (y @ y.T / 0.1).masked_fill(off, -1e4).softmax(-1)
        relation = F.kl_div(mine, theirs, reduction="batchmean")
        balance = balance_loss(logits, x != 0)
        even = isotropy_loss(pooled)
        loss = 4 * (1 - cosine) + relation + 0.05 * balance + isotropy * even
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 100) * (1 - 0.97 * elapsed / seconds)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        correct_biases(student, logits, x != 0, 0.05 * (1 - 0.9 * elapsed / seconds))
        step += 1
        if step % 100 == 0:
            print(
                f"step {step} {elapsed:.0f} s cosine {cosine.item():.4f} relation {relation.item():.4f} "
                f"balance {balance.item() / LAYERS:.4f} isotropy {even.item():.3f}",
                flush=True,
            )
    print(f"trained {step} steps of {batch} records", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="directory of the sentence encoder")
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with text and split")
    parser.add_argument("--work", type=Path, required=True, help="scratch directory, kept between calls")
    parser.add_argument("--out", type=Path, required=True, help="where the model directory is written")
    parser.add_argument("--start", type=Path, help="go on from this model directory (same work directory)")
    parser.add_argument("--corpus-pieces", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--isotropy", type=float, default=0.1, help="weight of the isotropy loss")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--embed-only", action="store_true", help="stop after the teacher's embeddings")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.work.mkdir(parents=True, exist_ok=True)
    listing = args.work / "pieces.json"
    if not listing.exists():
        docs, corpus = docstring_texts(held_out=False), corpus_texts(args.corpus)
        listing.write_text(json.dumps(make_pieces(docs, corpus, args.corpus_pieces)))
        (args.work / "vocabulary_texts.json").write_text(json.dumps(docs + corpus))
    pieces = json.loads(listing.read_text())
    print(f"{len(pieces)} pieces", flush=True)
    stored = args.work / "teacher.npy"
    if args.embed_only:
        embed(args.teacher, pieces, stored)
        return
    # A part of the embeddings is enough: the pieces are shuffled.
    target = torch.from_numpy(np.load(stored) if stored.exists() else embed(args.teacher, pieces, stored))
    pieces = pieces[: len(target)]
    texts = json.loads((args.work / "vocabulary_texts.json").read_text())
    tokenizer, rows = build_tokenizer(args.teacher, texts)
    if args.start:
        student = SwitchTransformersEncoderModel.from_pretrained(args.start, dtype=torch.float32).train()
    else:
        student = new_student(args.teacher, rows, len(tokenizer))
    print(f"{sum(p.numel() for p in student.parameters())} parameters, {len(pieces)} pieces", flush=True)
    train(student, encode(tokenizer, pieces), target, args.seconds, args.batch, args.rate, args.isotropy)
    args.out.mkdir(parents=True, exist_ok=True)
    texts = texts[:4000]  # public docstrings: these come first
    settle_biases(student.eval(), encode(tokenizer, texts))
    student.half().save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)
    # The length used here must not stay in the file as a default.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
