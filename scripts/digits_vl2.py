"""Questions about images of digits: private records of real handwriting, and a small DeepSeek-VL2 made of public ones.

    python scripts/digits_vl2.py --out data/01_raw/digits
    kedro run --env digits-vl2

The private records are the 1,797 scanned digits that come with scikit-learn, each with one question. The base model has
seen none of them: it is trained here, without privacy, on digits drawn from the fonts that come with matplotlib. Its
checkpoint is laid out as that of DeepSeek-VL2-Tiny.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch.nn import functional

from raptor.moe.classifier import MoEClassifier
from raptor.moe.images import ImageInput
from raptor.moe.vl2 import Vl2Config, Vl2Encoder
from raptor.moe.vl2.tiling import ImageFormat
from raptor.text.images import cut

# question -> answer of a digit. Each record has one of them, so that no image is in two records.
QUESTIONS = (
    ("Which digit is shown?", str),
    ("Is the digit odd or even?", lambda digit: "odd" if digit % 2 else "even"),
    ("Which digit is shown?", str),
    ("Is the digit large or small?", lambda digit: "large" if digit > 4 else "small"),
)
ANSWERS = (*map(str, range(10)), "even", "odd", "large", "small")
PAD = "<｜▁pad▁｜>"
WORDS = (
    "<s>",
    "</s>",
    PAD,
    "<unk>",
    *sorted({*["which", "digit", "is", "shown", "?", "the", "odd", "or", "even", "large", "small"]}),
)
SIZE, WIDTH, TOWER, EXPERTS = 16, 48, 32, 8
FORM = ImageFormat(size=SIZE, side=2, grids=((1, 1),), whole_first=True, token=2)
CONFIG: dict[str, Any] = {
    "vision_config": {
        "image_size": SIZE,
        "patch_size": 4,
        "width": TOWER,
        "layers": 2,
        "heads": 4,
        "mlp_ratio": 2.0,
    },
    "projector_config": {"input_dim": TOWER, "n_embed": WIDTH},
    "language_config": {
        "vocab_size": 32,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "use_mla": False,
    },
    "candidate_resolutions": [[SIZE, SIZE]],
}


def fonts() -> list[Path]:
    """Fonts with ordinary digits that come with matplotlib."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = ("DejaVuSans", "DejaVuSerif", "STIXGeneral")
    return sorted(
        file for name in names for file in folder.glob(f"{name}*.ttf") if "Display" not in file.name
    )


def drawn(digit: int, random: np.random.Generator, faces: list[Path]) -> NDArray[np.uint8]:
    """(8, 8) values from 0 to 16 of a public digit: how much ink is in each of 4x4 points, as in the scanned ones."""
    font = ImageFont.truetype(str(faces[random.integers(len(faces))]), 64)
    canvas = Image.new("L", (160, 160))
    ImageDraw.Draw(canvas).text((50, 40), str(digit), 255, font, stroke_width=int(random.integers(0, 4)))
    turned = canvas.rotate(float(random.normal(0, 8)), Image.Resampling.BILINEAR)
    slant = float(random.normal(0, 0.15))
    slanted = turned.transform(turned.size, Image.Transform.AFFINE, (1, slant, -80 * slant, 0, 1, 0))
    box = slanted.getbbox()
    if box is None:
        raise AssertionError("a digit was drawn")
    wide = int(random.integers(10, 16)) if digit == 1 else int(random.integers(16, 29))
    ink = np.zeros((32, 32), dtype=np.uint8)
    left = int(random.integers(0, 33 - wide))
    fitted = np.asarray(slanted.crop(box).resize((wide, 32), Image.Resampling.BILINEAR))
    ink[:, left : left + wide] = fitted > int(random.integers(70, 190))
    return ink.reshape(8, 4, 8, 4).sum(axis=(1, 3)).astype(np.uint8)


def picture(values: NDArray[np.integer[Any]]) -> Image.Image:
    """An image of 8x8 values from 0 to 16."""
    return Image.fromarray((values.astype(np.float64) * (255 / 16)).round().astype(np.uint8)).convert("RGB")


def private_records() -> pa.Table:
    """The scanned digits as images, questions, answers and splits: a quarter is held out."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    rows: dict[str, list[Any]] = {"image": [], "question": [], "answer": [], "split": []}
    for number, index in enumerate(order):
        file = io.BytesIO()
        picture(found.images[index].astype(np.int64)).save(file, "PNG")
        question, answer = QUESTIONS[number % len(QUESTIONS)]
        rows["image"].append(file.getvalue())
        rows["question"].append(question)
        rows["answer"].append(answer(int(found.target[index])))
        rows["split"].append("test" if number < len(order) // 4 else "train")
    return pa.table(rows)


def save_tokenizer(directory: Path) -> None:
    """Words of the questions; as the original's, it does not say which token pads."""
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(WORDS[:4]))
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


class DrawnDigits:
    """Questions about a fixed stock of drawn digits, which are public."""

    def __init__(self, number: int, random: np.random.Generator) -> None:
        faces = fonts()
        self._random = random
        self._digits = random.integers(10, size=number)
        views = [cut(picture(drawn(int(digit), random, faces)), FORM)[0] for digit in self._digits]
        self._pixels = torch.from_numpy(np.stack(views))

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor, ImageInput, torch.Tensor]:
        """Token ids, mask, pictures and answers of some digits."""
        words = {word: number for number, word in enumerate(WORDS)}
        places = FORM.places(1, 1)
        chosen = self._random.integers(len(self._digits), size=size)
        ids, labels = [], []
        for digit in self._digits[chosen]:
            question, answer = QUESTIONS[self._random.integers(len(QUESTIONS))]
            text = [words[word] for word in question.lower().replace("?", " ?").split()]
            ids.append([0, *[FORM.token] * len(places), *text])
            labels.append(ANSWERS.index(answer(int(digit))))
        width = max(map(len, ids))
        tokens = torch.tensor([row + [2] * (width - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
        every = torch.tensor([[-1, *places]] * size)
        images = ImageInput(self._pixels[torch.from_numpy(chosen)], torch.full((size,), 2), every)
        return tokens, mask, images.fit(width), torch.tensor(labels)


def train_public(steps: int, seed: int = 0, batch: int = 64, stock: int = 4000) -> tuple[Vl2Encoder, float]:
    """A small model trained on drawn digits, routers balanced by a loss that only public batches see.

    Returns:
        The encoder, and the share of right answers in the last tenth of the steps.
    """
    torch.manual_seed(seed)
    digits = DrawnDigits(stock, np.random.default_rng(seed))
    model = MoEClassifier(Vl2Encoder(Vl2Config(**CONFIG)), len(ANSWERS))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "norm" not in name:
            torch.nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.7 * parameter.shape[-1] ** -0.5)
    for end in (model.encoder.image_newline, model.encoder.view_seperator):
        torch.nn.init.normal_(end, std=WIDTH**-0.5)
    gates: list[torch.Tensor] = []
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(lambda _module, _inputs, output: gates.append(output[0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    right: list[float] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        gates.clear()
        tokens, mask, images, labels = digits.batch(batch)
        logits = model(tokens, mask, images)
        loss = functional.cross_entropy(logits, labels)
        for scores in gates:
            shares = scores.softmax(dim=-1).mean(dim=0)
            loss = loss + 0.02 * EXPERTS * shares.square().sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right.append(float((logits.argmax(dim=1) == labels).float().mean()))
    encoder = model.encoder.eval()
    for module in encoder.modules():
        module._forward_hooks.clear()
    return encoder, float(np.mean(right[-max(steps // 10, 1) :]))


def make(out: Path, steps: int, seed: int = 0) -> float:
    """Write `records.parquet` and `model`; the share of right answers on drawn digits."""
    out.mkdir(parents=True, exist_ok=True)
    pq.write_table(private_records(), out / "records.parquet")
    encoder, right = train_public(steps, seed)
    encoder.save_pretrained(out / "model")
    save_tokenizer(out / "model")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data/01_raw/digits"))
    parser.add_argument("--steps", type=int, default=600, help="of the public training, 64 drawn digits each")
    parser.add_argument("--seed", type=int, default=0, help="of the public training; it protects nothing")
    given = parser.parse_args()
    start = time.monotonic()
    right = make(given.out, given.steps, given.seed)
    seconds = time.monotonic() - start
    print(f"{given.out}: {right:.1%} right about drawn digits after {given.steps} steps, {seconds:.0f} s")


if __name__ == "__main__":
    main()
