"""How checkpoints of this and other projects are read and written. A format knows a system, a system no format."""

from simzoo.models.formats.export import save_onnx, save_sentence_transformer
from simzoo.models.formats.own import citation_of, load, restore, save

__all__ = ["citation_of", "load", "restore", "save", "save_onnx", "save_sentence_transformer"]
