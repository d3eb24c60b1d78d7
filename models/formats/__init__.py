"""How checkpoints of this and other projects are read and written. A format knows a system, a system no format."""

from simzoo.models.formats.export import save_onnx, save_sentence_transformer
from simzoo.models.formats.own import load, restore, save, similarity_class

__all__ = ["load", "restore", "save", "save_onnx", "save_sentence_transformer", "similarity_class"]
