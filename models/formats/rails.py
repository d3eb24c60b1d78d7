"""The released RAILS recommendation checkpoints (HSTU with Mixture-of-Logits), in the authors' own file layout.

A file is a dictionary of ``epoch``, ``batch_id``, ``model_state_dict`` and ``optimizer_state_dict``; it holds no
configuration. Most sizes follow from the tensors' shapes, the others from the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from simzoo.core.hub import file_sha256, local_path
from simzoo.models.next_item_mol import NextItemMoL
from simzoo.models.parts.mixture import MixtureConfig
from simzoo.models.parts.pickles import load_tensors
from simzoo.models.parts.sequence import SequenceConfig
from simzoo.models.parts.weights import copy_all

__all__ = ["ReleasedSizes", "is_released", "load_released"]

PREFIX = "module."
GATING = "_ndp_module._gating_fn."
QUERY = "_ndp_module._query_embeddings_fn."
ITEMS = ("_ndp_module._item_embeddings_fn._item_emb_proj_module.1.", "_ndp_module._item_proj_module.1.")
UNREAD = "_attn_mask"
NAME = re.compile(
    r"HSTU-b\d+-h(?P<heads>\d+)-.*_MoL-(?P<query>\d+)x(?P<item>\d+)x\d+-t(?P<temperature>[\d.]+)-"
    r".*-q\d+d[\d.]+(?P<activation>geglu|swiglu)-"
)


@dataclass(frozen=True)
class ReleasedSizes:
    """What a released file's tensors do not tell.

    Attributes:
        heads: attention heads.
        query_components: P_Q, user ids included.
        item_components: P_X.
        activation: of the query's gated layer: swiglu for MovieLens, geglu for Books.
        temperature: of the mixture.
        output_length: positions that the authors keep beyond the longest history.
    """

    heads: int
    query_components: int
    item_components: int
    activation: Literal["geglu", "swiglu"] = "swiglu"
    temperature: float = 0.05
    output_length: int = 11

    @classmethod
    def of_name(cls, name: str) -> ReleasedSizes:
        """The sizes in the name of a released file, such as HSTU-b8-h2-..._MoL-8x4x64-t0.05-...-q512d0.0swiglu-...

        Raises:
            ValueError: the name is another.
        """
        found = NAME.match(name)
        if found is None:
            raise ValueError(
                f"{name!r} is not named as the released files are (HSTU-b8-h2-..._MoL-8x4x64-t0.05-...-q512d0.0swiglu-"
                "...): give the sizes (ReleasedSizes)"
            )
        activation: Literal["geglu", "swiglu"] = "geglu" if found["activation"] == "geglu" else "swiglu"
        heads, query, item = (int(found[part]) for part in ("heads", "query", "item"))
        return cls(heads, query, item, activation, float(found["temperature"]))


def is_released(place: Path) -> bool:
    """Whether a file, or the one such file of a folder, is named as the released ones are."""
    file = _file(place)
    return file.is_file() and NAME.match(file.name) is not None


def _file(place: Path) -> Path:
    found = [path for path in sorted(place.glob("*")) if NAME.match(path.name)]
    return found[0] if len(found) == 1 else place


def load_released(path: str | Path, sizes: ReleasedSizes | None = None) -> NextItemMoL:
    """Loads a released file, in evaluation mode, on the CPU.

    Items have the ids 1 to M, as in the data that the authors trained on; user ids are numbers. Histories need times,
    and `History.now`, the time of the action to be predicted.

    Args:
        path: the file, a folder with one, or the name of such a folder on the Hub.
        sizes: what the file does not tell; None: what its name says.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another layout, or its tensors do not fit the sizes.
    """
    path = _file(local_path(path))
    if not path.is_file():
        raise FileNotFoundError(f"{path} is neither a released file nor a folder with one; name the file")
    tensors = {name.removeprefix(PREFIX): value for name, value in load_tensors(path, "model_state_dict").items()}
    sizes = sizes or ReleasedSizes.of_name(path.name)
    try:
        encoder, mixture = _encoder(tensors, sizes), _mixture(tensors, sizes)
        names = [str(row) for row in range(1, len(tensors["_embedding_module._item_emb.weight"]))]
        model = NextItemMoL(names, encoder, mixture)
    except KeyError as error:
        raise ValueError(f"{path} is no released HSTU with Mixture-of-Logits: {error.args[0]} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path} does not fit {sizes}: {error}") from error
    _fill(model, tensors, path)
    model.weights_sha256 = file_sha256(path)
    return model.eval()


def _encoder(tensors: Mapping[str, Tensor], sizes: ReleasedSizes) -> SequenceConfig:
    positions, width = tensors["_input_features_preproc._pos_emb.weight"].shape
    layers = {int(found[1]) for name in tensors if (found := re.match(r"_hstu\._attention_layers\.(\d+)\.", name))}
    first = "_hstu._attention_layers.0."
    if tensors[first + "_uvqk"].shape[1] != 4 * width:
        raise ValueError(f"attention and linear widths must add up to the {width} of the embeddings in every head")
    return SequenceConfig(
        "hstu",
        width=width,
        blocks=len(layers),
        heads=sizes.heads,
        length=positions - sizes.output_length,
        time_buckets=len(tensors[first + "_rel_attn_bias._ts_w"]) - 1,
        bias_time="next",
        output_length=sizes.output_length,
    )


def _mixture(tensors: Mapping[str, Tensor], sizes: ReleasedSizes) -> MixtureConfig:
    hidden = tensors[QUERY + "_query_emb_proj_module.1._w"].shape[1] // 2
    users = [name for name in tensors if re.fullmatch(re.escape(QUERY) + r"_uid_embeddings_\d+\.weight", name)]
    gate = tensors[GATING + "_qi_partial_module.1.weight"]
    if gate.shape[1] != sizes.query_components * sizes.item_components:
        raise ValueError(f"the gate is over {gate.shape[1]} components")
    return MixtureConfig(
        query_components=sizes.query_components,
        item_components=sizes.item_components,
        width=len(tensors[_item_projection(tensors) + "weight"]) // sizes.item_components,
        query_projection=sizes.activation,
        item_projection="linear",
        hidden=hidden,
        temperature=sizes.temperature,
        gate_hidden=gate.shape[0],
        query_gate=True,
        item_gate=True,
        user_hashes=tuple(len(tensors[name]) - 1 for name in sorted(users)),
    )


def _item_projection(tensors: Mapping[str, Tensor]) -> str:
    """The prefix of the item side's layer, which older files have under another name."""
    return next((prefix for prefix in ITEMS if prefix + "weight" in tensors), ITEMS[0])


def _fill(model: NextItemMoL, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copies every tensor to its place; none may be missing or left over."""
    turned = {name: _turned(name, value) for name, value in tensors.items() if name != UNREAD}
    copy_all(_wanted(model, _item_projection(tensors)), turned, path)


def _turned(name: str, value: Tensor) -> Tensor:
    """A tensor of the file in the shape that it has here."""
    if name.endswith("._pos_w"):  # by j - i, from the furthest back on; states see no later positions
        return value[: len(value) // 2 + 1].flip(0)
    if name.endswith(("._uvqk", "._w")):  # the authors multiply from the left
        return value.T
    return value.flatten() if name.endswith("._b") else value  # (1, 2 hidden)


def _wanted(model: NextItemMoL, item_projection: str) -> dict[str, Tensor]:
    """Every parameter of a model under the authors' name."""
    parameters = dict(model.named_parameters())
    names = {
        "encoder.item.weight": "_embedding_module._item_emb.weight",
        "encoder.position.weight": "_input_features_preproc._pos_emb.weight",
        "head.query_projection.1.both.weight": QUERY + "_query_emb_proj_module.1._w",
        "head.query_projection.1.both.bias": QUERY + "_query_emb_proj_module.1._b",
        "head.query_projection.2.weight": QUERY + "_query_emb_proj_module.2.weight",
        "head.query_projection.2.bias": QUERY + "_query_emb_proj_module.2.bias",
        "head.item_projection.1.weight": item_projection + "weight",
        "head.item_projection.1.bias": item_projection + "bias",
    }
    ours = {"query.1": "query_only_partial_module.0", "query.3": "query_only_partial_module.2"}
    ours |= {"item.1": "item_only_partial_module.1", "item.3": "item_only_partial_module.3"}
    ours |= {"cross_in": "qi_partial_module.1", "cross_out": "qi_partial_module.3"}
    for mine, theirs in ours.items():
        for kind in ("weight", "bias"):
            if f"head.gate.{mine}.{kind}" in parameters:
                names[f"head.gate.{mine}.{kind}"] = f"{GATING}_{theirs}.{kind}"
    for i in range(len(model.head.users.tables) if model.head.users is not None else 0):
        names[f"head.users.tables.{i}.weight"] = f"{QUERY}_uid_embeddings_{i}.weight"
    for i in range(model.encoder.config.blocks):
        block, theirs = f"encoder.blocks.{i}.", f"_hstu._attention_layers.{i}."
        names |= {block + "uvqk.weight": theirs + "_uvqk"}
        names |= {block + f"output.{kind}": theirs + f"_o.{kind}" for kind in ("weight", "bias")}
        names |= {block + "position_bias": theirs + "_rel_attn_bias._pos_w"}
        names |= {block + "time_bias": theirs + "_rel_attn_bias._ts_w"}
    return {names[name]: parameter for name, parameter in parameters.items()}
