"""Any sequence classification model of transformers, as a reader of pairs."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from simzoo.models.parts.backbone import BackboneConfig, dropout_settings, resolve_backbone, with_lora
from simzoo.models.parts.pretrained import most_tokens, read_config, read_transformer


class Classifier(nn.Module):
    """A transformer with its own head for sequences, which has one output.

    Under LoRA the transformer gets adapters, and the head is trained as it is.

    Args:
        config: which backbone; one without such a head gets a new one.
        pad: token id of the padding, where the backbone's configuration names none.

    Raises:
        ValueError: its head has several outputs, or the files cannot be used.
    """

    def __init__(self, config: BackboneConfig, pad: int | None) -> None:
        super().__init__()
        folder = resolve_backbone(config)
        settings: dict[str, Any] = dropout_settings(config)
        found = read_config(folder, config.name, **settings)
        if config.start is not None:
            raise ValueError("backbone.start is for models with an encoder alone; name the checkpoint as backbone.name")
        has_head = has_pair_head(found)
        if has_head and found.num_labels != 1:
            raise ValueError(
                f"{config.name}: has {found.num_labels} labels, expected one score; save it with a head of one output "
                "(num_labels=1), for example by training it on"
            )
        if not has_head:
            found = read_config(folder, config.name, **settings, num_labels=1)
        if found.pad_token_id is None:
            found.pad_token_id = pad

        def may_lack(model: Any, key: str) -> bool:
            return not has_head and (not key.startswith(f"{model.base_model_prefix}.") or ".pooler." in key)

        kind = AutoModelForSequenceClassification
        model, missing = read_transformer(folder, found, config.name, kind, may_lack)
        new = [model.get_parameter(name) for name in missing]
        self.pad: int = found.pad_token_id or 0
        self.max_length = most_tokens(model, found)
        self.base = model.base_model_prefix
        self.adapted = config.lora is not None
        if config.lora is not None:
            setattr(model, self.base, with_lora(getattr(model, self.base), config.lora, ()))
        for parameter in new:  # also in the transformer: a pooler is part of it
            parameter.requires_grad_(True)
        self.model = model.train()
        self.takes_segments = "token_type_ids" in signature(model.forward).parameters

    @property
    def transformer(self) -> nn.Module:
        """The backbone without its head."""
        return getattr(self.model, self.base)  # type: ignore[no-any-return]

    def merge(self) -> None:
        """Folds the adapters into the backbone's weights: the same scores, faster; training cannot go on."""
        if self.adapted:
            setattr(self.model, self.base, getattr(self.model, self.base).merge_and_unload())
            self.model.requires_grad_(False)
            self.adapted = False

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """The one logit of each sequence, in float32 whatever the weights are.

        Args:
            ids: (B, L) token ids.
            mask: (B, L) bool, True at real tokens.
            segments: (B, L) of each token; None where the tokenizer gives none.

        Returns:
            (B,).
        """
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
        if segments is not None and self.takes_segments:
            inputs["token_type_ids"] = segments
        logits: Tensor = self.model(**inputs).logits
        return logits[:, 0].float()


def has_pair_head(config: Any) -> bool:
    """Whether a configuration of transformers is of a sequence classification model."""
    return any(str(name).endswith("ForSequenceClassification") for name in config.architectures or ())
