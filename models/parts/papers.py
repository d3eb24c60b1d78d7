"""Papers that several systems are from, as BibTeX; docs/systems.md and the models' cards show them."""

from __future__ import annotations

__all__ = ["ANNCUR", "AXN", "CMC", "HYPENCODER", "RAILS"]

ANNCUR = """\
@article{yadav2022efficient,
  title   = {Efficient Nearest Neighbor Search for Cross-Encoder Models using Matrix Factorization},
  author  = {Yadav, Nishant and Monath, Nicholas and Angell, Rico and Zaheer, Manzil and McCallum, Andrew},
  journal = {arXiv preprint arXiv:2210.12579},
  year    = {2022}
}"""
AXN = """\
@inproceedings{yadav2024adaptive,
  title     = {Adaptive Retrieval and Scalable Indexing for k-NN Search with Cross-Encoders},
  author    = {Yadav, Nishant and Monath, Nicholas and Zaheer, Manzil and Fergus, Rob and McCallum, Andrew},
  booktitle = {International Conference on Learning Representations},
  note      = {arXiv:2405.03651},
  year      = {2024}
}"""
CMC = """\
@misc{song2024comparing,
  title  = {Comparing Neighbors Together Makes it Easy: Jointly Comparing Multiple Candidates for Efficient and Effective Retrieval},
  author = {Song, Jonghyun and Jin, Cheyon and Zhao, Wenlong and McCallum, Andrew and Lee, Jay-Yoon},
  note   = {arXiv:2405.12801},
  year   = {2024}
}"""  # noqa: E501  an entry is a line
RAILS = """\
@inproceedings{ding2025retrieval,
  title     = {Retrieval with Learned Similarities},
  author    = {Ding, Bailu and Zhai, Jiaqi},
  booktitle = {Proceedings of the ACM Web Conference},
  note      = {arXiv:2407.15462},
  year      = {2025}
}"""
HYPENCODER = """\
@misc{killingback2025hypencoder,
  title  = {Hypencoder: Hypernetworks for Information Retrieval},
  author = {Killingback, Julian and Zeng, Hansi and Zamani, Hamed},
  note   = {arXiv:2502.05364},
  year   = {2025}
}"""
