"""A tiny BERT with random weights and a small vocabulary, written to disk once: for contract tests, not for use."""

from __future__ import annotations

import json
import string
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


@lru_cache(maxsize=1)
def tiny_backbone() -> Path:
    """Folder with config.json, model.safetensors and a WordPiece tokenizer over letters and digits."""
    folder = Path(tempfile.mkdtemp(prefix="simzoo-tiny-"))
    characters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = [SPECIAL["pad"], "[unused0]", "[unused1]", "[unused2]", *list(SPECIAL.values())[1:]]
    tokens += [*characters, *(f"##{c}" for c in characters), "boat", "river", "bank", "##s"]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    around = [(SPECIAL[kind], vocabulary[SPECIAL[kind]]) for kind in ("cls", "sep")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    named = {f"{kind}_token": token for kind, token in SPECIAL.items()}
    fast: Any = PreTrainedTokenizerFast
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    fast(tokenizer_object=tokenizer, model_max_length=64, model_input_names=inputs, **named).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = BertModel(config)
    torch.random.set_rng_state(state)
    # Random weights of BERT's small scale give almost constant scores, which would hide errors from the tests.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    model.save_pretrained(folder, safe_serialization=True)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    return folder
